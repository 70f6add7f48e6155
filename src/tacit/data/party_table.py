"""One party's own file: ids, features, and the labels at the label party.

Two companies hold one file each. The schema beside a file says what its columns mean; ids decide
which rows of the two files belong together, and only they are ever compared. A file is read with
what its schema says, or with what training learned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, final, get_args

import numpy as np

from tacit.data.build import Chunk, Layout, build
from tacit.data.cache import entry_folder, load_or_build, mapped, read_facts, remove_entry
from tacit.data.draws import Array, bits
from tacit.data.encoding import Encoding, LabelRule
from tacit.data.formats import TABLE_FILES, is_table_file
from tacit.data.readers import Refuse
from tacit.data.schema import Schema, read_schema, schema_path
from tacit.data.table_file import chunks_of, existing, reader_of
from tacit.data.tables import row_numbers
from tacit.errors import InputError
from tacit.spec import nearest

if TYPE_CHECKING:
    from torch import Tensor


_BLOCK = 1 << 16
_LONGEST_ID = 256
_LARGEST = 1e38

Role: TypeAlias = Literal["feature", "label"]
Source: TypeAlias = "Callable[[Tensor], tuple[Tensor, Tensor]]"


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PartyTable:
    """The rows of one party's file; the arrays are memory-mapped files.

    ``ids`` is [N], int64 or text, each once. ``numeric`` is [N, n] float32, scaled;
    ``categorical`` is [N, c] int32, codes from 0 below ``cardinalities``, the last of which is
    for values that the training file did not have: ``unseen`` counts its rows per column.
    ``labels`` is [N] int64 below ``classes``; both are None at a feature party, and ``labels``
    also where a file to predict has none. Rows are in the order of the file, or in time order
    where the schema names a time.
    """

    name: str
    role: Role
    ids: Array
    numeric: Array
    categorical: Array
    labels: Array | None
    classes: int | None
    numeric_names: tuple[str, ...]
    categorical_names: tuple[str, ...]
    cardinalities: tuple[int, ...]
    unseen: tuple[int, ...]
    encoding: Encoding

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return (
            f"PartyTable({self.name!r}, {self.role} party, {len(self):,} rows, "
            f"{len(self.numeric_names)} numeric, {len(self.categorical_names)} categorical)"
        )

    @property
    def inputs(self) -> tuple[int, tuple[int, ...]]:
        """The number of numeric columns and the cardinalities: what a model must know."""
        return len(self.numeric_names), self.cardinalities

    def take(self, rows: Array) -> tuple[Tensor, Tensor]:
        """Return rows as tensors: numbers [B, n] float32 and codes [B, c] int64."""
        import torch  # noqa: PLC0415 - a file is read and checked without torch

        rows = row_numbers(rows, name=self.name, size=len(self))
        numeric = np.take(np.asarray(self.numeric), rows, axis=0)
        categorical = np.take(np.asarray(self.categorical), rows, axis=0)
        return torch.from_numpy(numeric), torch.from_numpy(categorical.astype(np.int64))

    def source(self, order: Array) -> Source:
        """Return a function from positions in a shared order to this party's columns.

        ``order`` [M] int64 holds, for each position that the parties agreed on, the row here.
        """
        row_of = row_numbers(order, name=self.name, size=len(self)).astype(np.int64)

        def take(positions: Tensor) -> tuple[Tensor, Tensor]:
            shared = f"the shared order of {self.name}"
            return self.take(row_of[row_numbers(positions.numpy(), name=shared, size=len(row_of))])

        return take


def load_party(
    path: str | Path,
    *,
    role: Role,
    encoding: Encoding | None = None,
    own_cache: Path | None = None,
) -> PartyTable:
    """Return the table of one party's text, Parquet or Arrow file.

    The schema is the TOML file beside it. It names an ``id`` and, for a label party, a label.
    With an ``encoding`` the file is one to predict: its numbers are scaled and its categories
    coded as in training, labels may be absent, and without a schema that of training is taken.

    What was read, labels included, is kept in the user's cache; with ``own_cache``, a folder for
    this one table, it is kept there and nowhere else.
    """
    file = _file_of(path, role, encoding)
    return load_or_build(
        file.entry(own_cache), file.fill, file.open, exclusive=own_cache is not None
    )


def forget_party(path: str | Path, *, role: Role) -> bool:
    """Remove what the user's cache holds of a party's file; return whether there was anything."""
    return remove_entry(_file_of(path, role, None).entry(None))


def _file_of(path: str | Path, role: Role, encoding: Encoding | None) -> _PartyFile:
    if role not in get_args(Role):
        raise InputError(f"the role of a party is {' or '.join(get_args(Role))}, got {role!r}")
    path = existing(path)
    if not is_table_file(path.name):
        raise InputError(f"a party's file is one of {', '.join(TABLE_FILES)}, got {path.name}")
    if encoding is not None and (encoding.label is None) != (role == "feature"):
        raise InputError(
            f"this encoding is a {'label' if role == 'feature' else 'feature'} party's, got role "
            f"{role!r}: take the encoding that this party kept"
        )
    return _PartyFile(path, role, _schema(path, role, encoding), encoding)


def _digest(encoding: Encoding | None) -> str | None:
    return None if encoding is None else sha256(encoding.to_json().encode()).hexdigest()


def _schema(path: Path, role: Role, encoding: Encoding | None) -> Schema:
    """Return the schema, checked against the role and in the order of the encoding."""
    beside = schema_path(path)
    if beside.is_file():
        schema = read_schema(beside)
    elif encoding is not None:
        schema = _trained(encoding)
    else:
        label = ', label = "..."' if role == "label" else ""
        raise InputError(
            f"{path.name} needs a schema: `tacit data schema {path}` writes one; or write {beside} "
            f'with id = "..."{label}, numeric = [...] and categorical = [...]'
        )
    _check_role(schema, role, beside, predict=encoding is not None)
    return schema if encoding is None else _fitted(schema, encoding, path)


def _trained(encoding: Encoding) -> Schema:
    label = encoding.label
    return Schema(
        label=None if label is None else label.name,
        positive=None if label is None else label.positive,
        id=encoding.id,
        numeric=encoding.numeric_names,
        categorical=encoding.categorical_names,
        missing=encoding.missing,
    )


def _check_role(schema: Schema, role: Role, beside: Path, *, predict: bool) -> None:
    if role == "feature" and schema.label is not None:
        raise InputError(
            f"{beside}: a feature party has no labels, got label = {schema.label!r}: take it out"
        )
    if role == "label" and schema.label is None and not predict:
        raise InputError(
            f'{beside}: a label party has labels: write label = "<the label column>", '
            f"or use the file as a feature party's"
        )
    if schema.id is None:
        raise InputError(
            f'{beside}: examples of two parties are matched by their id: write id = "<the id '
            f'column>"'
        )
    if schema.parties:
        raise InputError(
            f"{beside}: all columns of a party's file are its own, got parties "
            f"{', '.join(name for name, _ in schema.parties)}: take [parties] out"
        )


def _fitted(schema: Schema, encoding: Encoding, path: Path) -> Schema:
    """Return the schema of a file to predict, with the columns and scales of training."""
    pairs = (
        ("numeric", schema.numeric, encoding.numeric_names),
        ("categorical", schema.categorical, encoding.categorical_names),
    )
    for kind, here, trained in pairs:
        for name in sorted({*here, *trained} - ({*here} & {*trained})):
            known = f"is no {kind} column of the training file: {nearest(name, list(trained))}"
            raise InputError(
                f"{path}: column {name!r} of its schema {known}"
                if name in here
                else f"{path}: its schema lacks the {kind} column {name!r} of the training file: "
                f"add it to {kind}"
            )
    rule = encoding.label
    if schema.label is not None and rule is not None:
        if schema.positive != rule.positive:
            raise InputError(
                f"{path}: the schema has positive = {schema.positive!r}, training had "
                f"{rule.positive!r}: labels would mean something else; use that of training"
            )
        if schema.label not in reader_of(path, schema.separator).columns():
            schema = replace(schema, label=None, positive=None)
    columns = {kind: trained for kind, _, trained in pairs}
    return replace(schema, scale=encoding.scale, missing=encoding.missing, **columns)  # type: ignore[arg-type]


@final
@dataclass(frozen=True)
class _PartyFile:
    """A party's file with what decides how it is read, and its entry in the cache."""

    path: Path
    role: Role
    schema: Schema
    encoding: Encoding | None

    @property
    def layout(self) -> Layout:
        """The layout of the table that the file becomes."""
        return self.schema.layout(self.path.name)

    def entry(self, within: Path | None) -> Path:
        """Return the folder of the file's entry in the cache."""
        options = {
            "role": self.role,
            "schema": asdict(self.schema),
            "encoding": _digest(self.encoding),
        }
        return entry_folder(self.layout, [self.path], options, within=within)

    def fill(self, folder: Path) -> None:
        """Build an entry: the arrays, and what training or the encoding says about them."""
        refusals: list[Refuse] = []
        coding = build(
            self._chunks(refusals),
            self.layout,
            folder,
            known=None if self.encoding is None else self.encoding.coding(),
            check_ids=lambda ids: _refuse_repeat(ids, refusals[0]),
        )
        facts = json.loads((folder / "table.json").read_text(encoding="utf-8"))
        encoding = self.encoding
        if encoding is None:
            encoding = Encoding.learned(
                coding,
                self.layout,
                id_column=str(self.schema.id),
                label=self._rule(facts),
                missing=self.schema.missing,
            )
        unseen = [0] * len(encoding.categorical)
        if self.encoding is not None:
            unseen = _unseen(folder, facts["rows"], encoding)
        text = json.dumps({"unseen": unseen, "encoding": encoding.to_json()})
        (folder / "party.json").write_text(text, encoding="utf-8")

    def open(self, folder: Path) -> PartyTable | None:
        """Return the table of an entry without reading its arrays, or None if it is incomplete."""
        try:
            rows = read_facts(folder, "table.json")["rows"]
            party = read_facts(folder, "party.json")
            encoding = self.encoding or Encoding.from_json(party["encoding"])
            names = encoding.numeric_names, encoding.categorical_names
            return PartyTable(
                name=self.path.name,
                role=self.role,
                ids=mapped(folder, "ids", rows),
                numeric=mapped(folder, "numeric", rows, len(names[0])),
                categorical=mapped(folder, "categorical", rows, len(names[1])),
                labels=None if self.schema.label is None else mapped(folder, "labels", rows),
                classes=None if encoding.label is None else encoding.label.classes,
                numeric_names=names[0],
                categorical_names=names[1],
                cardinalities=encoding.cardinalities,
                unseen=tuple(party["unseen"]),
                encoding=encoding,
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _rule(self, facts: dict[str, int]) -> LabelRule | None:
        if self.schema.label is None:
            return None
        return LabelRule(self.schema.label, self.schema.positive, facts["classes"])

    def _chunks(self, refusals: list[Refuse]) -> Iterator[Chunk]:
        """Yield the checked rows, and keep each chunk's function that refuses a row."""
        reader = reader_of(self.path, self.schema.separator)
        for refuse, chunk in chunks_of(reader, self.schema, training=self.encoding is None):
            refusals.append(refuse)
            _check_ids(chunk, refuse, str(self.schema.id))
            if self.encoding is not None:
                _check_fit(chunk, refuse, self.encoding)
            yield chunk


def _check_ids(chunk: Chunk, refuse: Refuse, name: str) -> None:
    if chunk.ids is None or chunk.ids.dtype.kind != "U":
        return
    lengths = np.char.str_len(np.char.strip(chunk.ids))
    if not lengths.all():
        row = int(np.argmin(lengths))
        refuse(row, f"{name} is empty, got {str(chunk.ids[row])!r}: every row needs an id")
    lengths = np.char.str_len(chunk.ids)
    if (lengths > _LONGEST_ID).any():
        row = int(np.argmax(lengths))
        start = str(chunk.ids[row])[:20]
        refuse(
            row,
            f"{name} has at most {_LONGEST_ID} characters, got {lengths[row]} in {start!r}...: "
            f"give rows shorter ids",
        )


def _refuse_repeat(ids: Array, refuse: Refuse) -> None:
    found = first_repeat(ids)
    if found is not None:
        earlier, row = found
        refuse(
            row,
            f"id {ids[row].item()!r} is in row {earlier + 1} and again in row {row + 1}: "
            f"every id may be there once; remove one of the rows",
        )


def first_repeat(ids: Array) -> tuple[int, int] | None:
    """Return two rows with the same id, the earlier one first, or None.

    Whole numbers are sorted. Text is sorted by a 64-bit hash of each id, and ids with one hash
    are compared in full, so that the answer is exact.

    >>> first_repeat(np.array(["a", "b", "a"]))
    (0, 2)
    >>> first_repeat(np.array([3, 1, 2])) is None
    True
    """
    keys = np.asarray(ids) if ids.dtype.kind == "i" else _hashes(ids)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    seen: dict[object, int] = {}
    last = -2
    for at in again.tolist():
        if at != last + 1:
            seen = {ids[order[at]].item(): int(order[at])}
        last, row = at, int(order[at + 1])
        earlier = seen.setdefault(ids[row].item(), row)
        if earlier != row:
            return earlier, row
    return None


def _hashes(ids: Array) -> Array:
    """Return the sum of each id's characters, each times a random odd number for its position."""
    width = ids.dtype.itemsize // 4
    factors = bits(max(1, width), "ids") | np.uint64(1)
    hashes = np.zeros(len(ids), dtype=np.uint64)
    for at in range(0, len(ids), _BLOCK):
        block = np.ascontiguousarray(ids[at : at + _BLOCK])
        letters = block.view(np.uint32).reshape(len(block), width)
        for column, factor in zip(letters.T, factors, strict=True):
            hashes[at : at + _BLOCK] += column * factor
    return hashes


def _check_fit(chunk: Chunk, refuse: Refuse, encoding: Encoding) -> None:
    """Refuse what the trained columns cannot hold: far too large numbers, other classes."""
    for column, values in zip(encoding.numeric, chunk.numeric.T, strict=True):
        large = np.abs(values - column.offset) > _LARGEST * column.spread
        if column.spread and large.any():
            row = int(np.argmax(large))
            refuse(
                row,
                f"{column.name} is too far from the values of training to be scaled, got "
                f"{values[row]:g}: correct it or train again",
            )
    if chunk.labels is not None and encoding.label is not None:
        wrong = chunk.labels >= encoding.label.classes
        if wrong.any():
            row = int(np.argmax(wrong))
            refuse(
                row,
                f"{encoding.label.name} must be below {encoding.label.classes}, the classes of "
                f"training, got {chunk.labels[row]}: correct it or leave the label out",
            )


def _unseen(folder: Path, rows: int, encoding: Encoding) -> list[int]:
    """Return how many rows of each column have a value that training did not have."""
    codes = mapped(folder, "categorical", rows, len(encoding.categorical))
    return [
        int(np.count_nonzero(codes[:, at] == len(column.values)))
        for at, column in enumerate(encoding.categorical)
    ]
