"""The papers' phenomenon on real rows, in a minute: skipped where the files are not at hand."""

import pytest

from tacit.data import find
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run

COMMON = {"monitor_every": 1, "layers": True, "threads": 1}
SETTINGS = {
    "criteo": {"rows": 40_000, "model": "wdl", "lr": 1e-4, "batch_size": 1024, "epochs": 3},
    "credit": {"model": "mlp", "lr": 1e-3, "batch_size": 1024, "epochs": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("dataset", SETTINGS)
def test_leakage_with_and_without_marvell(dataset):
    if not find(dataset):
        pytest.skip(f"the files of {dataset} are not in TACIT_DATA: see `tacit data list`")
    found = {
        spec: run(
            TrainConfig.of({**COMMON, **SETTINGS[dataset], "dataset": dataset, "protect": spec})
        )[1]
        for spec in ("none", "marvell(s=4)")
    }
    none, marvell = found["none"], found["marvell(s=4)"]
    first = next(iter(marvell["layers"].values()))
    settled = none["history"][-1]["leak"]
    assert settled["cosine"]["mean"] > 0.97
    assert settled["norm"]["mean"] > (0.85 if dataset == "criteo" else 0.7)
    assert marvell["leak"]["norm"]["mean"] < 0.6
    assert 0.55 < marvell["leak"]["cosine"]["mean"] < 0.7
    assert marvell["leak"]["energy"]["mean"] > 0.9
    assert first["norm"]["mean"] < 0.6
    assert first["cosine"]["mean"] < 0.7
