"""What a paper says about its figures, checked: what was expected, and what came."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from tacit.papers.records import present
from tacit.papers.study import PaperClaim

_RULES = {
    "above": lambda value, limit: value > limit,
    "at least": lambda value, limit: value >= limit,
    "below": lambda value, limit: value < limit,
    "at most": lambda value, limit: value <= limit,
}


def bounded(
    text: str,
    *,
    source: str,
    values: Sequence[float | None],
    measured: str = "",
    **limits: float,
) -> PaperClaim:
    """Return the claim that all values lie within limits: above, at_least, below, at_most.

    >>> bounded("norm leaks", source="figure 2", values=[0.804], above=0.998).words
    'expected above 0.998, measured 0.804: does not hold'
    >>> bounded("norm leaks", source="figure 2", values=[None], above=0.998).words
    'expected above 0.998, measured nothing: cannot tell'
    """
    there = present(values)
    rules = {name.replace("_", " "): limit for name, limit in limits.items()}
    holds = all(_RULES[rule](value, limit) for rule, limit in rules.items() for value in there)
    return PaperClaim(
        text=text,
        source=source,
        holds=holds if there else None,
        expected=" and ".join(f"{rule} {limit:.4g}" for rule, limit in rules.items()),
        found=(measured or ", ".join(f"{value:.3f}" for value in there)) if there else "nothing",
    )


def below(
    text: str,
    *,
    source: str,
    pairs: Sequence[tuple[float | None, float | None]],
    by: float = 0.0,
) -> PaperClaim:
    """Return the claim that the first of every pair is below the second, by more than ``by``.

    >>> below("less noise", source="text", pairs=[(0.6, 0.5), (0.2, 0.4)]).words
    'expected below 0.500, below 0.400, measured 0.600, 0.200: does not hold'
    >>> below("the least of all", source="text", pairs=[(0.2, 0.5), (0.2, 0.4)]).words
    'expected below 0.500, below 0.400, measured 0.200: holds'
    """
    there = [(a, b) for a, b in pairs if a is not None and b is not None]
    return PaperClaim(
        text=text,
        source=source,
        holds=all(a < b - by for a, b in there) if there else None,
        expected=_each(f"below {b - by:.3f}" for _, b in there) or "a smaller value",
        found=_each(f"{a:.3f}" for a, _ in there) or "nothing",
    )


def _each(words: Iterable[str]) -> str:
    """Return words in their order, equal ones once where they follow each other."""
    return ", ".join(word for word, _ in itertools.groupby(words))


def falling(
    text: str, *, source: str, values: Sequence[float | None], slack: float = 0.0
) -> PaperClaim:
    """Return the claim that no value exceeds the one before it by more than ``slack``.

    >>> falling("stronger leaks less", source="text", values=[0.9, 0.7, 0.8]).words
    'expected each at most the one before, measured 0.900, 0.700, 0.800: does not hold'
    """
    there = present(values)
    room = f" + {slack:g}" if slack else ""
    right = [b <= a + slack for a, b in itertools.pairwise(there)]
    return PaperClaim(
        text=text,
        source=source,
        holds=all(right) if right else None,
        expected=f"each at most the one before{room}",
        found=", ".join(f"{value:.3f}" for value in there) or "nothing",
    )
