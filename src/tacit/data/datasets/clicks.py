"""The click and conversion logs of the papers: Criteo (two of them) and Avazu.

Categories get codes and numbers the range [0, 1] over all rows, as the papers do before they
split 90% to 10%.

References: Marvell (ICLR 2022), A.6.1; ExPLOit, section 5.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from tacit.data.build import Chunk, Layout
from tacit.data.cache import cached
from tacit.data.draws import Array
from tacit.data.readers import Arrow, Refuse, categories, ids, labels, numbers, seconds
from tacit.data.tables import Table
from tacit.data.text_file import TextFile

_CRITEO = ("label", *(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27)))
_CONVERSION = (
    "Sale",
    "SalesAmountInEuro",
    "time_delay_for_conversion",
    "click_timestamp",
    "nb_clicks_1week",
    "product_price",
    "product_age_group",
    "device_type",
    "audience_id",
    "product_gender",
    "product_brand",
    *(f"product_category_{k}" for k in range(1, 8)),
    "product_country",
    "product_id",
    "product_title",
    "partner_id",
    "user_id",
)
_AVAZU = (
    "C1",
    "banner_pos",
    "site_id",
    "site_domain",
    "site_category",
    "app_id",
    "app_domain",
    "app_category",
    "device_id",
    "device_ip",
    "device_model",
    "device_type",
    "device_conn_type",
    *(f"C{k}" for k in range(14, 22)),
)


def criteo(files: Sequence[Path]) -> Table:
    """Return the Criteo display advertising log: clicked or not, 13 numbers, 26 categories.

    The file has tabs and no header. Missing numbers are 0 and missing categories the empty text.
    """
    layout = Layout("criteo", _CRITEO[1:14], _CRITEO[14:], "unit", 0.1)

    def chunks() -> Iterator[Chunk]:
        for path in files:
            file = TextFile(path, delimiter="\t", names=_CRITEO, quoted=False)
            for refuse, batch in file.batches(_CRITEO):
                yield Chunk(
                    numeric=_matrix(batch, layout.numeric, refuse),
                    categorical=_texts(batch, layout.categorical, refuse),
                    labels=labels(batch["label"], refuse, name="label"),
                )

    return cached(layout, files, chunks)


def criteo_conversion(files: Sequence[Path], *, price: bool = True) -> Table:
    """Return Criteo's sponsored search log: bought or not, 3 numbers, 17 categories, 90 days.

    The file has tabs and no header; -1 means missing. The two columns that are known only after
    a sale (its amount and its delay) are left out. Analyses of this log report that
    ``product_price`` is filled almost only for clicks that led to a sale, so with it the label is
    easy to predict; ``price=False`` leaves it out.
    """
    numeric = ("click_timestamp", "nb_clicks_1week", *(["product_price"] if price else []))
    layout = Layout("criteo_conversion", numeric, _CONVERSION[6:], "unit", 0.1)
    wanted = ("Sale", *layout.numeric, *layout.categorical)

    def chunks() -> Iterator[Chunk]:
        for path in files:
            file = TextFile(path, delimiter="\t", names=_CONVERSION, quoted=False)
            for refuse, batch in file.batches(wanted):
                yield Chunk(
                    numeric=_matrix(batch, layout.numeric, refuse, "-1", "-1.0"),
                    categorical=_texts(batch, layout.categorical, refuse, "-1"),
                    labels=labels(batch["Sale"], refuse, name="Sale"),
                    time=seconds(batch["click_timestamp"], refuse, name="click_timestamp"),
                )

    return cached(layout, files, chunks)


def avazu(files: Sequence[Path]) -> Table:
    """Return the Avazu log: clicked or not, 22 categories (one is the hour of day), ten days.

    Several files become one table in time order. Ids are too large for int64 and stay text.
    """
    layout = Layout("avazu", (), ("hour", *_AVAZU), "none", 0.1)
    wanted = ("id", "click", "hour", *_AVAZU)

    def chunks() -> Iterator[Chunk]:
        for path in files:
            for refuse, batch in TextFile(path).batches(wanted):
                time, hour = _hours(batch["hour"], refuse)
                yield Chunk(
                    numeric=np.zeros((batch.num_rows, 0)),
                    categorical=(hour, *_texts(batch, _AVAZU, refuse)),
                    labels=labels(batch["click"], refuse, name="click"),
                    ids=ids(batch["id"], refuse, name="id"),
                    time=time,
                )

    return cached(layout, files, chunks)


def _matrix(batch: Arrow, names: tuple[str, ...], refuse: Refuse, *missing: str) -> Array:
    more = {"missing": ("", *missing)} if missing else {}
    return np.column_stack([numbers(batch[name], refuse, name=name, **more) for name in names])


def _texts(
    batch: Arrow, names: tuple[str, ...], refuse: Refuse, *missing: str
) -> tuple[Arrow, ...]:
    return tuple(categories(batch[name], refuse, name=name, missing=missing) for name in names)


def _hours(column: Arrow, refuse: Refuse) -> tuple[Array, Arrow]:
    """Return seconds since 1970 and the hour of day as text, from times such as 14102100."""
    fits = pc.match_substring_regex(column, r"^\d{6}([01]\d|2[0-3])$")
    if not pc.all(fits).as_py():
        row = pc.index(fits, False).as_py()
        refuse(row, f"hour must be YYMMDDHH such as 14102100, got {column[row].as_py()!r}")
    parts = [pc.utf8_slice_codeunits(column, at, at + 2) for at in range(0, 8, 2)]
    date = pc.binary_join_element_wise(
        pc.binary_join_element_wise("20", parts[0], ""), parts[1], parts[2], "-"
    )
    midnight = seconds(date, refuse, name="hour")
    return midnight + 3_600 * parts[3].cast("int64").to_numpy(), parts[3]
