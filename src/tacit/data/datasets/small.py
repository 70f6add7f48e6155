"""The two small tables of the GAFM paper: Spambase and credit card default.

Every feature is standardised with the mean and variance of all rows, as the paper does before it
splits 70% to 30%.

References: GAFM, D.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tacit.data.build import Chunk, Layout
from tacit.data.cache import cached
from tacit.data.readers import categories, ids, labels, numbers
from tacit.data.tables import Table
from tacit.data.text_file import TextFile

_WORDS = tuple(f"f{k}" for k in range(1, 58))
_CODED = ("SEX", "EDUCATION", "MARRIAGE", "PAY_0", *(f"PAY_{k}" for k in range(2, 7)))
_AMOUNTS = (
    "LIMIT_BAL",
    "AGE",
    *(f"BILL_AMT{k}" for k in range(1, 7)),
    *(f"PAY_AMT{k}" for k in range(1, 7)),
)
_CREDIT = ("LIMIT_BAL", *_CODED[:3], "AGE", *_CODED[3:], *_AMOUNTS[2:])
_DEFAULT = "default.payment.next.month"


def spambase(files: Sequence[Path]) -> Table:
    """Return Spambase: spam or not, 57 numbers. The file has commas and no header."""
    layout = Layout("spambase", _WORDS, (), "standard", 0.3)

    def chunks() -> Iterator[Chunk]:
        for path in files:
            file = TextFile(path, names=(*_WORDS, "label"))
            for refuse, batch in file.batches((*_WORDS, "label")):
                columns = [numbers(batch[name], refuse, name=name) for name in _WORDS]
                yield Chunk(
                    numeric=np.column_stack(columns),
                    categorical=(),
                    labels=labels(batch["label"], refuse, name="the last column"),
                )

    return cached(layout, files, chunks)


def credit(files: Sequence[Path], *, categorical: bool = False) -> Table:
    """Return credit card default in Taiwan: 23 features of 30,000 clients.

    Nine columns are whole-number codes: sex, education, marriage and six months of payment
    status. They stay numbers, as in the paper; ``categorical=True`` makes categories of them.
    """
    numeric, coded = (_AMOUNTS, _CODED) if categorical else (_CREDIT, ())
    layout = Layout("credit", numeric, coded, "standard", 0.3)

    def chunks() -> Iterator[Chunk]:
        for path in files:
            for refuse, batch in TextFile(path).batches(("ID", *_CREDIT, _DEFAULT)):
                columns = [numbers(batch[name], refuse, name=name) for name in numeric]
                yield Chunk(
                    numeric=np.column_stack(columns),
                    categorical=tuple(categories(batch[c], refuse, name=c) for c in coded),
                    labels=labels(batch[_DEFAULT], refuse, name=_DEFAULT),
                    ids=ids(batch["ID"], refuse, name="ID"),
                )

    return cached(layout, files, chunks)
