"""The tables and figures of the papers, one file each: a file that is added here adds a name.

A module of this package with a ``STUDY`` is one table or figure.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tacit.errors import SpecError
from tacit.papers._study import Cell, Finding, PaperClaim, Published, Spread, Study, Tabulated
from tacit.spec import nearest

__all__ = [
    "Cell",
    "Finding",
    "PaperClaim",
    "Published",
    "Spread",
    "Study",
    "Tabulated",
    "find",
    "studies",
]


def studies() -> list[Study]:
    """Return every study, by paper and in the order of the paper.

    >>> len({study.full_name for study in studies()}) == len(studies())
    True
    """
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names if name != "reproduce"]
    return [module.STUDY for module in modules if hasattr(module, "STUDY")]


def find(name: str) -> Study:
    """Return the study of that name, with or without its paper in front.

    >>> find("fig4-tradeoff") is find("marvell/fig4-tradeoff")
    True
    """
    known = {key: study for study in studies() for key in (study.full_name, study.name)}
    if name not in known:
        close = nearest(name, list(known))
        raise SpecError(f"NAME {name!r}: is no table or figure here: {close}")
    return known[name]
