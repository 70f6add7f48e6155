"""Which files hold a table, by how their names end."""

from __future__ import annotations

TEXT_FILES = tuple(f"{kind}{packed}" for kind in (".csv", ".tsv", ".txt") for packed in ("", ".gz"))
PARQUET_FILES = (".parquet",)
ARROW_FILES = (".arrow", ".feather", ".ipc")
TABLE_FILES = (*TEXT_FILES, *PARQUET_FILES, *ARROW_FILES)


def is_table_file(name: str) -> bool:
    """Tell whether a name is that of a file with a table, not that of a data set.

    >>> is_table_file("clicks.csv.gz"), is_table_file("criteo")
    (True, False)
    """
    return name.endswith(TABLE_FILES)


def why_unreadable(error: Exception) -> str:
    """Return why an ``.npz`` file could not be read, without numpy's advice to unpickle it."""
    return "it is no .npz file of numbers and text" if "pickle" in str(error) else str(error)
