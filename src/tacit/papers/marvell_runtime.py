"""Marvell (ICLR 2022), table 1: how much of an update Marvell takes, on three shapes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep_store import TrialRecord
from tacit.papers.study import (
    Finding,
    PaperClaim,
    Published,
    Study,
    Tabulated,
    published_table,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tacit.guard import Guard
    from tacit.protect import Chain
    from tacit.training import FeatureParty, LabelParty


_PAPER = {row["shape"]: row for row in published_table("marvell_table1")}
_TIMED = {"Marvell, seconds": "Marvell", "update, seconds": "update"}
_WARM = 4  # updates before the timed ones
_MOST = 0.12


def _plan(full: bool) -> list[dict[str, Any]]:
    """Return one trial per shape; ``monitor_every`` is how many updates are timed."""
    steps = (200, 1000, 50) if full else (8, 200, 8)
    every: dict[str, Any] = {"protect": "marvell(s=4)", "lr": 1e-4, "attacks": ()}
    return [
        {
            **every,
            "dataset": "ads",
            "rows": 1280,
            "model": "isic_conv",
            "batch_size": 128,
            "lr": 1e-5,
            "monitor_every": steps[0],
        },
        {**every, "dataset": "criteo", "model": "wdl", "monitor_every": steps[1]},
        {
            **every,
            "dataset": "avazu",
            "model": "wdl",
            "batch_size": 32768,
            "monitor_every": steps[2],
        },
    ]


@final
class _Stopwatch:
    """Another object, with the calls of one method timed."""

    def __init__(self, target: object, method: str) -> None:
        self._target, self._method = target, method
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the target has
        found = getattr(self._target, name)
        return self._timed(found) if name == self._method else found

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*values: Any) -> Any:  # noqa: ANN401 - what the method takes and returns
            start = time.perf_counter()
            result = call(*values)
            self.seconds.append(time.perf_counter() - start)
            return result

        return run


def time_updates(config: TrainConfig) -> dict[str, Any]:
    """Return the seconds of every update, of the release in it, and of Marvell in that."""
    from tacit.training import train  # noqa: PLC0415 - loads torch

    feature, label, batches = _image_parties(config) if _is_conv(config) else _table_parties(config)
    noise = _Stopwatch(label.guard.protection, "apply")
    label.guard.protection = cast("Chain", noise)
    watch = _Stopwatch(label.guard, "release")
    label.guard = cast("Guard", watch)
    updates: list[float] = []
    for step, rows in zip(range(config.monitor_every + _WARM), batches, strict=False):
        start = time.perf_counter()
        list(train([rows], features=[feature], label=label, first=step))
        updates.append(time.perf_counter() - start)
    width = int(feature.embed(rows[:2]).flatten(1).shape[1])
    return {
        "batch": len(rows),
        "width": width,
        "updates": updates[_WARM:],
        "releases": watch.seconds[_WARM:],
        "noise": noise.seconds[_WARM:],
    }


def _is_conv(config: TrainConfig) -> bool:
    return config.model.startswith("isic_conv")


def _table_parties(config: TrainConfig) -> tuple[FeatureParty, LabelParty, Iterator[Tensor]]:

    from tacit.experiment.run import Experiment  # noqa: PLC0415 - loads torch

    enough = config.monitor_every + _WARM  # an epoch has a step at least
    trial = Experiment(config.model_copy(update={"epochs": enough}))
    rows = (batch for part in trial.schedule.parts(first=0) for batch in part.batches)
    return trial.features[0], trial.label, rows


def _image_parties(config: TrainConfig) -> tuple[FeatureParty, LabelParty, Iterator[Tensor]]:
    """Return parties that train on random images: time does not depend on what they show."""
    import torch  # noqa: PLC0415 - torch loads only when it is used

    from tacit import nets, objective  # noqa: PLC0415
    from tacit.guard.guard import Guard  # noqa: PLC0415
    from tacit.training import FeatureParty, LabelParty, adam  # noqa: PLC0415

    architecture = nets.get(config.model)
    size = int(getattr(architecture, "size", 84))
    inputs = nets.Inputs(numeric=3 * size * size, image=(3, size, size))
    model = architecture.build(
        parties=[inputs], own=None, cut=config.cut, combine="sum", classes=2, seed=config.seed
    )
    rng = torch.Generator().manual_seed(config.seed)
    pixels = torch.rand(config.batch_size, inputs.numeric, generator=rng)
    labels = (torch.rand(config.batch_size, generator=rng) < 0.1).long()
    codes = torch.zeros(config.batch_size, 0, dtype=torch.int64)
    bottom, everything = model.bottoms[0], torch.arange(config.batch_size)
    feature = FeatureParty(
        bottom, lambda rows: (pixels[rows], codes[rows]), optimizer=adam(bottom, config.lr)
    )
    label = LabelParty(
        model.top,
        labels,
        guard=Guard(config.protect, seed=config.seed, classes=2),
        objective=objective.get("bce"),
        optimizer=adam(model.top, config.lr),
        early=False,
    )
    return feature, label, iter(lambda: everything, None)


def _read(records: Sequence[TrialRecord]) -> Finding:
    rows, shares = [], {}
    for record in records:
        found = record.results or {}
        noise, releases, updates = (
            np.array(found[key]) for key in ("noise", "releases", "updates")
        )
        name = _name(found)
        share, reach = _interval(noise / updates)
        whole, beside = _interval(releases / updates)
        shares[name] = share, whole
        rows.append(
            [
                name,
                found["batch"],
                found["width"],
                len(updates),
                _shown(*_interval(noise)),
                _shown(*_interval(updates)),
                f"{share:.1%} ± {reach:.1%}",
                f"{whole:.1%} ± {beside:.1%}",
                *_paper_cells(name),
            ]
        )
    table = Tabulated(
        title="Marvell (s = 4): seconds of it and of an update, with 95% intervals",
        header=[
            "shape",
            "batch",
            "width",
            "updates",
            "Marvell, s",
            "update, s",
            "share",
            "share of the whole release",
            "paper: Marvell, s",
            "paper: update, s",
            "paper: share",
        ],
        rows=rows,
        note="Marvell is what the paper times: class statistics, solver and noise. The whole "
        "release has every check, the key of its noise and the certificate as well.",
    )
    most = max(whole for _, whole in shares.values())
    claim = PaperClaim(
        text="Marvell takes a very small part of an update, which is a CPU step here",
        source="A.5.2",
        holds=most <= _MOST,
        expected=f"a whole release of at most {_MOST:.0%}",
        found=", ".join(
            f"{name} {share:.1%} (whole release {whole:.1%})"
            for name, (share, whole) in shares.items()
        ),
    )
    return Finding(tables=[table], claims=[claim])


def _name(found: Any) -> str:  # noqa: ANN401 - results of a trial
    shape = (found["batch"], found["width"])
    known = {(int(row["batch size"]), int(row["cut width"])): name for name, row in _PAPER.items()}
    return known.get(shape, f"{shape}")


def _published(name: str, what: str) -> tuple[float, float]:
    """Return the paper's seconds of a shape, and the reach of their interval."""
    return float(_PAPER[name][f"{what} seconds"]), float(_PAPER[name][f"{what} ±"])


def _paper_cells(name: str) -> list[str | None]:
    if name not in _PAPER:
        return [None, None, None]
    marvell, update = (_published(name, what) for what in ("Marvell", "update"))
    return [
        _shown(*marvell),
        f"{update[0]:.3g} ± {update[1]:.2g}",
        f"{marvell[0] / update[0]:.1%}",
    ]


def _interval(values: Any) -> tuple[float, float]:  # noqa: ANN401 - an array
    """Return a mean and the reach of its 95% interval."""
    reach = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0
    return float(np.mean(values)), float(reach)


def _shown(mean: float, reach: float) -> str:
    return f"{mean:.3g} ± {reach:.1g}"


STUDIES = (
    Study(
        name="table1-runtime",
        paper="marvell",
        title="Marvell's share of an update",
        place="table 1, A.5.2",
        plan=_plan,
        read=_read,
        scaled=("8, 200 and 8 timed updates on the three shapes, in place of 200, 1000 and 50",),
        departs=(
            "one thread of a CPU in place of a GPU; the paper's update reads its data on the way",
            "the ISIC shape is timed on random pictures of 84 x 84: time does not depend on them",
            "Criteo's and Avazu's embeddings are as large as the samples of them that are here",
        ),
        published=[
            Published(what=f"{name}: {what}", value=value, sd=reach, source="table 1")
            for name in _PAPER
            for what, column in _TIMED.items()
            for value, reach in [_published(name, column)]
        ],
        task="tacit.papers.marvell_runtime:time_updates",
        alone=True,
    ),
)
