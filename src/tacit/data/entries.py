"""The facts about each data set, as published, and the names under which its files are found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ["ENTRIES", "DataSet"]

_UCI = "CC BY 4.0 at the UCI repository; cite its page"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
_HERE = "made here, no files needed"
_CLOTHES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip
_THINGS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_LESIONS = ("other", "melanoma")


@final
@dataclass(frozen=True)
class DataSet:
    """A data set: facts as published, its source, and its places in the data directory.

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
    loader: str
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
        loader="tacit.data.ads:ads",
    ),
    DataSet(
        name="toy_balanced",
        description="one number, half positive, Bayes AUC 0.95 (Marvell, A.2)",
        rows=None,
        positives=0.5,
        classes=2,
        source=_HERE,
        licence="none needed",
        loader="tacit.data.bundled:toy_balanced",
    ),
    DataSet(
        name="breast_cancer",
        description="tumours, 30 numbers, malignant or benign",
        rows=569,
        positives=0.3726,
        classes=2,
        source="part of scikit-learn",
        licence=_UCI,
        loader="tacit.data.bundled:breast_cancer",
    ),
    DataSet(
        name="digits",
        description="handwritten digits, 64 pixels, 10 classes",
        rows=1_797,
        positives=None,
        classes=10,
        source="part of scikit-learn",
        licence=_UCI,
        loader="tacit.data.bundled:digits",
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
        loader="tacit.data.small:spambase",
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
        loader="tacit.data.small:credit",
        places=("UCI_Credit_Card.csv", "credit/UCI_Credit_Card.csv"),
    ),
    DataSet(
        name="imdb",
        description="film reviews as 500 words present or not, half of them for testing",
        rows=50_000,
        positives=0.5,
        classes=2,
        source="https://ai.stanford.edu/~amaas/data/sentiment",
        licence="none stated; the page asks to cite Maas et al. (2011)",
        loader="tacit.data.imdb:imdb",
        places=("imdb/imdb_bow500.npz", "imdb/imdb_reviews.csv.xz", "imdb/aclImdb", "aclImdb"),
    ),
    DataSet(
        name="criteo",
        description="display advertising, 13 numbers, 26 categories, clicked or not",
        rows=45_840_617,
        positives=0.2562,
        classes=2,
        source="https://www.kaggle.com/c/criteo-display-ad-challenge",
        licence="terms of Criteo: for research, read them at the source",
        loader="tacit.data.clicks:criteo",
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
        loader="tacit.data.clicks:criteo_conversion",
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
        loader="tacit.data.clicks:avazu",
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
        loader="tacit.data.idx:mnist",
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
        loader="tacit.data.idx:fashion_mnist",
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
        loader="tacit.data.cifar:cifar10",
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
        loader="tacit.data.cifar:cifar100",
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
        loader="tacit.data.skin:isic",
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
        loader="tacit.data.skin:ham10000",
        places=("ham10000/ham10000*.npz",),
        picture=(3, 84, 84),
        class_names=_LESIONS,
    ),
)

ENTRIES = {entry.name: entry for entry in _ALL}
