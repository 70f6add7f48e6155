"""Chains: protections that are applied one after the other, also just one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

from tacit.errors import SpecError
from tacit.protect.base import PROTECTIONS, Batch, Draft, Protection
from tacit.rng import Stream
from tacit.rows import exponent
from tacit.spec import parse


@final
@dataclass(frozen=True)
class Chain:
    """Several protections, each applied to the result of the one before it; also just one.

    Guarantee: the strongest of the last stage that looks at labels and of all after it; processing
    that looks at the release only cannot undo a bound, a stage that looks at labels again can.

    >>> str(get("max_norm|gaussian( 0.10 )"))
    'max_norm | gaussian(sigma=0.1)'
    """

    stages: tuple[Protection[Any], ...]

    @cached_property
    def needs(self) -> frozenset[str]:
        """What any of the stages needs in the cut."""
        return frozenset().union(*(stage.needs for stage in self.stages))

    @cached_property
    def identity(self) -> bool:
        """Whether no stage changes anything."""
        return all(stage.identity for stage in self.stages)

    @property
    def raw_rows(self) -> int:
        """How many rows of a batch every stage may leave as they are."""
        return min(stage.raw_rows for stage in self.stages)

    @property
    def scale_free(self) -> bool:
        """Whether no stage has parameters in absolute units."""
        return all(stage.scale_free for stage in self.stages)

    @cached_property
    def memory_types(self) -> tuple[type, ...]:
        """The dataclasses that any of the stages remembers, each once."""
        return tuple(dict.fromkeys(kind for stage in self.stages for kind in stage.memory_types))

    def classes_seen(self, memory: tuple[object, ...] | None) -> int:
        """Return how many classes the stages remember; 2 where none remembers any."""
        if memory is None:
            return 2
        pairs = zip(self.stages, memory, strict=True)
        return max(stage.classes_seen(held) for stage, held in pairs)

    def apply(self, batch: Batch, stream: Stream, memory: tuple[object, ...] | None) -> Draft:
        """Return the rows after the last stage, with every stage's plan."""
        memories = memory or (None,) * len(self.stages)
        drafts: list[Draft] = []
        for stage, remembered in zip(self.stages, memories, strict=True):
            if drafts:
                rows = drafts[-1].rows
                batch = replace(batch, rows=rows, exponent=exponent(rows, name="chained grads"))
            drafts.append(stage.apply(batch, stream, remembered))
        return Draft(
            rows=drafts[-1].rows,
            plans=tuple(plan for draft in drafts for plan in draft.plans),
            given=tuple(rows for draft in drafts for rows in draft.given),
            memory=tuple(draft.memory for draft in drafts),
        )

    def __str__(self) -> str:
        return " | ".join(str(stage) for stage in self.stages)


def get(spec: str | Protection[Any] | Chain) -> Chain:
    """Return the protection that a spec string describes, as a chain of one stage or more."""
    if isinstance(spec, Chain):
        return spec
    if isinstance(spec, Protection):
        return Chain((spec,))
    items = parse(spec, kind="protection")
    if any(item.name == "silent" for item in items):
        raise SpecError(
            f"protection {spec!r}: silent is a mode of a whole training, in which no gradient "
            "is sent: use protect silent alone, with tacit train or tacit party"
        )
    return Chain(tuple(PROTECTIONS.build(item) for item in items))
