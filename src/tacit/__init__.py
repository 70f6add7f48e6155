"""tacit: split learning with label privacy.

Train one model across companies, keep the labels unsaid, and measure what still leaks::

    guard = tacit.Guard("marvell(s=4)")
    z = guard(bottom(x), y)        # identity forward, protected gradient backward

Names load when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tacit._version import __version__

if TYPE_CHECKING:
    from tacit import attack, errors, measure, protect, testing
    from tacit.guard import Guard
    from tacit.monitor import LeakMonitor
    from tacit.types import Certificate, Cut, Known, Release, Tape, View

__all__ = [
    "Certificate",
    "Cut",
    "Guard",
    "Known",
    "LeakMonitor",
    "Release",
    "Tape",
    "View",
    "__version__",
    "attack",
    "errors",
    "list_attacks",
    "list_protections",
    "measure",
    "protect",
    "testing",
]

_HOMES = {
    "Certificate": "types",
    "Cut": "types",
    "Guard": "guard",
    "Known": "types",
    "LeakMonitor": "monitor",
    "Release": "types",
    "Tape": "types",
    "View": "types",
}
_MODULES = {"attack", "errors", "measure", "protect", "testing"}


def list_protections() -> list[str]:
    """Return the name of every registered protection.

    >>> "marvell" in list_protections()
    True
    """
    from tacit.protect import PROTECTIONS  # noqa: PLC0415 - lazy, see above

    return PROTECTIONS.names()


def list_attacks() -> list[str]:
    """Return the name of every registered attack.

    >>> "energy" in list_attacks()
    True
    """
    from tacit.attack import ATTACKS  # noqa: PLC0415 - lazy, see above

    return ATTACKS.names()


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"tacit.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"tacit.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
