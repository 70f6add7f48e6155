"""The values of a label column: which one is likely to count as 1, and how to list them."""

from __future__ import annotations

from collections.abc import Mapping

POSITIVE_WORDS = (
    *("1", "yes", "y", "true", "t", "positive", "pos", "p"),
    *("click", "clicked", "converted", "bought", "default", "fraud", "churn", "churned", "spam"),
)
_LISTED = 6


def likely_positive(counts: Mapping[str, int]) -> str:
    """Return the value that is likely to count as 1: one that says so, or the rarest.

    >>> likely_positive({"no": 880, "Yes": 120}), likely_positive({"blue": 7, "red": 3})
    ('Yes', 'red')
    """
    by_word = [value for value in counts if value.lower() in POSITIVE_WORDS]
    return by_word[0] if len(by_word) == 1 else min(counts, key=lambda v: (counts[v], v))


def listed(counts: Mapping[str, int]) -> str:
    """Return the values with how often each is there, the most frequent first.

    >>> listed({"yes": 120, "no": 1880})
    "'no' (1,880), 'yes' (120)"
    """
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    shown = [f"{value[:40]!r} ({counts[value]:,})" for value in ranked[:_LISTED]]
    rest = len(ranked) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")
