"""Attacks: what a feature party can read out of the gradients that it is sent."""

from tacit.attack.base import ATTACKS, Attack, Sight
from tacit.attack.oracle import reveal
from tacit.attack.scoring import Cosine, Hint, Majority, Mean, Median, Norm
from tacit.attack.spectral import Energy, Principal

__all__ = [
    "ATTACKS",
    "Attack",
    "Cosine",
    "Energy",
    "Hint",
    "Majority",
    "Mean",
    "Median",
    "Norm",
    "Principal",
    "Sight",
    "get",
    "names",
    "reveal",
]


def get(spec: str | Attack) -> Attack:
    """Return the attack that a spec string describes; an attack is returned as it is.

    >>> get("hint(k=3, by=cosine)")
    Hint(k=3, by='cosine')
    """
    return spec if isinstance(spec, Attack) else ATTACKS.get(spec)


def names() -> list[str]:
    """Return the name of every registered attack.

    >>> names()[:3]
    ['norm', 'cosine', 'majority']
    """
    return ATTACKS.names()
