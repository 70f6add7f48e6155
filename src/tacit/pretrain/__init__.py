"""Bottom models that a feature party trains alone, without labels, and then freezes."""

# ruff: noqa: I001 - methods are listed in the order in which they are imported here
from tacit.pretrain.progress import Kept, FitProgress
from tacit.pretrain.base import PRETRAINERS, FrozenBottom, Pretrainer
from tacit.pretrain.svd import SingularVectors
from tacit.pretrain.pca import PrincipalComponents
from tacit.pretrain.masked import MaskedAutoencoder
from tacit.pretrain.patches import PatchClusters
from tacit.pretrain.contrastive import Contrastive
from tacit.pretrain.concat import Concat
from tacit.pretrain.random import RandomProjection
from tacit.pretrain.auto import Auto
from tacit.pretrain.coarse import Grid, noisy, packed, unpacked
from tacit.pretrain.width import resolved

__all__ = [
    "PRETRAINERS",
    "Auto",
    "Concat",
    "Contrastive",
    "FitProgress",
    "FrozenBottom",
    "Grid",
    "Kept",
    "MaskedAutoencoder",
    "PatchClusters",
    "Pretrainer",
    "PrincipalComponents",
    "RandomProjection",
    "SingularVectors",
    "get",
    "names",
    "noisy",
    "packed",
    "resolved",
    "unpacked",
]


def get(spec: str | Pretrainer) -> Pretrainer:
    """Return the pretrainer that a spec string describes; a pretrainer is returned as it is.

    >>> get("svd(width=64)")
    SingularVectors(width=64, least=10, scale=0.25)
    """
    return spec if isinstance(spec, Pretrainer) else PRETRAINERS.get(spec)


def names() -> list[str]:
    """Return the name of every registered pretrainer.

    >>> names()[:2]
    ['svd', 'pca']
    """
    return PRETRAINERS.names()
