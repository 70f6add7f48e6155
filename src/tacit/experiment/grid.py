"""A sweep's trials: what ``sweep.toml`` varies, written out and checked before anything runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

from tacit._config import read_toml
from tacit.errors import SpecError, UsageError
from tacit.experiment.config import TrainConfig
from tacit.spec import nearest

_KEYS = ["name", "base", "grid", "trial"]
_MOST = 100_000


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The trials of a sweep, each once, in the order in which they were written down."""

    name: str
    trials: tuple[TrainConfig, ...]


def read_sweep(path: Path) -> Sweep:
    """Return the trials of a TOML file; a name that nobody knows ends it here, in one line."""
    values = read_toml(path, source=f"SWEEP {path}")
    name = values.pop("name", path.stem)
    if not isinstance(name, str):
        raise UsageError(f"{path}: name = {name!r}: is a text: write name = '...'")
    return Sweep(name=name, trials=trials_of(values, source=str(path)))


def trials_of(values: Mapping[str, Any], *, source: str = "the sweep") -> tuple[TrainConfig, ...]:
    """Return base x grid for every grid, and base with every single trial.

    ``base`` holds fields of ``tacit train``, ``grid`` (one, or a list of them) lists of values of
    such fields, ``trial`` a list of fields that make one trial each.

    >>> grid = {"protect": ["none", "iso(t=1)"], "seed": [0, 1, 2]}
    >>> found = trials_of({"base": {"epochs": 1}, "grid": grid, "trial": [{"seed": 9}]})
    >>> len(found), found[1].seed, str(found[3].protect), found[-1].seed
    (7, 1, 'iso(t=1)', 9)
    """
    for key in values:
        if key not in _KEYS:
            raise SpecError(f"{source}: unknown key {key!r}: {nearest(key, _KEYS)}")
    base = _table(values.get("base", {}), "base", source=source)
    points = [
        *(point for grid in _tables(values, "grid", source) for point in _points(grid, source)),
        *_tables(values, "trial", source),
    ]
    if not points:
        raise UsageError(f"{source}: holds no trial: add a [grid] of lists, or a [[trial]]")
    return tuple(dict.fromkeys(_checked({**base, **point}, source=source) for point in points))


def _table(value: object, name: str, *, source: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{source}: {name} = {value!r:.60}: is a table: write [{name}]")
    return dict(value)


def _tables(values: Mapping[str, Any], name: str, source: str) -> list[dict[str, Any]]:
    """Return a list of tables; one table is a list of one."""
    found = values.get(name, [])
    listed = found if isinstance(found, Sequence) and not isinstance(found, str) else [found]
    return [_table(value, name, source=source) for value in listed]


def _points(grid: dict[str, Any], source: str) -> Iterator[dict[str, Any]]:
    for field, listed in grid.items():
        if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
            raise UsageError(
                f"{source}: grid.{field} = {listed!r:.60}: a grid lists values: "
                f"write {field} = [...], or put the field under [base]"
            )
    size = math.prod(map(len, grid.values()))
    if size > _MOST:
        raise UsageError(f"{source}: a grid of {size} trials: at most {_MOST}; use several sweeps")
    for combination in itertools.product(*grid.values()) if grid else ():
        yield dict(zip(grid, combination, strict=True))


def _checked(values: dict[str, Any], *, source: str) -> TrainConfig:
    if values.get("threads") is not None:
        raise UsageError(
            f"{source}: threads = {values['threads']!r}: every trial of a sweep has one thread, so "
            f"that its results do not depend on the machine's cores: leave it out, use --workers"
        )
    config = TrainConfig.of(values, source=source)
    for field, check in (("dataset", _dataset), ("model", _model), ("objective", _objective)):
        text = getattr(config, field)
        if text is None:
            continue
        try:
            check(text)
        except UsageError as error:
            raise UsageError(f"{source}: {field} = {text!r}: {error}") from None
    return config


@cache
def _dataset(name: str) -> None:
    from tacit.data.catalog import describe  # noqa: PLC0415 - loads only when used
    from tacit.data.formats import is_table_file  # noqa: PLC0415 - as above

    if not is_table_file(name):
        describe(name)


@cache
def _model(spec: str) -> None:
    from tacit import nets  # noqa: PLC0415 - torch loads only when it is used

    nets.get(spec)


@cache
def _objective(spec: str) -> None:
    from tacit import objective  # noqa: PLC0415 - torch loads only when it is used

    objective.get(spec)
