"""The tables and figures of the papers, one file each: a file that is added here adds a name.

Every module of this package without a leading underscore holds one ``STUDY``.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tacit.errors import SpecError
from tacit.spec import nearest
from tacit.study.paper._study import (
    Cell,
    Claim,
    Finding,
    Published,
    Spread,
    Study,
    Tabulated,
)

__all__ = [
    "Cell",
    "Claim",
    "Finding",
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
    modules = [found.name for found in pkgutil.iter_modules(__path__)]
    return [
        import_module(f"{__name__}.{module}").STUDY
        for module in sorted(modules)
        if not module.startswith("_")
    ]


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
