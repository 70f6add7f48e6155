"""A silent run over mutual TLS: bytes per row, speed of the upload, and of the head's training.

Two ``tacit party`` processes run twice. The second time the ids are matched already and embeddings
are uploaded anew, so that what the feature party sends, all handshakes included, is the upload. A
relay between the two counts bytes. Then the head is trained from what the label party has stored,
in turns with a bare loop of the same net on tensors, which also looks at the same rows after each
epoch.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any, final

import numpy as np
import torch

from parties import configure, free_port  # type: ignore[import-not-found]
from party_processes import AS_TYPED, train  # type: ignore[import-not-found]
from silent_parties import silent_pair  # type: ignore[import-not-found]
from tacit.heads import HeadSettings, Net
from tacit.heads.net import DenseNet
from tacit.objective import get
from tacit.objective.base import Loss
from tacit.party.config import read_party_config
from tacit.party.label_head import HeadRows, embedded_rows, head_of
from tacit.party.silent_label import SilentLabelSession
from tacit.state_dir import StateFolder
from tacit.training.metrics import utility
from timing import paired_medians

EPOCHS = 3
SOCKETS = 50e6
"""Bytes that the sockets between two parties and a relay may hold, generously."""


@final
class Relay:
    """Passes bytes on between a feature party and a label party, and counts the former's."""

    def __init__(self, target: int) -> None:
        self.sent, self.first, self.last = 0, 0.0, 0.0
        self._target = target
        self._socket = socket.create_server(("127.0.0.1", free_port()))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            here, _ = self._socket.accept()
            try:
                there = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the label party does not listen yet
                here.close()
                continue
            for source, target, counted in ((here, there, True), (there, here, False)):
                threading.Thread(
                    target=self._pass, args=(source, target, counted), daemon=True
                ).start()

    def _pass(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while content := source.recv(1 << 16):
                target.sendall(content)
                if counted:
                    self.sent += len(content)
                    if len(content) > 1 << 12:  # more than words: embeddings
                        self.first = self.first or perf_counter()
                        self.last = perf_counter()
        except OSError:
            pass
        for end in (source, target):
            end.close()


def upload(pair: Any, *, width: int) -> dict[str, float]:  # noqa: ANN401
    """Run twice; return what the second upload took."""
    train(pair, command=AS_TYPED, timeout=500)
    shutil.rmtree(pair.state("bank") / "embeddings")
    (pair.state("platform") / "upload.json").unlink()
    relay = Relay(int(pair.address.rpartition(":")[2]))
    configure(pair.platform, address=f"127.0.0.1:{relay.port}")
    train(pair, command=AS_TYPED, timeout=500)
    common = int(pair.read("bank", "results.json")["common"])
    return {
        "rows": common,
        "bytes_per_row": relay.sent / common,
        "of_the_values": relay.sent / (common * width * 4),
        "megabytes_per_second": common * width * 4 / 1e6 / max(1e-9, relay.last - relay.first),
    }


def head_speed(pair: Any, *, repeats: int) -> float:  # noqa: ANN401
    """Return the time of a bare loop as a share of that of the label party's head."""
    config = read_party_config(pair.bank)
    with (
        closing(StateFolder(config.state)) as folder,
        closing(SilentLabelSession(config, folder, log=lambda _: None)) as session,
    ):
        common = session.common
        assert common is not None
        assert session.table.labels is not None
        rows = HeadRows.of(config, len(common))
        labels = torch.from_numpy(np.asarray(session.table.labels)[common.order])
        examples = embedded_rows(session.table, common, session.stored)
        train_rows, held, test = map(torch.from_numpy, (rows.train, rows.held, rows.test))
        settings = HeadSettings(
            epochs=EPOCHS,
            batch_size=config.batch_size,
            lr=config.lr,
            weight_decay=config.weight_decay,
            seed=config.seed,
        )

        def ours() -> None:
            head_of(config).fit(
                examples,
                labels,
                train=train_rows,
                held=held,
                classes=2,
                settings=settings,
                done=lambda end: _judge(end.head.predict(examples, test), labels[test]),
            )

        bare = _bare(examples, labels, (train_rows, held, test), settings)
        mine, theirs = paired_medians(ours, bare, repeats=repeats)
        return theirs / mine


def _rate(found: dict[str, float], width: int) -> str:
    """Return the rate of an upload that sockets cannot hold as a whole, else that it is unknown."""
    large = found["rows"] * width * 4 > SOCKETS
    return f"{found['megabytes_per_second']:.0f}" if large else "unknown"


def _judge(probs: torch.Tensor, truth: torch.Tensor) -> None:
    utility(probs.numpy(), truth.numpy())


def _bare(
    examples: Any,  # noqa: ANN401
    labels: torch.Tensor,
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    settings: HeadSettings,
) -> Callable[[], None]:
    """Return a plain loop of the same net over tensors in memory."""
    train_rows, held, test = parts
    every = torch.arange(len(examples))
    columns = [part for part in examples.take(every) if part is not None]
    loss = get("bce")
    assert isinstance(loss, Loss)

    def run() -> None:
        model = DenseNet(Net(), examples.width, examples.inputs, 2, seed=settings.seed)
        model.rescale(columns[0][train_rows])
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True
        )
        for _ in range(settings.epochs):
            model.train()
            for batch in torch.split(
                train_rows[torch.randperm(len(train_rows))], settings.batch_size
            ):
                value = loss.loss(model(*(part[batch] for part in columns)), labels[batch])
                optimizer.zero_grad()
                value.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for chosen in (held, test):
                    probs = loss.probabilities(model(*(part[chosen] for part in columns)))
                    _judge(probs, labels[chosen])

    return run


def main() -> int:
    """Print one row of a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pair = silent_pair(
            Path(folder) / "pair",
            rows=asked.rows,
            width=asked.width,
            threads=1,
            bank={"epochs": EPOCHS},
            platform={"pretrain": "random"},
        )
        found = upload(pair, width=asked.width)
        speed = head_speed(pair, repeats=asked.repeats)
    print(
        "| rows | width | bytes per row over TLS | of rows x width x 4 | upload MB/s | head / bare "
        "loop |\n|---|---|---|---|---|---|"
    )
    print(
        f"| {found['rows']} | {asked.width} | {found['bytes_per_row']:.1f} | "
        f"{found['of_the_values']:.4f} | {_rate(found, asked.width)} | {speed:.3f} |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
