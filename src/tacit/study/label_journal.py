"""The label party's journal and the secret under which it is kept."""

from __future__ import annotations

from pathlib import Path

from tacit.errors import UsageError
from tacit.runtime._journal_header import START
from tacit.runtime.journal import Journal, Sync
from tacit.runtime.state_folder import kept_secret
from tacit.study.company import run_name
from tacit.study.party_config import PartyConfig

__all__ = ["JOURNAL", "has_released", "journal_of", "noise_secret"]

NOISE_KEY = "noise.key"
JOURNAL = "journal"


def noise_secret(folder: Path) -> bytes:
    """Return the noise key of a run; one is made only before anything was released."""
    place = folder / NOISE_KEY
    if (folder / JOURNAL).exists() and not place.exists():
        raise UsageError(
            f"{place}: the key of this run is gone, and with another one every step would be "
            "released anew: restore it, or name another state folder for a new run"
        )
    return kept_secret(place)


def journal_of(config: PartyConfig, secret: bytes, *, sync: Sync | None = None) -> Journal:
    """Open the journal of a run, with its witness if there is one."""
    return Journal.open(
        config.state / JOURNAL,
        run=run_name(config),
        secret=secret,
        sync=sync or config.journal_sync,
        witness=config.witness,
    )


def has_released(state: Path) -> bool:
    """Whether the journal in a state folder has a release on record."""
    place = state / JOURNAL
    return place.exists() and place.stat().st_size > START
