"""The head on uploaded embeddings: trained where the labels are, when no feature party is there.

Nothing that happens here can be seen by anybody else, so it may depend on true labels: when it
stops, which epoch is kept, and what fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit import _config as defaults
from tacit import data, heads, nets
from tacit.atomic import write_whole
from tacit.data.draws import permutation
from tacit.errors import InputError, UsageError
from tacit.heads import EmbeddedRows, FittedHead, Head, HeadEpoch, HeadSettings
from tacit.party.config import PartyConfig
from tacit.party.embeddings import StoredEmbeddings
from tacit.party.state_files import Log
from tacit.state_dir import StateFolder
from tacit.training.metrics import utility
from tacit.wire.psi.align import Alignment

FACTS = "head.json"
_FORMAT = 1
Indices = npt.NDArray[np.int64]
_TRAINED = ("epochs", "batch_size", "lr", "weight_decay")


def head_of(config: PartyConfig) -> Head:
    """Return the head that a configuration names, or refuse it before any peer is there."""
    head = heads.get(config.head or "net")
    head.check()
    return head


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class HeadRows:
    """Which common rows a head is trained on, chosen by, and measured on."""

    train: Indices
    held: Indices
    test: Indices

    @classmethod
    def of(cls, config: PartyConfig, count: int) -> HeadRows:
        """Return the rows by their positions: those of any training with these settings.

        The test rows are those of a training with gradients. Rows to choose by are taken from the
        others; too few of them are refused.
        """
        shuffled = permutation(count, "split", config.seed)
        test = round(count * config.test_percent / 100)
        rows = shuffled[test:]
        share = defaults.SILENT["hold_out"] if config.hold_out is None else config.hold_out
        held = round(len(rows) * share)
        if held < 2 or len(rows) - held < 2:
            raise InputError(
                f"{count} common examples leave {len(rows)} to train on and to choose an epoch by, "
                f"{held} of them to choose by: take a smaller test_percent, or more rows"
            )
        return cls(train=rows[held:], held=rows[:held], test=shuffled[:test])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class PartyHead:
    """A label party's head after its training, and how that went."""

    head: Head
    fitted: FittedHead
    history: list[dict[str, Any]]
    test: dict[str, float] | None

    def record(self) -> dict[str, Any]:
        """Return what results say of it."""
        found = asdict(self.fitted.fitted)
        return {**self.head.describe(), **{k: v for k, v in found.items() if k != "losses"}}


def embedded_rows(
    table: data.PartyTable, common: Alignment, stored: Sequence[StoredEmbeddings]
) -> EmbeddedRows:
    """Return what a head sees of the common rows: embeddings side by side, and own columns."""
    parts = [held.rows() for held in stored]
    embeddings = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    inputs = nets.Inputs(*table.inputs)
    if not inputs.columns:
        return EmbeddedRows(embeddings=embeddings)
    numeric, codes = table.take(common.order)  # once: a batch then takes no longer than it must
    return EmbeddedRows(
        embeddings=embeddings, inputs=inputs, source=lambda rows: (numeric[rows], codes[rows])
    )


def train_head(
    config: PartyConfig,
    head: Head,
    *,
    table: data.PartyTable,
    common: Alignment,
    stored: Sequence[StoredEmbeddings],
    log: Log,
) -> PartyHead:
    """Train a head on true labels, and measure it on the test rows after each epoch.

    Only held-out training rows choose and stop; the test rows are for the eye.
    """
    assert table.classes is not None and table.labels is not None  # noqa: S101, PT018
    rows = HeadRows.of(config, len(common))
    labels = torch.from_numpy(np.asarray(table.labels)[common.order])
    if len(torch.unique(labels[torch.from_numpy(rows.train)])) < 2:
        raise UsageError(
            f"data {config.data}: the {len(rows.train)} common rows to train on have labels of one "
            "class only: give more rows; the embeddings are kept"
        )
    examples, test = embedded_rows(table, common, stored), torch.from_numpy(rows.test)
    history: list[dict[str, Any]] = []

    def done(end: HeadEpoch) -> None:
        found = _measured(end.head, examples, test, labels)
        history.append(_part(end, found))
        shown = "" if found is None else ", ".join(f"test {k} {v:.4f}" for k, v in found.items())
        log(f"head: epoch {end.number} of {end.most}, loss {end.loss:.4f}, {shown}".rstrip(", "))

    log(f"the head {head} is trained on {len(rows.train)} rows; no feature party is there")
    fitted = head.fit(
        examples,
        labels,
        train=torch.from_numpy(rows.train),
        held=torch.from_numpy(rows.held),
        classes=table.classes,
        settings=_settings(config),
        done=done,
    )
    measured = _measured(fitted, examples, test, labels)
    return PartyHead(head=head, fitted=fitted, history=history, test=measured)


def keep_head(
    folder: StateFolder, trained: PartyHead, *, width: int, classes: int, steps: int | None = None
) -> None:
    """Store a head in the label party's state folder; it never leaves it.

    ``steps`` were taken by the bottoms that it goes with; None where they are frozen.
    """
    name = f"head.{trained.head.suffix}"
    write_whole(folder.path / name, trained.fitted.to_bytes())
    facts = {"format": _FORMAT, "head": str(trained.head), "width": width, "classes": classes}
    folder.write(FACTS, {**facts, "file": name, "steps": steps})


def read_head(folder: StateFolder, inputs: nets.Inputs, *, steps: int | None = None) -> FittedHead:
    """Return the head in a state folder; one of bottoms after other ``steps`` is refused."""
    facts = folder.read(FACTS)
    content = None if facts is None else folder.read_bytes(facts["file"])
    if facts is None or content is None:
        raise UsageError(f"{folder.path}: there is no trained head: run tacit party first")
    if facts["format"] != _FORMAT:
        raise UsageError(
            f"{folder.path / FACTS}: format {facts['format']}, this is format {_FORMAT}: use the "
            "version that wrote it"
        )
    if facts.get("steps") != steps:
        raise UsageError(
            f"{folder.path / FACTS}: this head goes with the bottom models after "
            f"{facts.get('steps')} steps, and they have {steps}: run tacit party to its end first"
        )
    return heads.get(facts["head"]).load(
        content,
        width=facts["width"],
        inputs=inputs if inputs.columns else None,
        classes=facts["classes"],
    )


def _settings(config: PartyConfig) -> HeadSettings:
    """Return how a head is trained: beside a training with gradients, as where there are none."""
    asked = vars(config) if config.silent else defaults.SILENT
    return HeadSettings(seed=config.seed, **{name: asked[name] for name in _TRAINED})


def _measured(
    head: FittedHead, examples: EmbeddedRows, test: Tensor, labels: Tensor
) -> dict[str, float] | None:
    if not len(test):
        return None
    return utility(head.predict(examples, test).numpy(), labels[test].numpy())


def _part(end: HeadEpoch, test: dict[str, float] | None) -> dict[str, Any]:
    """Return what the history keeps of an epoch, in the form of any other run."""
    return {
        "epoch": end.number - 1,
        "loss": end.loss,
        "test": test,
        "leak": {},
        "memory_leak": None,
        "embedding_leak": None,
    }
