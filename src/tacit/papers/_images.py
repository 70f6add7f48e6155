"""What ExPLOit's figures have in common: its data sets, its two cuts and its attacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._reading import number, spread
from tacit.papers._study import Spread

QUICK = "exploit(trials=1, examples=1000)"
_PAPER = "exploit(trials=0, ranges=paper, choose=gradient)"
_MODELS = {
    "mnist": "mnist_conv(config={})",
    "fashion_mnist": "mnist_conv(config={})",
    "cifar10": "resnet(config={})",
    "cifar100": "resnet(config={})",
    "criteo": "exploit_criteo(config={})",
    "criteo_conversion": "exploit_criteo(config={})",
}
_ROWS = {"mnist": 3000, "fashion_mnist": 3000, "cifar10": 2000, "criteo": 8000}
_VISION = ("mnist", "fashion_mnist", "cifar10", "cifar100")
SCALED = (
    "3,000 images of MNIST and Fashion-MNIST, 2,000 of CIFAR-10 and 8,000 rows of Criteo, 4 "
    "epochs, in place of all rows and 10 epochs (5 for Criteo); no CIFAR-100",
    "one replay on 1,000 examples, in place of 500 trials on all",
)
DEPARTS = (
    "Criteo's click log stands in for its conversion log, unless that is there and --full",
    "what exploit does differently from the paper is in its description (`tacit list attacks`)",
    "batches of 64 images or 256 rows: the paper does not say",
)


def sets(full: bool, *, configs: Sequence[int] = (1, 2)) -> list[dict[str, Any]]:
    """Return the setting of every data set and cut."""
    names = [*_VISION, "criteo_conversion"] if full else list(_ROWS)
    found = []
    for name in names:
        vision = name in _VISION
        values = {
            "dataset": name,
            "lr": 1e-3,
            "batch_size": 64 if vision else 256,
            "rows": None if full else _ROWS[name],
            "epochs": (10 if vision else 5) if full else 4,
        }
        found += [{**values, "model": _MODELS[name].format(k)} for k in configs]
    return found


def attack_of(full: bool) -> str:
    """Return how ExPLOit is run."""
    return _PAPER if full else QUICK


def config_of(record: TrialRecord) -> int:
    """Return which of the two cuts a trial has."""
    return 2 if "config=2" in str(record.config["model"]) else 1


def named(record: TrialRecord, name: str) -> str | None:
    """Return the attack of a trial that starts with a name."""
    attacks = (record.results or {}).get("attacks", {})
    return next((spec for spec in attacks if spec.split("(")[0] == name), None)


def accuracy(record: TrialRecord, name: str) -> float | None:
    """Return an attack's clustering accuracy after the last epoch."""
    spec = named(record, name)
    return None if spec is None else number(record, f"attacks.{spec}.accuracy")


def accuracies(record: TrialRecord, name: str) -> list[float | None]:
    """Return an attack's clustering accuracy after every epoch."""
    spec = named(record, name)
    if spec is None:
        return []
    epochs = (record.results or {})["attacks"][spec]["epochs"]
    return [epoch["accuracy"] for epoch in epochs]


def over(records: Sequence[TrialRecord], name: str) -> Spread | None:
    """Return an attack's accuracy over trials."""
    return spread(accuracy(record, name) for record in records)
