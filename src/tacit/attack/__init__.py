"""Attacks: what a feature party can read out of the gradients that it is sent."""

from tacit.attack.base import (
    ATTACKS,
    Attack,
    AuditForm,
    Cause,
    LabelledAttack,
    PreparedView,
    Scored,
    StreamingAttack,
)
from tacit.attack.scoring import Cosine, Hint, Majority, Mean, Median, Norm

# Attacks are listed in the order of their import, and the published ones come first.
# isort: split
from tacit.attack.clustering import KMeans
from tacit.attack.learned.gradient_matching import Exploit, Unsplit
from tacit.attack.learned.model_completion import Completion
from tacit.attack.lowbits import LowBits
from tacit.attack.memory import Memory
from tacit.attack.spectral import Energy, Principal
from tacit.attack.supervised import Supervised

__all__ = [
    "ATTACKS",
    "Attack",
    "AuditForm",
    "Cause",
    "Completion",
    "Cosine",
    "Energy",
    "Exploit",
    "Hint",
    "KMeans",
    "LabelledAttack",
    "LowBits",
    "Majority",
    "Mean",
    "Median",
    "Memory",
    "Norm",
    "PreparedView",
    "Principal",
    "Scored",
    "StreamingAttack",
    "Supervised",
    "Unsplit",
    "get",
    "names",
]


def get(spec: str | Attack) -> Attack:
    """Return the attack that a spec string describes; an attack is returned as it is.

    >>> get("hint(k=3, by=cosine)")
    Hint(k=3, by='cosine', use='nearest')
    """
    return spec if isinstance(spec, Attack) else ATTACKS.get(spec)


def names() -> list[str]:
    """Return the name of every registered attack.

    >>> names()[:3]
    ['norm', 'cosine', 'majority']
    """
    return ATTACKS.names()
