"""What the columns of a user's own file mean: a small TOML file beside it.

For ``clicks.csv`` the schema is ``clicks.csv.schema.toml``::

    label = "bought"              # without it the file is a feature party's
    positive = "yes"              # the value that counts as 1; without it labels are 0, 1, ...
    id = "click"                  # without it rows are numbered
    time = "clicked_at"           # dates, or numbers in time_unit; puts the rows in time order
    time_unit = "seconds"         # milliseconds, seconds, hours or days
    numeric = ["price", "age"]
    categorical = ["site"]
    scale = "standard"            # mean 0 and variance 1; or unit (0 to 1), or none
    test_fraction = 0.1
    separator = ";"               # of a text file; without it, the one that its header has
    missing = ["?", "-999"]       # what means missing, besides empty cells, NA, NaN and null

    [parties]                     # who owns which columns; without it they are divided evenly
    platform = ["price", "site"]
    bureau = ["age"]

A file of one party alone is read by :func:`tacit.data.load_party`: it needs an ``id``; that of a
feature party has no label, and that of a label party may do without features.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import final, get_args

from tacit.data.build import Layout, Scale
from tacit.data.readers import TIME_UNITS
from tacit.data.tables import Columns
from tacit.errors import InputError
from tacit.spec import nearest

_SCALES = list(get_args(Scale))


@final
@dataclass(frozen=True)
class Schema:
    """What the columns of a file mean, as the TOML file above says it.

    ``parties`` are pairs of a name and its columns, in the order of the file.
    """

    label: str | None = None
    positive: str | None = None
    id: str | None = None
    time: str | None = None
    time_unit: str = "seconds"
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    scale: Scale = "standard"
    test_fraction: float = 0.1
    separator: str | None = None
    missing: tuple[str, ...] = ()
    parties: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def columns(self) -> tuple[str, ...]:
        """Return every column that the schema reads, once each."""
        singles = (self.label, self.id, self.time)
        named = [name for name in (*singles, *self.numeric, *self.categorical) if name is not None]
        return tuple(dict.fromkeys(named))

    def layout(self, name: str) -> Layout:
        """Return the layout of the table that a file of this schema becomes."""
        owners = tuple(
            Columns(
                numeric=tuple(self.numeric.index(c) for c in owned if c in self.numeric),
                categorical=tuple(
                    self.categorical.index(c) for c in owned if c not in self.numeric
                ),
                party=party,
            )
            for party, owned in self.parties
        )
        return Layout(name, self.numeric, self.categorical, self.scale, self.test_fraction, owners)

    def match(self, present: Iterable[str], *, where: str) -> None:
        """Refuse a schema that names a column which the file lacks."""
        found = list(present)
        for name in self.columns():
            if name in found:
                continue
            way_out = nearest(name, found)
            if len(found) == 1 and name in found[0]:
                way_out = f"its only column is {found[0]!r}: correct separator in the schema"
            raise InputError(f"{where} has no column {name!r} that its schema names: {way_out}")


def schema_path(path: Path) -> Path:
    """Return where the schema of a file is looked for.

    >>> schema_path(Path("clicks.csv")).name
    'clicks.csv.schema.toml'
    """
    return path.with_name(f"{path.name}.schema.toml")


def read_schema(path: Path) -> Schema:
    """Return the schema of a TOML file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read as a schema: {error}") from error
    return parse_schema(content, where=path)


def parse_schema(content: Mapping[str, object], *, where: Path | str = "the schema") -> Schema:
    """Return a schema with every key checked.

    >>> parse_schema({"label": "y", "numeric": ["a"]}).columns()
    ('y', 'a')
    """
    known = [field.name for field in fields(Schema)]
    for key in content:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}: {nearest(key, known)}")
    schema = Schema(**{key: _value(key, value, where) for key, value in content.items()})  # type: ignore[arg-type]
    _check_columns(schema, where)
    _check_parties(schema, where)
    return schema


def _value(key: str, value: object, where: Path | str) -> object:
    """Return a value of the right type for its key, or say what the key takes."""
    match key, value:
        case "positive", bool():
            return str(value).lower()
        case "positive", str() | int():
            return str(value)
        case "numeric" | "categorical" | "missing", list() if all(
            isinstance(v, str) for v in value
        ):
            return tuple(value)
        case "separator", str() if len(value) == 1 and value not in '"\r\n':
            return value
        case "parties", dict() if all(_is_names(owned) for owned in value.values()):
            return tuple((party, tuple(owned)) for party, owned in value.items())
        case "test_fraction", float() if 0.0 < value < 1.0:
            return value
        case "scale", str() if value in _SCALES:
            return value
        case "time_unit", str() if value in TIME_UNITS:
            return value
        case "label" | "id" | "time", str():
            return value
    raise InputError(f"{where}: {key} takes {_TAKES[key]}, got {value!r}")


_TAKES = {
    "label": "the name of a column",
    "id": "the name of a column",
    "time": "the name of a column",
    "positive": "text, a whole number or true or false",
    "numeric": "a list of column names",
    "categorical": "a list of column names",
    "parties": "a list of column names per party",
    "separator": 'one character such as ";" or "\\t"',
    "missing": 'a list of texts such as ["?", "-999"]',
    "test_fraction": "a number between 0 and 1 such as 0.1",
    "scale": " or ".join(_SCALES),
    "time_unit": " or ".join(TIME_UNITS),
}


def _is_names(owned: object) -> bool:
    return isinstance(owned, list) and bool(owned) and all(isinstance(name, str) for name in owned)


def _check_columns(schema: Schema, where: Path | str) -> None:
    features = [*schema.numeric, *schema.categorical]
    if not features and schema.label is None:
        raise InputError(
            f"{where}: neither a label nor features: fill numeric or categorical, or name a label"
        )
    if schema.positive is not None and schema.label is None:
        raise InputError(
            f"{where}: positive = {schema.positive!r} without a label: name the label or leave it"
        )
    for name in features:
        if features.count(name) > 1:
            raise InputError(f"{where}: column {name!r} is listed twice: list it once")
        if name in (schema.label, schema.id):
            raise InputError(
                f"{where}: column {name!r} is the label or id: take it out of features"
            )
    if schema.label is not None and schema.label in (schema.id, schema.time):
        raise InputError(f"{where}: column {schema.label!r} is the label: name another id or time")


def _check_parties(schema: Schema, where: Path | str) -> None:
    features = [*schema.numeric, *schema.categorical]
    owned = [name for _, names in schema.parties for name in names]
    for name in owned:
        if name not in features:
            raise InputError(
                f"{where}: parties name {name!r}, which is no feature: {nearest(name, features)}"
            )
        if owned.count(name) > 1:
            raise InputError(f"{where}: column {name!r} has two owners in parties: leave one")
    left = [name for name in features if name not in owned]
    if schema.parties and left:
        raise InputError(f"{where}: column {left[0]!r} has no owner in parties: give it one")
