"""The embeddings on a tape, matched with the features of their examples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from tacit.audit.feature_table import FeatureTable
from tacit.audit.input_leak import JUDGED, KNOWN
from tacit.errors import UsageError
from tacit.tape.tape import Recording

_MOST_EPOCHS = 32  # of a longer run, so many at equal distances
_PRESENT = 0.5  # share of the drawn examples that an epoch must have, or it is left out


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SentRows:
    """Examples that have both embeddings and features.

    Attributes:
        latest: [N, width], their embeddings in the last whole epoch.
        every: [N, epochs * width], those of all whole epochs side by side; None of one epoch.
        features: their features, in the same order.
        epochs: how many epochs ``every`` holds.
        width: of one embedding.
        sent: how many examples the tape's last whole epoch has.
        matched: how many of them have features; of many, some are drawn.
    """

    latest: npt.NDArray[np.float32]
    every: npt.NDArray[np.float32] | None
    features: FeatureTable
    epochs: int
    width: int
    sent: int
    matched: int

    @classmethod
    def of(cls, tape: Recording, features: FeatureTable, *, seed: int) -> SentRows:
        """Read a tape twice: to see which examples it has, and to take those that are drawn."""
        epochs, last, width = _whole_epochs(tape)
        by_id = features.rows_by_id(text=tape.names is not None)
        texts = {code: name for name, code in (tape.names or {}).items()}
        known = {code: by_id.get(texts.get(code, code)) for code in last.tolist()}
        common = [code for code, row in known.items() if row is not None]
        if not common:
            raise UsageError(
                f"{features.source}: has none of the {len(last)} ids of {tape.source}, such as "
                f"{texts.get(int(last[0]), int(last[0]))!r}: give the features of the same ids"
            )
        drawn = np.random.default_rng(seed).permutation(np.array(common))[: KNOWN + JUDGED]
        kept = np.empty((len(epochs), len(drawn), width), dtype=np.float32)
        kept.fill(np.nan)
        _fill(kept, tape, epochs, drawn)
        present = ~np.isnan(kept).any(axis=2)
        kept = kept[present.mean(axis=1) >= _PRESENT]  # the last epoch has them all
        rows = np.array([known[code] for code in drawn.tolist()], dtype=np.int64)
        return cls(
            latest=kept[-1],
            every=_side_by_side(kept) if len(kept) > 1 else None,
            features=features.take(rows),
            epochs=len(kept),
            width=width,
            sent=len(last),
            matched=len(common),
        )


def _whole_epochs(tape: Recording) -> tuple[list[int], npt.NDArray[np.int64], int]:
    """Return the epochs to use, the ids of the last of them, and the width of an embedding.

    An epoch with less than half as many rows as the largest has only begun, and is left out.
    """
    sizes: Counter[int] = Counter()
    ids: dict[int, list[npt.NDArray[np.int64]]] = {}
    width = 0
    for step in tape.sent():
        found = step.embeddings.flatten(1).shape[1]
        if width not in (0, found):
            raise UsageError(
                f"{tape.source}: has embeddings {found} and {width} wide: a tape is of one cut"
            )
        if not step.embeddings.isfinite().all():
            raise UsageError(
                f"{tape.source}: an embedding of epoch {step.epoch} is not finite: leave that "
                "step out"
            )
        width = found
        sizes[step.epoch] += len(step.ids)
        ids.setdefault(step.epoch, []).append(step.ids.numpy())
    if not sizes:
        raise UsageError(f"{tape.source}: holds no rows: record some steps first")
    whole = sorted(epoch for epoch, size in sizes.items() if 2 * size >= max(sizes.values()))
    spaced = np.linspace(0, len(whole) - 1, min(len(whole), _MOST_EPOCHS)).round().astype(int)
    return [whole[at] for at in spaced], np.unique(np.concatenate(ids[whole[-1]])), width


def _fill(
    kept: npt.NDArray[np.float32],
    tape: Recording,
    epochs: list[int],
    drawn: npt.NDArray[np.int64],
) -> None:
    """Copy the embeddings of the drawn examples; of one sent twice in an epoch, the later."""
    order = np.argsort(drawn)
    ordered, of = drawn[order], {epoch: at for at, epoch in enumerate(epochs)}
    for step in tape.sent():
        if step.epoch not in of:
            continue
        ids = step.ids.numpy()
        place = np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)
        mine = ordered[place] == ids
        rows = step.embeddings.flatten(1).float().numpy()
        kept[of[step.epoch], order[place[mine]]] = rows[mine]


def _side_by_side(kept: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return [N, epochs * width]; an example that an epoch left out has that epoch's mean."""
    means = np.nanmean(kept, axis=1, keepdims=True)
    filled = np.where(np.isnan(kept), means, kept)
    return np.asarray(filled.transpose(1, 0, 2).reshape(kept.shape[1], -1), dtype=np.float32)
