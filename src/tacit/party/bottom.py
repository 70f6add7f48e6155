"""A feature party's frozen bottom: trained once without labels, and kept in its state folder.

``bottom.safetensors`` holds the tensors, and what is done to embeddings before they are sent;
``bottom.json`` says what they are. Nothing of either is ever sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tacit import data, nets, pretrain
from tacit.atomic import write_whole
from tacit.errors import InputError, UsageError
from tacit.party.config import PartyConfig
from tacit.party.state_files import ENCODING, Log
from tacit.pretrain import FrozenBottom, Grid, Pretrainer
from tacit.pretrain.progress import State
from tacit.rng import Key
from tacit.state_dir import StateFolder, kept_secret, remove_own
from tacit.training.party import Rows

TENSORS, FACTS = "bottom.safetensors", "bottom.json"
NOISE_KEY = "embedding.key"
_LOW, _STEP, _NOISE = "sent.low", "sent.step", "sent.noise"
_FORMAT = 1
_CHUNK = 1024
Array = npt.NDArray[Any]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SentBottom:
    """A frozen bottom with all that decides what is sent of a row.

    Attributes:
        bottom: makes embeddings.
        name: a digest of the bottom, the noise and the grid; it tells nothing of them.
        grid: on which numbers are sent; None sends them as they are.
        std: of the noise on each number; None adds none.
        key: of the noise: the same row has the same noise whenever it is sent.
        fitted_in: the version of the upload that the bottom was trained for.
    """

    bottom: FrozenBottom
    name: str
    grid: Grid | None
    std: Tensor | None
    key: Key | None
    fitted_in: int

    def embed(self, table: data.PartyTable, rows: Array) -> Tensor:
        """Return the embeddings of some rows of a table, with their noise, before any grid."""
        parts = []
        for at in range(0, len(rows), _CHUNK):
            chosen = rows[at : at + _CHUNK]
            z = self.bottom(*table.take(chosen))
            if self.std is not None and self.key is not None:
                z = pretrain.noisy(
                    z, _names(table)[chosen].tolist(), self.std, self.key, version=self.fitted_in
                )
            parts.append(z)
        return torch.cat(parts)

    def embedder(self, table: data.PartyTable, order: Array) -> Callable[[Rows], Tensor]:
        """Return what embeds rows by their positions in a common order."""
        return lambda positions: self.embed(table, order[positions.numpy()])

    def sent(self, z: Tensor) -> Tensor:
        """Return the numbers that the label party has of these embeddings."""
        return z if self.grid is None else self.grid.values(self.grid.codes(z))


def kept_bottom(
    config: PartyConfig, folder: StateFolder, table: data.PartyTable, *, log: Log
) -> SentBottom:
    """Return the bottom of a run: the kept one, that of the version before, or a new one.

    A new one learns from all rows of the table, whoever else has them.
    """
    inputs = nets.Inputs(*table.inputs)
    method = pretrain.resolved(config.pretrain, inputs, width=config.width)
    held = folder.read(FACTS)
    if held is None and config.version > 1 and not config.refit:
        held = _taken_over(config, folder, log)
    if held is None:
        held = _fitted(config, folder, table, method, log)
    asked = _asked(config, method)
    for name, value in asked.items():
        if held[name] != value:
            raise UsageError(
                f"{folder.path / FACTS}: this bottom was made with {name} = {held[name]}, and "
                f"{value} is asked for: set it back, or raise version on both sides and write "
                "refit = true here"
            )
    return read_bottom(config, folder, inputs)


def read_bottom(config: PartyConfig, folder: StateFolder, inputs: nets.Inputs) -> SentBottom:
    """Return the bottom in a state folder; one of other columns or with other bytes is refused."""
    facts, content = folder.read(FACTS), folder.read_bytes(TENSORS)
    path = folder.path / TENSORS
    if facts is None or content is None:
        raise UsageError(f"{path}: there is no trained bottom here: run tacit party first")
    if facts.get("format") != _FORMAT:
        raise UsageError(
            f"{folder.path / FACTS}: format {facts.get('format')}, this is format {_FORMAT}: use "
            "the version that wrote it"
        )
    if hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise UsageError(f"{path}: is not the file that {FACTS} is about: restore both")
    if facts["encoding"] != _digest(folder.read(ENCODING)):
        raise UsageError(
            f"{path}: this bottom was trained on another table or schema than the one of this run: "
            "restore the bottom of this run, or name another state folder for a new one"
        )
    method = pretrain.get(facts["pretrain"])
    try:
        tensors = load(content)
        low, step, std = (tensors.pop(name, None) for name in (_LOW, _STEP, _NOISE))
        bottom = method.bottom(inputs, tensors)
    except (SafetensorError, InputError) as error:
        raise UsageError(f"{path}: is not the bottom of this table: {error}") from None
    noise = None if std is None else Key(kept_secret(config.state / NOISE_KEY))
    tag = b"" if noise is None else noise.digest(b"name of a bottom")
    return SentBottom(
        bottom=bottom,
        name=hashlib.sha256(content + tag).hexdigest(),
        grid=None if low is None or step is None else Grid(low, step, facts["embed_bits"]),
        std=std,
        key=noise,
        fitted_in=facts["fitted_in"],
    )


def kept_before(config: PartyConfig, name: str) -> bytes:
    """Return a file of the version before, whose bottom is used again."""
    before = config.of_version(config.version - 1)
    if before.is_dir():
        with StateFolder(before) as folder:
            content = folder.read_bytes(name)
        if content is not None:
            return content
    raise UsageError(
        f"version {config.version}: {before / name} is not there, so the bottom of version "
        f"{config.version - 1} cannot be used again: run that version first, or write refit = true"
    )


def _names(table: data.PartyTable) -> Array:
    """Return ids as text: a number is text too where another id of a later file is no number."""
    return np.asarray(table.ids).astype(str)


def _asked(config: PartyConfig, method: Pretrainer) -> dict[str, Any]:
    return {
        "pretrain": str(method),
        "embed_bits": config.embed_bits,
        "embed_noise": config.embed_noise,
    }


def _digest(encoding: object) -> str:
    return hashlib.sha256(json.dumps(encoding).encode()).hexdigest()


def _taken_over(config: PartyConfig, folder: StateFolder, log: Log) -> dict[str, Any]:
    """Copy the bottom of the version before into this one's folder; return what it is."""
    for name in (TENSORS, FACTS):
        write_whole(folder.path / name, kept_before(config, name))
    log(f"the bottom of version {config.version - 1} is used again")
    found: dict[str, Any] = folder.read(FACTS)
    return found


def _fitted(
    config: PartyConfig, folder: StateFolder, table: data.PartyTable, method: Pretrainer, log: Log
) -> dict[str, Any]:
    """Train a bottom and keep it; return what it is."""
    inputs = nets.Inputs(*table.inputs)
    numeric, categorical = table.take(np.arange(len(table)))
    log(f"{method} learns from all {len(table)} rows of {table.name}, without labels")
    unfinished = _Unfinished(folder, f"{method}, seed {config.seed}")
    bottom = method.fit(
        inputs,
        numeric,
        categorical,
        seed=config.seed,
        progress=_Tenths(log, str(method)),
        kept=unfinished,
    )
    tensors = {**bottom.state_dict(), **_sent(config, bottom, table)}
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_whole(folder.path / TENSORS, content)
    facts = {
        "format": _FORMAT,
        **_asked(config, method),
        "width": bottom.width,
        "fitted_in": config.version,
        "rows": len(table),
        "encoding": _digest(folder.read(ENCODING)),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    folder.write(FACTS, facts)
    unfinished.remove()
    return facts


def _sent(config: PartyConfig, bottom: FrozenBottom, table: data.PartyTable) -> dict[str, Tensor]:
    """Return noise and grid, taken from the embeddings of all rows of the table."""
    if not config.embed_noise and config.embed_bits == 32:
        return {}
    rows, found = np.arange(len(table)), {}
    clear = SentBottom(
        bottom=bottom, name="", grid=None, std=None, key=None, fitted_in=config.version
    )
    z = clear.embed(table, rows)
    if config.embed_noise:
        found[_NOISE] = config.embed_noise * z.std(0)
        key = Key(kept_secret(config.state / NOISE_KEY))
        ids = _names(table).tolist()
        z = pretrain.noisy(z, ids, found[_NOISE], key, version=config.version)
    if config.embed_bits != 32:
        grid = Grid.of(z, config.embed_bits)
        found |= {_LOW: grid.low, _STEP: grid.step}
    return found


@final
class _Unfinished:
    """An unfinished training in a state folder; one of another method is another file."""

    def __init__(self, folder: StateFolder, training: str) -> None:
        name = hashlib.sha256(training.encode()).hexdigest()[:16]
        self._folder, self._name = folder, f"pretraining-{name}.safetensors"

    def load(self) -> State | None:
        """Return the tensors that were saved last; None without any."""
        content = self._folder.read_bytes(self._name)
        try:
            return None if content is None else load(content)
        except SafetensorError as error:
            raise UsageError(
                f"{self._folder.path / self._name}: an unfinished training that cannot be read: "
                f"{error}; restore it, or remove it to train from the start"
            ) from None

    def save(self, tensors: State, done: int) -> None:  # noqa: ARG002 - it is in the tensors
        """Keep these tensors in the place of those before."""
        content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
        write_whole(self._folder.path / self._name, content)

    def remove(self) -> None:
        """Remove what is not needed any more."""
        remove_own(self._folder.path / self._name)


@final
class _Tenths:
    """Tells every tenth of a training."""

    def __init__(self, log: Log, what: str) -> None:
        self._log, self._what, self._shown = log, what, -1

    def __call__(self, done: int, total: int) -> None:
        """Hear that so many passes are done."""
        if done * 10 // total != self._shown:
            self._shown = done * 10 // total
            self._log(f"{self._what}: pass {done} of {total}")
