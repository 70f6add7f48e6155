"""The pictures of a tape's examples for the audit page: those named, or the run's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli.run_config import config_beside
from tacit.errors import UsageError

if TYPE_CHECKING:
    from tacit.audit import Images
    from tacit.experiment.config import TrainConfig


def images_of(tape: Path, name: str | None, data_dir: Path | None, *, shown: bool) -> Images | None:
    """Return the pictures of a tape's examples, by the rows that its run was trained on.

    Those that were named must be there. The run's own are looked for when a page will show them,
    and where they are not here the page says why.
    """
    if name is None and not shown:
        return None
    from tacit.audit import Images  # noqa: PLC0415 - loads torch
    from tacit.data import has_pictures  # noqa: PLC0415 - loads numpy

    config = config_beside(tape)
    if name is not None:
        own = config if config is not None and config.dataset == name else None
        try:
            return _loaded(name, own, data_dir, required=True)
        except UsageError as error:
            raise UsageError(f"--images {name}: {error}") from None
    if config is None or not has_pictures(config.dataset):
        return None
    try:
        return _loaded(config.dataset, config, data_dir, required=False)
    except UsageError as error:
        return Images.none(config.dataset, str(error))


def _loaded(
    name: str, config: TrainConfig | None, data_dir: Path | None, *, required: bool
) -> Images:
    """Load pictures; the ids of a run are the rows of what it drew from the data set."""
    from tacit.audit import Images  # noqa: PLC0415 - loads torch
    from tacit.data import load_pictures  # noqa: PLC0415 - loads numpy

    found = load_pictures(
        name,
        data_dir=data_dir or (None if config is None else config.data_dir),
        rows=None if config is None else config.rows,
        seed=0 if config is None else config.seed,
    )
    return Images(
        pixels=found.pixels,
        source=name,
        labels=found.labels,
        ids=found.ids,
        class_names=found.class_names,
        required=required,
    )
