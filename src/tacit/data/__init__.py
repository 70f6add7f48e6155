"""Data sets, users' own tables, and how parties divide, order and read them.

Names load when they are first used: listing data sets needs no numpy, and only :func:`take`
and the rows of a :class:`PartyTable` need torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.data.catalog import (
        CheckedDataSet,
        DataSet,
        check,
        describe,
        find,
        load,
        names,
        register_dataset,
    )
    from tacit.data.datasets.ads import CEILING, ads_rows, bayes_auc
    from tacit.data.directories import cache_directory, data_directory
    from tacit.data.encoding import Encoding
    from tacit.data.frames import from_frame
    from tacit.data.images import PictureRows, has_pictures, load_pictures
    from tacit.data.party_table import PartyTable, forget_party, load_party
    from tacit.data.samples import write_ads_parquet, write_party_sample
    from tacit.data.schema import Schema, parse_schema, read_schema, schema_path
    from tacit.data.tables import (
        Columns,
        Features,
        Image,
        Table,
        assign,
        order,
        split,
        stream,
        subset,
        take,
    )

__all__ = [
    "CEILING",
    "CheckedDataSet",
    "Columns",
    "DataSet",
    "Encoding",
    "Features",
    "Image",
    "PartyTable",
    "PictureRows",
    "Schema",
    "Table",
    "ads_rows",
    "assign",
    "bayes_auc",
    "cache_directory",
    "check",
    "data_directory",
    "describe",
    "find",
    "forget_party",
    "from_frame",
    "has_pictures",
    "load",
    "load_party",
    "load_pictures",
    "names",
    "order",
    "parse_schema",
    "read_schema",
    "register_dataset",
    "schema_path",
    "split",
    "stream",
    "subset",
    "take",
    "write_ads_parquet",
    "write_party_sample",
]

_HOMES = {
    "catalog": (
        "CheckedDataSet",
        "DataSet",
        "check",
        "describe",
        "find",
        "load",
        "names",
        "register_dataset",
    ),
    "datasets.ads": ("CEILING", "ads_rows", "bayes_auc"),
    "directories": ("cache_directory", "data_directory"),
    "encoding": ("Encoding",),
    "frames": ("from_frame",),
    "images": ("PictureRows", "has_pictures", "load_pictures"),
    "party_table": ("PartyTable", "forget_party", "load_party"),
    "samples": ("write_ads_parquet", "write_party_sample"),
    "schema": ("Schema", "parse_schema", "read_schema", "schema_path"),
    "tables": (
        "Columns",
        "Features",
        "Image",
        "Table",
        "assign",
        "order",
        "split",
        "stream",
        "subset",
        "take",
    ),
}
_HOME = {name: home for home, group in _HOMES.items() for name in group}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(importlib.import_module(f"tacit.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'tacit.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
