"""Models that can be split: bottoms for feature parties, a top for the label party."""

# ruff: noqa: I001 - models are listed in the order in which they are imported here
from tacit.nets.base import MODELS, Architecture, Inputs, SplitModel, layer_outputs
from tacit.nets.combine import COMBINES, Combine, combine, combined_width
from tacit.nets.embedding import FeatureEncoder, StackedEmbedding
from tacit.nets.stack import Layer, Stack, Stacked
from tacit.nets.wdl import WideDeep
from tacit.nets.mlp import Mlp
from tacit.nets.exploit import ExploitCriteo
from tacit.nets.gafm import GafmNet
from tacit.nets.image import Block, ImageStacked
from tacit.nets.conv import IsicConv, MnistConv
from tacit.nets.resnet import ResNet
from tacit.nets.custom import from_modules
from tacit.nets.initial_weights import initialise

__all__ = [
    "COMBINES",
    "MODELS",
    "Architecture",
    "Block",
    "Combine",
    "ExploitCriteo",
    "FeatureEncoder",
    "GafmNet",
    "ImageStacked",
    "Inputs",
    "IsicConv",
    "Layer",
    "Mlp",
    "MnistConv",
    "ResNet",
    "SplitModel",
    "Stack",
    "Stacked",
    "StackedEmbedding",
    "WideDeep",
    "combine",
    "combined_width",
    "from_modules",
    "get",
    "initialise",
    "layer_outputs",
    "names",
]


def get(spec: str | Architecture) -> Architecture:
    """Return the architecture that a spec string describes; an architecture is returned as it is.

    >>> get("wdl(layers=8)")
    WideDeep(layers=8, units=128, embedding=4, l2=0.0)
    """
    return spec if isinstance(spec, Architecture) else MODELS.get(spec)


def names() -> list[str]:
    """Return the name of every registered model.

    >>> names()[:2]
    ['wdl', 'mlp']
    """
    return MODELS.names()
