"""What published protections give away over epochs, on real rows: the short version."""

import pytest

from tacit._config import PLAIN
from tacit.attack import get
from tacit.audit import run_audit
from tacit.data import find
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run
from tacit.measure import gaussian_auc

pytestmark = pytest.mark.skipif(not find("credit"), reason="the credit table is not here")


def audited(tmp_path, spec):
    settings = {"dataset": "credit", "model": "mlp(hidden=128)", "protect": spec, "epochs": 5}
    trial, results = run(TrainConfig.of({**PLAIN, **settings, "threads": 1}), record=tmp_path)
    labels = dict(enumerate(trial.table.labels.tolist()))
    tape = tmp_path / "feature_party_0.tape"
    return results, run_audit(tape, labels, [get("energy"), get("memory")]).record


@pytest.mark.slow
def test_marvell_adds_up_as_its_divergence_does(tmp_path):
    results, record = audited(tmp_path, "marvell(s=4)")
    grown = [point["leak_auc"] for point in record["epochs"]["memory"]]
    each = results["sum_kl_per_release"] * record["tape"]["rows"] / record["tape"]["examples"] / 5
    for epoch, value in enumerate(grown, start=1):
        assert value == pytest.approx(gaussian_auc(epoch * each), abs=0.015)
    assert grown[-1] > grown[0] + 0.1
    assert results["memory_leak"] == pytest.approx(grown[-1], abs=0.01)  # as seen live
    assert record["epochs"]["energy"][-1]["leak_auc"] > 0.95


@pytest.mark.slow
def test_max_norm_leaks_nearly_all_labels(tmp_path):
    _, record = audited(tmp_path, "max_norm")
    assert record["epochs"]["memory"][-1]["leak_auc"] > 0.95
