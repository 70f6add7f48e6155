"""tacit: split learning with label privacy.

Train one model across companies, keep the labels private, and measure what still leaks::

    guard = tacit.Guard("marvell(s=4, covariance=full)")
    z = guard(bottom(x), y)        # identity forward, protected gradient backward

Names load when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tacit._version import __version__

if TYPE_CHECKING:
    from tacit import (
        accounting,
        attack,
        audit,
        data,
        errors,
        evaluate,
        measure,
        nets,
        protect,
        testing,
    )
    from tacit.audit import AuditResult, run_audit
    from tacit.guard import Guard
    from tacit.monitor import LeakMonitor
    from tacit.tape import TapeWriter
    from tacit.training import FeatureParty, LabelParty
    from tacit.types import Certificate, Cut, Known, Release, Tape, View

__all__ = [
    "AuditResult",
    "Certificate",
    "Cut",
    "FeatureParty",
    "Guard",
    "Known",
    "LabelParty",
    "LeakMonitor",
    "Release",
    "Tape",
    "TapeWriter",
    "View",
    "__version__",
    "accounting",
    "attack",
    "audit",
    "data",
    "errors",
    "evaluate",
    "list_attacks",
    "list_datasets",
    "list_models",
    "list_protections",
    "measure",
    "nets",
    "protect",
    "run_audit",
    "testing",
]

_HOMES = {
    "AuditResult": "audit",
    "Certificate": "types",
    "Cut": "types",
    "FeatureParty": "training",
    "Guard": "guard",
    "Known": "types",
    "LabelParty": "training",
    "LeakMonitor": "monitor",
    "Release": "types",
    "Tape": "types",
    "TapeWriter": "tape",
    "View": "types",
    "run_audit": "audit",
}
_MODULES = {
    "accounting",
    "attack",
    "audit",
    "data",
    "errors",
    "evaluate",
    "measure",
    "nets",
    "protect",
    "testing",
}


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


def list_datasets() -> list[str]:
    """Return the name of every data set that can be loaded by name.

    >>> "ads" in list_datasets()
    True
    """
    from tacit.data import names  # noqa: PLC0415 - lazy, see above

    return list(names())


def list_models() -> list[str]:
    """Return the name of every registered model.

    >>> "wdl" in list_models()
    True
    """
    from tacit.nets import MODELS  # noqa: PLC0415 - lazy, see above

    return MODELS.names()


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"tacit.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"tacit.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
