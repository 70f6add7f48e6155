"""The label party's secrets and its journal: made once for a run, and never another time.

Another noise key, another label secret or a lost journal would release the same labels anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tacit.errors import UsageError
from tacit.guard import Guard
from tacit.party.config import PartyConfig
from tacit.party.journal import Journal, Sync
from tacit.party.journal_records import START
from tacit.party.state_files import run_name
from tacit.state_dir import StateFolder, kept_secret

NOISE_KEY = "noise.key"
JOURNAL = "journal"


def noise_secret(folder: Path) -> bytes:
    """Return the noise key of a run; one is made only before anything was released."""
    path = folder / NOISE_KEY
    if (folder / JOURNAL).exists() and not path.exists():
        raise UsageError(
            f"{path}: the key of this run is gone, and with another one every step would be "
            "released anew: restore it, or name another state folder for a new run"
        )
    return kept_secret(path)


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
    path = state / JOURNAL
    return path.exists() and path.stat().st_size > START


RANDOMISATION: Final = "randomisation.json"
_FORMAT: Final = 1
_WAY_OUT: Final = "or name another state folder for a new run"


def kept_label_secret(config: PartyConfig, folder: StateFolder, *, classes: int) -> bytes | None:
    """Return the label secret of a run, None where it randomises nothing.

    The first call keeps what stands for the secret, and the mechanism with its privacy parameters.
    A later one refuses any other: it would be a second release of the same labels, which no
    checkpoint need know of. Post-processing such as ``correction`` may change. Where there were
    releases before and nothing was kept, an earlier version began the run.
    """
    now: dict[str, Any] = {"format": _FORMAT, "randomisation": None}
    held, secret = folder.read(RANDOMISATION), None
    if config.labels is not None:
        beside = config.data.with_name(f"{config.data.name}.secret")
        path = config.label_secret or beside
        if isinstance(held, dict) and "secret" in held and not path.exists():
            raise UsageError(
                f"{path}: the label secret of this run is gone, and with another one labels would "
                f"be randomised anew: restore it, {_WAY_OUT}"
            )
        secret = kept_secret(path)
        made = Guard("none", labels=config.labels, label_secret=secret, classes=classes)
        assert made.label_guard is not None  # noqa: S101 - it was asked for
        now |= {
            "randomisation": made.label_guard.mechanism.randomisation,
            "classes": classes,
            "secret": made.label_guard.secret_tag,
        }
    if held is None and (secret is None or not has_released(folder.path)):
        folder.write(RANDOMISATION, now)
    elif held != now:
        raise UsageError(f"{folder.path / RANDOMISATION}: {_complaint(held, now, config.labels)}")
    return secret


def _complaint(held: Any, now: dict[str, Any], spec: str | None) -> str:  # noqa: ANN401
    """Return why a run does not go on with another randomisation than it began with."""
    if not isinstance(held, dict) or held.get("format") != _FORMAT:
        return (
            f"labels {spec}: this run was begun by another version, whose coins are not these, and "
            f"going on would release labels a second time: end it with that version, {_WAY_OUT}"
        )
    began, asked = held.get("randomisation"), now["randomisation"]
    if began != asked or held.get("classes") != now.get("classes"):
        return (
            f"this run began with labels {began or 'as they are'}, and {asked or 'true labels'} "
            f"would be a second release of them: set it back, {_WAY_OUT}; what was released under "
            "the first counts as well"
        )
    return (
        "this run began with another label secret, and labels would be randomised anew: bring that "
        f"one back, {_WAY_OUT}; its epsilon adds to the first"
    )
