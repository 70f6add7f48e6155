"""The directory of one run: what was asked for, what happened, and the models."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, final

from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.trial import Progress, Trial

FORMAT = 1


def check_output(path: Path, *, board: bool = False) -> None:
    """Refuse a place that a run cannot be written to, before anything is written."""
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"--out {path}: the directory is not empty: choose another name")
    if path.exists() and not path.is_dir():
        raise UsageError(f"--out {path}: cannot be made: a file is there, choose another name")
    if board and find_spec("tensorboard") is None:
        raise UsageError("--tensorboard needs its package: pip install tensorboard")


@final
class RunDirectory:
    """Writes ``config.toml``, ``metrics.jsonl``, ``results.json`` and the model files.

    Metrics are appended and flushed as they come, so an interrupted run leaves a usable directory.
    The top model and a head encode labels: ``label_party.safetensors`` and ``head.*`` stay with the
    label party, and so does ``labels.csv``, which is there for the audit of a recorded run.
    """

    def __init__(self, path: Path, config: TrainConfig) -> None:
        check_output(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {path}: cannot be made: {error.strerror}") from None
        self.path = path
        (path / "config.toml").write_text(_toml(config))
        self._metrics: IO[str] = (path / "metrics.jsonl").open("a")

    def __call__(self, progress: Progress) -> None:
        """Append one line per step, and one with the measures at the end of a part."""
        if progress.loss is None:
            return
        line: dict[str, Any] = {"step": progress.step, "part": progress.part, "loss": progress.loss}
        if progress.leak is not None:
            line |= {"test": progress.test, "leak": progress.leak}
        self._metrics.write(json.dumps(line) + "\n")
        if progress.leak is not None:
            self._metrics.flush()

    def finish(self, trial: Trial, results: dict[str, Any]) -> None:
        """Write the results and the models."""
        self._metrics.close()
        text = json.dumps({"format": FORMAT, **results}, indent=2)
        (self.path / "results.json").write_text(text + "\n")
        for name, content in trial.files().items():
            (self.path / name).write_bytes(content)


@final
class TensorBoardLog:
    """Writes loss, test measures and leakage as TensorBoard scalars beside the metrics."""

    def __init__(self, path: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        except ImportError:
            raise UsageError("--tensorboard needs its package: pip install tensorboard") from None
        self._writer = SummaryWriter(str(path))

    def __call__(self, progress: Progress) -> None:
        """Add one step's scalars."""
        if progress.loss is None:
            return
        found = {"train/loss": progress.loss} if progress.leak is None else {}
        found |= {f"test/{name}": value for name, value in (progress.test or {}).items()}
        found |= {f"leak/{name}": leak["pooled"] for name, leak in (progress.leak or {}).items()}
        for name, value in found.items():
            self._writer.add_scalar(name, value, progress.step)

    def finish(self, _trial: Trial, _results: dict[str, Any]) -> None:
        """Close the log."""
        self._writer.close()


def _toml(config: TrainConfig) -> str:
    """Write the flat configuration; JSON's scalars and lists are TOML as they stand."""
    off = {name: 0 for name in ("bins", "rare") if getattr(config, name) is None}
    values = config.model_dump(mode="json", exclude_none=True) | off
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
