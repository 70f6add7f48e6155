"""The configuration of one party: who it is, what it holds, and what both have agreed on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, final

from pydantic import Field, field_validator, model_validator

from tacit._config import checked, read_toml
from tacit.party.settings import SILENT, TrainingSettings
from tacit.wire.transport.tls import Files, Identity, load_identity

if TYPE_CHECKING:
    from tacit.wire.protocol.plan import TrainingPlan

_LABEL_ONLY = (
    "combine",
    "protect",
    "labels",
    "objective",
    "budget",
    "label_secret",
    "share_metrics",
    "journal_sync",
    "witness",
    "attacks",
    "monitor_every",
    "write_truth",
    "on_odd_embeddings",
    "head",
)
_FEATURE_ONLY = ("classes", "number", "record", "pretrain", "embed_noise", "refit")
MOST_PEERS = 8
_PATHS = ("data", "state", "keys", "certificate", "key", "ca", "label_secret", "witness")


@final
class PartyConfig(TrainingSettings):
    """Everything that one party decides; what ``plan`` takes must be equal on both sides."""

    role: Literal["feature", "label"]
    name: str
    peer: str | tuple[str, ...] = Field(description="The name in the other side's certificate.")
    address: str | tuple[str, ...] = Field(description="Where the label party listens.")
    data: Path = Field(description="What its columns mean is in the .schema.toml beside it.")
    state: Path = Field(
        description="Checkpoints, and the label party's keys; only you may read it."
    )
    keys: Path | None = Field(
        default=None, description="Certificate, key and ca.pem; in production from your own CA."
    )
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    wait: float = Field(default=600, gt=0, description="Seconds to wait for the other party.")
    worker: int | None = Field(default=None, ge=0)
    group: str | None = None

    # Both sides.
    seed: int = Field(default=0, ge=0, description="Of the common order of rows; no secret.")
    matching: Literal["private", "clear"] = Field(
        default="private",
        description='Of ids; "clear" is faster and shows the label party all of them.',
    )
    test_percent: int = Field(
        default=10, ge=0, le=90, description="Rows held out to evaluate on, in percent."
    )
    save_every: int = Field(default=200, ge=1, description="Steps between checkpoints.")
    wire: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Or bfloat16: half the bytes, rounded values."
    )
    workers: int = Field(default=1, ge=1, le=64)
    version: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="With silent: raise it on both sides to upload new rows or a new bottom.",
    )

    # The feature party alone.
    classes: int = Field(default=2, ge=2)
    number: int = Field(default=0, ge=0, le=7)
    record: bool = Field(
        default=False, description="true writes what this party sees to a tape, for tacit audit."
    )

    refit: bool = Field(
        default=False,
        description="With silent: a later version trains its bottom anew; each shows more of rows.",
    )

    # The label party alone.
    label_secret: Path | None = None
    share_metrics: bool = Field(
        default=False, description="true tells the other party test AUC and accuracy, rounded."
    )
    journal_sync: Literal["os", "always"] = "os"
    witness: Path | None = Field(
        default=None, description="Outside of state: shows if state was restored from a copy."
    )
    write_truth: bool = False
    on_odd_embeddings: Literal["warn", "refuse"] = Field(
        default="warn",
        description="Or refuse: embeddings unlike those of any trained bottom model.",
    )

    @field_validator("name", "peer")
    @classmethod
    def _a_name(cls, given: str | tuple[str, ...]) -> str | tuple[str, ...]:
        from tacit.wire.transport.tls import check_name  # noqa: PLC0415 - loads only when used

        if isinstance(given, str):
            return check_name(given)
        return tuple(map(check_name, given))

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        others, owner = (
            (_LABEL_ONLY, "label") if self.role == "feature" else (_FEATURE_ONLY, "feature")
        )
        for name in others:
            if name == "protect" and self.silent:
                continue
            if name in self.model_fields_set:
                raise ValueError(f"{name} is for the {owner} party: this is a {self.role} party's")
        if self.role == "label" and self.protect is None:
            raise ValueError(self._no_protection())
        self._check_labels()
        self._check_uploads()
        self._check_peers()
        self._check_workers()
        if (self.keys is None) == (self.certificate is None or self.key is None or self.ca is None):
            raise ValueError("give keys, a folder of tacit keys, or certificate, key and ca")
        return self

    def _no_protection(self) -> str:
        from tacit.accounting import recommend  # noqa: PLC0415 - loads numpy

        first, *_ = recommend(target=0.65, epochs=self.epochs, examples=self.batch_size)
        return (
            f'protect is missing: write protect = "{first.protect}", which is planned for '
            f'{self.epochs} epochs, or "none" to send gradients as they are'
        )

    def _check_labels(self) -> None:
        if self.share_metrics and self.budget is not None:
            raise ValueError(
                f"share_metrics = true tells test measures, which come from true "
                f'labels and which budget = "{self.budget}" cannot count: set '
                "share_metrics = false, or leave the budget out"
            )
        if self.witness is not None:
            state, witness = (Path(os.path.abspath(p)) for p in (self.state, self.witness))
            if witness.is_relative_to(state):
                raise ValueError(
                    f"witness must be outside state, so that no copy restores both: "
                    f"got {witness} in {state}"
                )

    def _check_uploads(self) -> None:
        if not self.silent:
            for name, first in (("version", 1), ("refit", False)):
                if getattr(self, name) != first:
                    raise ValueError(
                        f'{name} is for uploads of embeddings: write protect = "{SILENT}", or '
                        f"leave {name} out"
                    )
            if self.hold_out is not None and not self.private_head:
                raise ValueError(
                    "hold_out is for a head: between parties write it with "
                    f'protect = "{SILENT}" or private_head = true, or leave it out'
                )
            if self.private_head and self.workers > 1:
                raise ValueError(
                    f"private_head: embeddings are uploaded by one process, and workers = "
                    f"{self.workers}: leave workers out, or private_head"
                )
            return
        if self.width is None:
            raise ValueError(
                f'width is missing: with protect = "{SILENT}" write the same on both sides, such '
                "as width = 32; fewer numbers show less of the inputs"
            )
        if self.share_metrics:
            raise ValueError(
                f'protect = "{SILENT}" does not go with share_metrics = true: measures depend on '
                "labels; leave it out"
            )
        if self.workers > 1:
            raise ValueError(
                f'protect = "{SILENT}": embeddings are uploaded once, by one process, and workers '
                f"= {self.workers}: leave workers out"
            )
        if self.embed_bits < 32 and self.wire != "float32":
            raise ValueError(
                f"wire = {self.wire!r} rounds numbers, and embed_bits = {self.embed_bits} sends "
                "whole codes: leave one of them out"
            )
        if self.record:
            raise ValueError(
                f'record = true keeps gradients that come back, and protect = "{SILENT}" has none: '
                "leave it out"
            )

    def _check_peers(self) -> None:
        if self.role == "feature" and not isinstance(self.peer, str):
            raise ValueError("peer must be one name: a feature party talks to the label party only")
        if not 1 <= len(self.peers) <= MOST_PEERS:
            raise ValueError(f"peer must name 1 to {MOST_PEERS} feature parties")
        names = [self.name, *self.peers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} is there twice in name and peer: parties have own names")

    def _check_workers(self) -> None:
        if self.worker is not None and self.worker >= self.workers:
            raise ValueError(
                f"worker must be a number from 0 to {self.workers - 1}, because "
                f"workers = {self.workers}: got {self.worker}"
            )
        if self.workers > 1 < self.depth:
            raise ValueError(
                f"steps of several workers do not overlap: set depth = 1 for "
                f"workers = {self.workers}, got {self.depth}"
            )
        if self.batch_size % self.workers:
            raise ValueError(
                f"workers must divide batch_size: {self.workers} workers cannot share "
                f"batches of {self.batch_size} equally"
            )
        if self.workers > 1 and self.group is None:
            raise ValueError(
                'group is missing: write group = "127.0.0.1:7790", an address of '
                "worker 0 that only this party's own machines can reach"
            )
        if not isinstance(self.address, str) and len(self.address) != self.workers:
            raise ValueError(
                f"address must be one, or one for each of {self.workers} workers, got "
                f"{len(self.address)}"
            )

    @property
    def endpoint(self) -> str:
        """Where this worker of the label party listens; of one address, the ports count up."""
        worker = self.worker or 0
        if not isinstance(self.address, str):
            return self.address[worker]
        host, _, port = self.address.rpartition(":")
        return f"{host}:{int(port) + worker}" if worker and port.isdigit() else self.address

    @property
    def own_state(self) -> Path:
        """The folder of this process: the state, or within it that of a later worker or version."""
        own = self.of_version(self.version)
        return own / f"worker-{self.worker}" if self.worker else own

    def of_version(self, version: int) -> Path:
        """Return the folder of an upload: the party's state, or within it that of a later one."""
        return self.state if version == 1 else self.state / f"version-{version}"

    @property
    def peers(self) -> tuple[str, ...]:
        """The other parties by name; at the label party the feature parties in their order."""
        return (self.peer,) if isinstance(self.peer, str) else self.peer

    def plan(self, *, classes: int, purpose: Literal["train", "predict"] = "train") -> TrainingPlan:
        """Return what both parties must have the same, as this party has it."""
        from tacit import nets  # noqa: PLC0415 - torch loads only when it is used
        from tacit.wire.protocol.plan import TrainingPlan  # noqa: PLC0415 - as above

        if self.silent:
            return self._upload_plan(predict=purpose == "predict")
        width = nets.get(self.model).cut_width(cut=self.cut, classes=classes)
        return TrainingPlan(
            epochs=self.epochs,
            batch_size=self.batch_size,
            order_seed=self.seed,
            cut=(width,),
            purpose=purpose,
            matching=self.matching,
            test_percent=self.test_percent,
            save_every=self.save_every,
            depth=self.depth,
            wire_bits=32 if self.wire == "float32" else 16,
            workers=self.workers if purpose == "train" else 1,
            worker=(self.worker or 0) if purpose == "train" else 0,
            private_head=self.private_head,
        )

    def _upload_plan(self, *, predict: bool) -> TrainingPlan:
        """Return the plan of uploads; how a head is trained on them is the label party's own."""
        from tacit.wire.protocol.plan import TrainingPlan  # noqa: PLC0415 - as above

        assert self.width is not None  # noqa: S101 - it was checked
        return TrainingPlan(
            epochs=1,
            batch_size=1,
            order_seed=0,
            cut=(self.width,),
            purpose="predict" if predict else "upload",
            matching=self.matching,
            test_percent=0,
            save_every=1,
            wire_bits=32 if self.wire == "float32" else 16,
            embed_bits=self.embed_bits,
            upload_version=self.version,
        )


def read_party_config(path: Path, *, worker: int | None = None) -> PartyConfig:
    """Return the configuration of a TOML file; its paths are relative to the file's folder.

    ``worker`` is the number of this process where the party has several. What neither it nor the
    file says of workers is taken from torchrun's variables, where the process has them.
    """
    values = read_toml(path, source=f"CONFIG {path}")
    for name in _PATHS:
        if isinstance(values.get(name), str):
            values[name] = path.parent / values[name]
    if worker is not None:
        values["worker"] = worker
    for name, value in _from_torchrun().items():
        values.setdefault(name, value)
    return checked(PartyConfig, values, source=str(path))


def _from_torchrun() -> dict[str, str]:
    """Return what torchrun says of this process, as a file would."""
    env = os.environ
    if not {"RANK", "WORLD_SIZE"} <= env.keys() or env["WORLD_SIZE"] == "1":
        return {}
    found = {"worker": env["RANK"], "workers": env["WORLD_SIZE"]}
    if {"MASTER_ADDR", "MASTER_PORT"} <= env.keys():
        # Where torchrun has a store of its own at this port, the next one is the workers'.
        taken = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        port = env["MASTER_PORT"]
        found["group"] = f"{env['MASTER_ADDR']}:{int(port) + taken if port.isdigit() else port}"
    return found


def identity_of(config: PartyConfig) -> Identity:
    """Return the identity that a configuration names."""
    if config.keys is not None:
        return load_identity(config.keys, name=config.name)
    files = config.certificate, config.key, config.ca
    return load_identity(Files(*(Path(file or "") for file in files)), name=config.name)
