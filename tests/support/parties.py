"""Two parties in two folders, and what their runs have left there."""

import json
import random
import re
import shutil
import socket
import struct
import threading
import tomllib
from contextlib import ExitStack, closing
from pathlib import Path
from queue import Empty, Queue

import numpy as np
from safetensors.numpy import load_file

from tacit.cli.init import make_pair
from tacit.errors import SilenceError
from tacit.wire.transport.memory import memory_transports
from tacit.wire.transport.tls import make_party

KEY, SECRET = bytes(range(32)), bytes(range(32, 64))
_RECORD, _HEADER = struct.Struct("<qqqq32s32s16s"), 256


def free_port():
    """Return a port that nobody listens on, below those that outgoing connections take."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def configure(path, **changes):
    """Change settings of a party's file; None removes one."""
    settings = {**tomllib.loads(path.read_text()), **changes}
    lines = [
        f"{name} = {json.dumps(value)}\n" for name, value in settings.items() if value is not None
    ]
    path.write_text("".join(lines))


def write_secret(path, secret):
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(secret)


class Pair:
    """Both parties' folders, with known secrets, and what their runs have left there."""

    features = ("platform",)

    def __init__(self, folder, *, rows=600, bank=None, address=None, **both):
        self.folder = Path(folder)
        self.address = address or f"127.0.0.1:{free_port()}"
        self.bank, self.platform = make_pair(self.folder, address=self.address, rows=rows)
        both.setdefault("matching", "clear")  # in private, every run has an order of its own
        configure(self.bank, **both, **(bank or {}))
        configure(self.platform, **both)
        write_secret(self.bank.parent / "state" / "noise.key", KEY)
        write_secret(self.bank.parent / "labels.csv.secret", SECRET)

    def copy(self, folder):
        """Return the same parties in other folders, with all that they have done so far."""
        made = object.__new__(type(self))
        made.folder, made.address = Path(folder), f"127.0.0.1:{free_port()}"
        shutil.copytree(self.folder, folder)
        made.bank, made.platform = (
            made.folder / name / "party.toml" for name in ("bank", "platform")
        )
        for name in ("bank", *self.features):
            configure(made.folder / name / "party.toml", address=made.address)
        return made

    def state(self, party):
        return self.folder / party / "state"

    def checkpoint(self, party):
        """Return all arrays of the last checkpoint, by file, and its step."""
        last = max(self.state(party).glob("checkpoints/step-*"), key=_attempt_of)
        names = ("model", "optimizer", "state")
        return {name: load_file(last / f"{name}.safetensors") for name in names}, _attempt_of(last)[
            0
        ]

    def journal(self):
        """Return the answers on record in order: kind, step and both marks."""
        data = (self.state("bank") / "journal").read_bytes()[_HEADER:]
        assert len(data) % _RECORD.size == 0
        return [
            (kind, step, seen, sent)
            for _, kind, step, _, seen, sent, _ in _RECORD.iter_unpack(data)
        ]

    def releases(self):
        """Return the steps whose releases are on record, in order."""
        return [step for kind, step, _, _ in self.journal() if kind == 1]

    def read(self, party, name):
        return json.loads((self.state(party) / name).read_text())

    def history(self):
        """Return the measures of every epoch but those of the live monitor.

        It looks at what passes by in one process, and a restart begins it anew.
        """
        epochs = self.read("bank", "history.json")
        return {
            key: {n: v for n, v in epoch.items() if n != "leak"} for key, epoch in epochs.items()
        }


class Quartet(Pair):
    """A bank and three feature parties, each of which lacks some rows that the others have."""

    features = ("platform", "bureau", "registry")

    def __init__(self, folder, *, combine="sum", bank=None, **more):
        peers = {"peer": list(self.features), "combine": combine}
        super().__init__(folder, bank={**(bank or {}), **peers}, **more)
        for number, name in enumerate(self.features[1:], start=1):
            folder = self.folder / name
            shutil.copytree(self.folder / "platform", folder)
            for file in make_party(self.folder / "authority", name).certificate.parent.glob("*"):
                if file.stem == name:
                    shutil.move(file, folder / "keys")
            configure(folder / "party.toml", name=name, number=number)
            table = folder / "features.csv"
            header, *rows = table.read_text().splitlines(keepends=True)
            table.write_text(header + "".join(rows[10 * number :]))


def _attempt_of(folder):
    found = re.fullmatch(r"step-(\d+)(?:\.(\d+))?", folder.name)
    return int(found[1]), int(found[2] or 0)


def same_bits(one, other):
    """Whether two groups of arrays are equal to the last bit."""
    return one.keys() == other.keys() and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in ((one[name], other[name]) for name in one)
    )


def differences(run, wanted):
    """Return what two finished runs do not have in common, each in a few words."""
    found = []
    for party in ("bank", *run.features):
        (ours, step), (theirs, wanted_step) = run.checkpoint(party), wanted.checkpoint(party)
        if step != wanted_step:
            found.append(f"{party}: step {step}, not {wanted_step}")
        parts = ("model", "optimizer", "state")
        found += [f"{party}: {n}" for n in parts if not same_bits(ours[n], theirs[n])]
    steps = run.releases()
    if steps != list(range(len(steps))):
        found.append("journal: not every step once")
    if run.journal() != wanted.journal():
        found.append("journal: other releases")
    if run.history() != wanted.history():
        found.append("history")
    ledgers = [pair.read("bank", "results.json")["ledger"] for pair in (run, wanted)]
    if ledgers[0] is None or ledgers[0] != ledgers[1]:
        found.append("ledger")
    return found


def train_here(pair, monkeypatch):
    """Train with both parties in this process, over memory transports."""
    from tacit.party.config import read_party_config
    from tacit.party.feature_session import FeatureSession
    from tacit.party.label import LabelPartySession
    from tacit.state_dir import StateFolder

    listener = MemoryListener()
    monkeypatch.setattr("tacit.party.calling.dial", lambda *_, **__: listener.dial())
    with ExitStack() as stack:
        folder = {
            name: stack.enter_context(StateFolder(pair.state(name)))
            for name in ("bank", *pair.features)
        }
        label = LabelPartySession(read_party_config(pair.bank), folder["bank"], log=ignore)
        work = [threading.Thread(target=label.run, args=(listener, ignore))]
        for name in pair.features:
            config = read_party_config(pair.folder / name / "party.toml")
            feature = stack.enter_context(closing(FeatureSession(config, folder[name], log=ignore)))
            work.append(threading.Thread(target=feature.run, args=(ignore,)))
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        label.close()


class PausedError(Exception):
    """A party's process ends here."""


class MemoryListener:
    """Opens and accepts transports through the memory of one process."""

    def __init__(self):
        self._accepted = Queue()

    def dial(self):
        ours, theirs = memory_transports()
        self._accepted.put(theirs)
        return ours

    def accept(self, *, timeout):
        try:
            transport = self._accepted.get(timeout=timeout)
        except Empty:
            raise SilenceError(f"no peer has connected for {timeout:g} s") from None
        if transport is None:
            raise PausedError
        return transport

    def close(self):
        """End the party that accepts here, as if its process had ended."""
        self._accepted.put(None)


def ignore(*_):
    pass


def rows_of(ids, table):
    """Return the rows of ids in a table."""
    row_of = {id_: row for row, id_ in enumerate(table.ids.tolist())}
    return np.array([row_of[id_] for id_ in ids])


def as_arrays(model):
    return {name: np.asarray(value.detach()) for name, value in model.state_dict().items()}
