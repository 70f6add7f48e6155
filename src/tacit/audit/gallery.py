"""Examples with the labels that an attack recovered, for data that can be shown as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tacit.audit.attack_run import Clustering
from tacit.audit.truth import Truth
from tacit.errors import UsageError
from tacit.measure import clustering_names
from tacit.tape.tape import Recording

Ids = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

_SHOWN = 24
_MORE = 12  # wrong ones shown besides, where
_FEW = 6  # fewer of those that were drawn are wrong
_KINDS = (1, 3)  # channels: grey, or red, green and blue


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Images:
    """Pictures of the examples of a tape: row ``i`` shows example ``i``.

    Attributes:
        pixels: bytes [rows, channels, height, width], of one channel (grey) or three (colour).
        source: what the pictures are called.
        labels: the class of each row: a tape whose truth says otherwise is of other data.
        ids: the text id of each row, for tapes whose ids are text.
        class_names: what the classes are called; otherwise they are numbers.
        reason: why there are no pictures, in one line.
        required: refuse pictures that do not fit the tape; otherwise the page says why none are
            shown.
    """

    pixels: npt.NDArray[Any]
    source: str = "the images given"
    labels: npt.NDArray[Any] | None = None
    ids: npt.NDArray[Any] | None = None
    class_names: tuple[str, ...] = ()
    reason: str = ""
    required: bool = True

    def __post_init__(self) -> None:
        shape = self.pixels.shape
        if self.pixels.dtype != np.uint8 or len(shape) != 4 or shape[1] not in _KINDS:
            raise UsageError(
                f"{self.source}: pictures are bytes [rows, 1 or 3 channels, height, width], "
                f"got {self.pixels.dtype} {shape}"
            )
        for name, given in (("labels", self.labels), ("ids", self.ids)):
            if given is not None and len(given) != shape[0]:
                raise UsageError(
                    f"{self.source}: has {len(given)} {name} for {shape[0]} pictures: "
                    "give one for each"
                )

    @classmethod
    def none(cls, source: str, reason: str) -> Images:
        """Return no pictures, and why."""
        empty = np.zeros((0, 1, 1, 1), dtype=np.uint8)
        return cls(pixels=empty, source=source, reason=reason, required=False)


@final
@dataclass(frozen=True, eq=False)
class RecoveredLabels:
    """Examples with their classes, and what an attack takes them for (-1: it cannot name it)."""

    ids: Ids
    labels: Ids
    found: Ids

    @classmethod
    def of(cls, clustering: Clustering) -> RecoveredLabels:
        """Return the classes after which the groups of an attack are named."""
        labels = clustering.labels.numpy()
        found = clustering_names(clustering.groups.numpy(), labels)
        return cls(clustering.ids.numpy(), labels, found)

    def drawn(self, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Return indices of random examples, and of more wrong ones if few of those are wrong.

        Attacks that classified the same examples show the same ones.
        """
        _, first = np.unique(self.ids, return_index=True)  # in the order of ids
        chosen = rng.permutation(first)[:_SHOWN]
        wrong = self.found != self.labels
        left = np.setdiff1d(first[wrong[first]], chosen)
        more = left[:0] if wrong[chosen].sum() >= _FEW else rng.permutation(left)[:_MORE]
        return self._by_class(chosen), self._by_class(more)

    def _by_class(self, indices: Ids) -> Ids:
        return indices[np.lexsort((self.ids[indices], self.labels[indices]))]


@final
@dataclass(frozen=True, eq=False)
class Gallery:
    """Pictures that match a tape's examples, or the reason why none are shown."""

    images: Images
    reason: str
    texts: dict[int, str]
    rows: dict[str, int]

    @classmethod
    def over(cls, images: Images, tape: Recording, truth: Truth) -> Gallery:
        """Match pictures to a tape's examples; those that were asked for must fit."""
        texts = {code: name for name, code in (tape.names or {}).items()}
        known = images.ids if texts and images.ids is not None else ()
        rows = {str(name): row for row, name in enumerate(known)}
        gallery = cls(images, images.reason, texts, rows)
        reason = images.reason or gallery._misfit(truth, tape.source)
        if reason and images.required:
            raise UsageError(reason)
        return replace(gallery, reason=reason)

    def record(
        self, recovered: Mapping[str, RecoveredLabels], *, seed: int
    ) -> tuple[dict[str, Any] | None, dict[str, Pixels]]:
        """Return what is shown of each attack, and the pictures by id."""
        if not recovered:
            return None, {}
        about = {
            "source": self.images.source,
            "reason": self.reason or None,
            "seed": seed,
            "class_names": list(self.images.class_names),
        }
        if self.reason:
            return {**about, "attacks": {}}, {}
        attacks: dict[str, Any] = {}
        pixels: dict[str, Pixels] = {}
        for name, each in recovered.items():
            drawn, more = each.drawn(np.random.default_rng(seed))
            attacks[name] = {
                "examples": len(each.ids),
                "wrong": int((each.found != each.labels).sum()),
                "drawn": [self._one(each, at) for at in drawn.tolist()],
                "more_wrong": [self._one(each, at) for at in more.tolist()],
            }
            ids = each.ids[np.concatenate([drawn, more])]
            shown = np.asarray(self.images.pixels[self._rows(ids)])
            pixels |= dict(zip(map(self._text, ids.tolist()), shown, strict=True))
        return {**about, "attacks": attacks}, pixels

    def _one(self, each: RecoveredLabels, at: int) -> dict[str, Any]:
        found = int(each.found[at])
        return {
            "id": self._text(int(each.ids[at])),
            "label": int(each.labels[at]),
            "recovered": found if found >= 0 else None,
        }

    def _text(self, code: int) -> str:
        return self.texts.get(code, str(code))

    def _rows(self, ids: Ids) -> Ids:
        """Return the row of each example's picture, -1 where there is none."""
        if self.texts:
            return np.array(
                [self.rows.get(self._text(i), -1) for i in ids.tolist()], dtype=np.int64
            )
        return np.where((ids >= 0) & (ids < len(self.images.pixels)), ids, -1)

    def _misfit(self, truth: Truth, source: str) -> str:
        """Return why the pictures do not match a tape's examples, or an empty text."""
        images, rows = self.images, self._rows(truth.ids)
        outside = np.flatnonzero(rows < 0)
        if len(outside):
            example = self._text(int(truth.ids[outside[0]]))
            return (
                f"{images.source} has {len(images.pixels)} pictures, none for {len(outside)} of "
                f"{len(rows)} ids of {source}, the first is {example!r}: an id is the row of its "
                "picture, name the data that was trained on"
            )
        if images.labels is None:
            return ""
        other = np.flatnonzero(np.asarray(images.labels)[rows] != truth.labels)
        if not len(other):
            return ""
        first = int(other[0])
        return (
            f"{images.source} has another label than {truth.source} for {len(other)} of "
            f"{len(rows)} examples, the first is id {self._text(int(truth.ids[first]))} with "
            f"{int(images.labels[rows[first]])} instead of {int(truth.labels[first])}: "
            "name the data that was trained on"
        )
