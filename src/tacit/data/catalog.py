"""The data sets by name: what they are, where to get their files and where to put them.

Nothing here loads numpy, pyarrow or torch before a table is read.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, final

from tacit.data.directories import data_directory
from tacit.data.formats import is_table_file
from tacit.errors import InputError, SpecError
from tacit.spec import nearest

if TYPE_CHECKING:
    from tacit.data.tables import Table

_UCI = "CC BY 4.0 at the UCI repository; cite its page"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
_HERE = "made here, no files needed"
_CLOTHES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_THINGS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_LESIONS = ("other", "melanoma")


@final
@dataclass(frozen=True)
class DataSet:
    """A data set: facts as published, its source, and its paths in the data directory.

    ``places`` are patterns, in order of preference; files of the first that matches are read, all
    of them where ``several`` is set. Without places nothing has to be fetched. ``picture`` is
    channels, height and width where a row's numbers are those of an image, ``class_names`` what
    its classes are called.
    """

    name: str
    description: str
    rows: int | None
    positives: float | None
    classes: int
    source: str
    licence: str
    loader: str | Callable[..., Table]
    places: tuple[str, ...] = ()
    several: bool = False
    picture: tuple[int, int, int] | None = None
    class_names: tuple[str, ...] = ()


_ALL = (
    DataSet(
        name="ads",
        description="generated conversions: 8 numbers, 12 categories, known Bayes AUC of 0.870",
        rows=None,
        positives=0.1,
        classes=2,
        source=_HERE,
        licence="none needed",
        loader="tacit.data.datasets.ads:ads",
    ),
    DataSet(
        name="toy_balanced",
        description="one number, half positive, Bayes AUC 0.95 (Marvell, A.2)",
        rows=None,
        positives=0.5,
        classes=2,
        source=_HERE,
        licence="none needed",
        loader="tacit.data.datasets.bundled:toy_balanced",
    ),
    DataSet(
        name="breast_cancer",
        description="tumours, 30 numbers, malignant or benign",
        rows=569,
        positives=0.3726,
        classes=2,
        source="part of scikit-learn",
        licence=_UCI,
        loader="tacit.data.datasets.bundled:breast_cancer",
    ),
    DataSet(
        name="digits",
        description="handwritten digits, 64 pixels, 10 classes",
        rows=1_797,
        positives=None,
        classes=10,
        source="part of scikit-learn",
        licence=_UCI,
        loader="tacit.data.datasets.bundled:digits",
        picture=(1, 8, 8),
    ),
    DataSet(
        name="spambase",
        description="e-mail, 57 numbers, spam or not",
        rows=4_601,
        positives=0.3940,
        classes=2,
        source="https://archive.ics.uci.edu/dataset/94/spambase",
        licence=_UCI,
        loader="tacit.data.datasets.small:spambase",
        places=("spambase.data", "spambase/spambase.data"),
    ),
    DataSet(
        name="credit",
        description="credit card clients, 23 numbers, default or not",
        rows=30_000,
        positives=0.2212,
        classes=2,
        source="https://www.kaggle.com/datasets/uciml/default-of-credit-card-clients-dataset",
        licence=_UCI,
        loader="tacit.data.datasets.small:credit",
        places=("UCI_Credit_Card.csv", "credit/UCI_Credit_Card.csv"),
    ),
    *(
        DataSet(
            name=name,
            description=f"film reviews as 500 words present or not, {parts}",
            rows=50_000,
            positives=0.5,
            classes=2,
            source="https://ai.stanford.edu/~amaas/data/sentiment",
            licence="none stated; the page asks to cite Maas et al. (2011)",
            loader=f"tacit.data.datasets.imdb:{name}",
            places=("imdb/imdb_bow500.npz", "imdb/imdb_reviews.csv.xz", "imdb/aclImdb", "aclImdb"),
        )
        for name, parts in (
            ("imdb", "half of them for testing"),
            ("imdb_random", "halves drawn by the seed"),
            ("imdb_three", "halves drawn by the seed, three parties of 200, 200 and 100 words"),
        )
    ),
    DataSet(
        name="criteo",
        description="display advertising, 13 numbers, 26 categories, clicked or not",
        rows=45_840_617,
        positives=0.2562,
        classes=2,
        source="https://www.kaggle.com/c/criteo-display-ad-challenge",
        licence="terms of Criteo: for research, read them at the source",
        loader="tacit.data.datasets.clicks:criteo",
        places=(
            "criteo/train.txt",
            "criteo/train.txt.gz",
            "criteo/train_sample_137139.txt.gz",
            "criteo/train_sample_*.txt*",
        ),
    ),
    DataSet(
        name="criteo_conversion",
        description="sponsored search over 90 days, 3 numbers, 17 categories, sold or not",
        rows=15_995_634,
        positives=0.10,
        classes=2,
        source="https://ailab.criteo.com/criteo-sponsored-search-conversion-log-dataset/",
        licence="terms of Criteo: for research, read them at the source",
        loader="tacit.data.datasets.clicks:criteo_conversion",
        places=(
            "criteo_conversion/CriteoSearchData",
            "criteo_conversion/CriteoSearchData.gz",
            "Criteo_Conversion_Search/CriteoSearchData",
        ),
    ),
    DataSet(
        name="avazu",
        description="mobile advertising over ten days, 22 categories, clicked or not",
        rows=40_428_967,
        positives=0.1698,
        classes=2,
        source="https://www.kaggle.com/c/avazu-ctr-prediction",
        licence="rules of the Kaggle competition: read them at the source",
        loader="tacit.data.datasets.clicks:avazu",
        places=("avazu/train.csv", "avazu/train.gz", "avazu/train*.csv*"),
        several=True,
    ),
    DataSet(
        name="mnist",
        description="handwritten digits, images of 28 x 28, 10 classes",
        rows=70_000,
        positives=None,
        classes=10,
        source="https://yann.lecun.com/exdb/mnist",
        licence="none stated there; cite LeCun et al. (1998)",
        loader="tacit.data.datasets.mnist:mnist",
        places=("mnist/*-ubyte*", "MNIST/raw/*-ubyte*"),
        several=True,
        picture=(1, 28, 28),
    ),
    DataSet(
        name="fashion_mnist",
        description="articles of clothing, images of 28 x 28, 10 classes",
        rows=70_000,
        positives=None,
        classes=10,
        source="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        loader="tacit.data.datasets.mnist:fashion_mnist",
        places=("fashion-mnist/*-ubyte*", "FashionMNIST/raw/*-ubyte*"),
        several=True,
        picture=(1, 28, 28),
        class_names=_CLOTHES,
    ),
    DataSet(
        name="cifar10",
        description="photographs, colour images of 32 x 32, 10 classes (binary version)",
        rows=60_000,
        positives=None,
        classes=10,
        source=_CIFAR,
        licence="none stated there; cite Krizhevsky (2009)",
        loader="tacit.data.datasets.cifar:cifar10",
        places=("cifar-10-batches-bin/*_batch*.bin*",),
        several=True,
        picture=(3, 32, 32),
        class_names=_THINGS,
    ),
    DataSet(
        name="cifar100",
        description="photographs, colour images of 32 x 32, 100 classes (binary version)",
        rows=60_000,
        positives=None,
        classes=100,
        source=_CIFAR,
        licence="none stated there; cite Krizhevsky (2009)",
        loader="tacit.data.datasets.cifar:cifar100",
        places=("cifar-100-binary/t*.bin*",),
        several=True,
        picture=(3, 32, 32),
    ),
    DataSet(
        name="isic",
        description="skin lesions (SIIM-ISIC 2020), images of 84 x 84 out of JPEG files, melanoma",
        rows=5_840,
        positives=0.1,
        classes=2,
        source="https://www.kaggle.com/c/siim-isic-melanoma-classification",
        licence="CC BY-NC 4.0 and the rules of the Kaggle competition",
        loader="tacit.data.datasets.skin:isic",
        places=("isic/train.csv", "siim-isic-melanoma-classification/train.csv"),
        picture=(3, 84, 84),
        class_names=_LESIONS,
    ),
    DataSet(
        name="ham10000",
        description="skin lesions, images of 84 x 84, melanoma or not, divided by lesion",
        rows=10_015,
        positives=0.1111,
        classes=2,
        source="https://doi.org/10.7910/DVN/DBW86T (arrays image, melanoma, image_id, lesion_id)",
        licence="CC BY-NC 4.0",
        loader="tacit.data.datasets.skin:ham10000",
        places=("ham10000/ham10000*.npz",),
        picture=(3, 84, 84),
        class_names=_LESIONS,
    ),
)

ENTRIES = {entry.name: entry for entry in _ALL}


def register_dataset(
    name: str,
    *,
    description: str,
    classes: int = 2,
    rows: int | None = None,
    positives: float | None = None,
    source: str = _HERE,
    licence: str = "none stated",
    places: tuple[str, ...] = (),
    several: bool = False,
) -> Callable[[Callable[..., Table]], Callable[..., Table]]:
    """Return a decorator that registers a function which returns a ``Table`` as a data set.

    With ``places`` the function is called with the files that were found there; one that takes
    ``rows`` and ``seed`` makes its rows by them. The rest is as in :class:`DataSet`.
    """

    def add(loader: Callable[..., Table]) -> Callable[..., Table]:
        if name in ENTRIES or is_table_file(name) or not name:
            raise SpecError(f"data set {name!r} is taken: choose another name")
        ENTRIES[name] = DataSet(
            name=name,
            description=description,
            rows=rows,
            positives=positives,
            classes=classes,
            source=source,
            licence=licence,
            loader=loader,
            places=places,
            several=several,
        )
        return loader

    return add


@final
@dataclass(frozen=True)
class CheckedDataSet:
    """The counts of a data set that was read, beside those that are published."""

    name: str
    files: tuple[str, ...]
    rows: int
    positives: float | None
    classes: int
    numeric: int
    categorical: int
    image: tuple[int, int, int] | None
    published_rows: int | None
    seconds: float


def names() -> list[str]:
    """Return the name of every data set.

    >>> "criteo" in names() and "ads" in names()
    True
    """
    return list(ENTRIES)


def describe(name: str) -> DataSet:
    """Return what is known about a data set; an unknown name is refused with the nearest one.

    >>> describe("spambase").rows
    4601
    """
    if name not in ENTRIES:
        raise SpecError(f"unknown data set {name!r}: {nearest(name, names())}")
    return ENTRIES[name]


def find(name: str, data_dir: str | Path | None = None) -> tuple[Path, ...]:
    """Return the files of a data set in the data directory: those of its first pattern with any."""
    entry, root = describe(name), data_directory(data_dir)
    for pattern in entry.places:
        found = sorted(root.glob(pattern))
        if found:
            return tuple(found if entry.several else found[:1])
    return ()


def load(
    name: str,
    *,
    data_dir: str | Path | None = None,
    rows: int | None = None,
    seed: int = 0,
    **options: object,
) -> Table:
    """Return a data set by name, or the table of a CSV or Parquet file by its path.

    ``rows`` draws that many by ``seed``, without changing their order; for generated data it is
    the number of rows made. ``options`` are those of the data set, such as ``positive`` of
    ``ads``, or ``schema`` of a file.
    """
    if seed < 0:
        raise InputError(f"seed is a whole number from 0, got {seed}")
    if is_table_file(name):
        return _sampled(_call("tacit.data.table_file:load_file", name, options, name), rows, seed)
    entry = describe(name)
    if "rows" in inspect.signature(_loader(entry.loader)).parameters:
        size = {} if rows is None else {"rows": rows}
        return _call(entry.loader, name, {**options, **size, "seed": seed})
    if not entry.places:
        return _sampled(_call(entry.loader, name, options), rows, seed)
    files = find(name, data_dir)
    if not files:
        raise InputError(_missing(entry, data_directory(data_dir)))
    return _sampled(_call(entry.loader, name, options, files), rows, seed)


def check(name: str, data_dir: str | Path | None = None) -> CheckedDataSet:
    """Read a data set and return its counts; refuse files that are missing or do not parse."""
    start = time.perf_counter()
    table = load(name, data_dir=data_dir)
    known = ENTRIES.get(name)
    return CheckedDataSet(
        name=name,
        files=tuple(str(path) for path in (find(name, data_dir) if known else [Path(name)])),
        rows=len(table),
        positives=table.positives if table.classes == 2 else None,
        classes=table.classes,
        numeric=len(table.numeric_names),
        categorical=len(table.categorical_names),
        image=None if table.image is None else table.image.shape,
        published_rows=known.rows if known else None,
        seconds=round(time.perf_counter() - start, 3),
    )


def _missing(entry: DataSet, root: Path) -> str:
    places = " or ".join(entry.places)
    return (
        f"the files of {entry.name} are not in {root}: get them from {entry.source} "
        f"and put them there as {places} (or name another directory with TACIT_DATA)"
    )


def _loader(address: str | Callable[..., Table]) -> Callable[..., Table]:
    if not isinstance(address, str):
        return address
    module, _, function = address.partition(":")
    loader: Callable[..., Table] = getattr(import_module(module), function)
    return loader


def _call(
    address: str | Callable[..., Table], name: str, options: dict[str, object], *subject: object
) -> Table:
    """Call a loader after checking that it takes the options."""
    loader = _loader(address)
    parameters = inspect.signature(loader).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            way_out = nearest(option, known) if known else "it takes none"
            raise SpecError(f"{name} has no option {option!r}: {way_out}")
    return loader(*subject, **options)


def _sampled(table: Table, rows: int | None, seed: int) -> Table:
    from tacit.data.draws import permutation  # noqa: PLC0415 - numpy loads only when it is used
    from tacit.data.tables import subset  # noqa: PLC0415 - as above

    if rows is None or rows == len(table):
        return table
    if not 2 <= rows < len(table):
        raise InputError(
            f"{table.name} has {len(table)} rows here: ask for 2 to {len(table)}, got {rows}"
        )
    chosen = permutation(len(table), "sample", seed)[:rows]
    chosen.sort()
    return subset(table, chosen)
