"""Who a party is, from the files that its configuration names."""

from __future__ import annotations

from pathlib import Path

from tacit.runtime.identity import Files, Identity, load_identity
from tacit.study.party_config import PartyConfig

__all__ = ["identity_of"]


def identity_of(config: PartyConfig) -> Identity:
    """Return the identity that a configuration names."""
    if config.keys is not None:
        return load_identity(config.keys, name=config.name)
    files = config.certificate, config.key, config.ca
    return load_identity(Files(*(Path(file or "") for file in files)), name=config.name)
