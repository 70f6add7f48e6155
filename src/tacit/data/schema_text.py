"""A schema as commented TOML, which :func:`tacit.data.read_schema` reads back."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tacit.data.infer import Inferred

_SCALE = "numbers: mean 0 and variance 1; or unit (0 to 1), or none"
_LONGEST = 100


def schema_text(inferred: Inferred, *, file: str, rows: int, whole: bool) -> str:
    """Return the text of a schema file, with a comment on every column of the data file."""
    seen = f"its {rows:,} rows" if whole else f"its first {rows:,} rows"
    header = [
        _comment(f"What the columns of {file} mean: a guess from {seen}. Check every line."),
        "",
    ]
    return "\n".join([*header, *_singles(inferred), *_lists(inferred), *_rest(inferred)]) + "\n"


def _singles(inferred: Inferred) -> Iterator[str]:
    schema, notes = inferred.schema, inferred.notes
    if schema.label is None:
        yield "# No column is named like a label: a feature party's file has none. To name one:"
        yield '# label = "..."'
        yield '# positive = "..."'
    else:
        yield _setting("label", schema.label, notes[schema.label])
        if schema.positive is not None:
            yield _setting("positive", schema.positive, "the value that counts as 1")
    if schema.id is None:
        yield "# No column has another value in every row. tacit party matches rows by their id:"
        yield '# id = "..."'
    else:
        yield _setting("id", schema.id, notes[schema.id])
    if schema.time is not None:
        yield _setting("time", schema.time, f"puts the rows in time order; {notes[schema.time]}")
        if schema.time_unit != "seconds":
            yield _setting("time_unit", schema.time_unit, "since 1970")
    yield _setting("scale", schema.scale, _SCALE)
    if schema.separator is not None:
        yield _setting("separator", schema.separator, "between the columns")
    if schema.missing:
        yield _setting("missing", list(schema.missing), "besides empty cells, NA, NaN and null")


def _lists(inferred: Inferred) -> Iterator[str]:
    schema = inferred.schema
    for key, names in (("numeric", schema.numeric), ("categorical", schema.categorical)):
        if not names:
            yield f"{key} = []"
            continue
        yield f"{key} = ["
        width = max(len(_quoted(name)) for name in names) + 1
        for name in names:
            yield f"    {_quoted(name) + ',':{width}}  {_comment(inferred.notes[name])}"
        yield "]"


def _rest(inferred: Inferred) -> Iterator[str]:
    if inferred.left_out:
        yield ""
        yield "# Left out:"
        for name, why in inferred.left_out.items():
            yield _comment(f"  {_quoted(name)}: {why}")


def _setting(key: str, value: object, note: str) -> str:
    return f"{key} = {_quoted(value)}  {_comment(note)}"


def _quoted(value: object) -> str:
    """Return a text or a list of texts as TOML, which takes it as JSON has it."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    """Return text as a comment on one line."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return f"# {shown}" if len(shown) <= _LONGEST * 2 else f"# {shown[: _LONGEST * 2]}..."
