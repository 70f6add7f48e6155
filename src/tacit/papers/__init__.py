"""The tables and figures of the papers: every module with ``STUDIES`` adds some."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tacit.errors import SpecError
from tacit.papers.study import Cell, Finding, PaperClaim, Published, Spread, Study, Tabulated
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
    """Return every study, by the name of its paper and its own.

    >>> len({study.full_name for study in studies()}) == len(studies())
    True
    """
    modules = [
        import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)
    ]
    found = [study for module in modules for study in getattr(module, "STUDIES", ())]
    return sorted(found, key=lambda study: study.full_name)


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
