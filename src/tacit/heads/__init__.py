"""Models on embeddings, trained by the label party on true labels; nothing of them is sent."""

from tacit.heads.base import HEADS, EmbeddedRows, FittedHead, Head, HeadSettings
from tacit.heads.net import Net
from tacit.spec import parse

__all__ = ["HEADS", "EmbeddedRows", "FittedHead", "Head", "HeadSettings", "Net", "get", "names"]


def get(spec: str | Head) -> Head:
    """Return the head that a spec describes; a head is returned as it is.

    >>> get("net(dropout=0.2)")
    Net(first=256, second=128, dropout=0.2, embedding=8)
    """
    if isinstance(spec, Head):
        return spec
    parse(spec, kind="head")
    return HEADS.get(spec)


def names() -> list[str]:
    """Return the name of every registered head.

    >>> names()
    ['net']
    """
    return HEADS.names()
