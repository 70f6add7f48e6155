"""What leaves the label party in a run, byte by byte and under attack; planted leaks are found."""

import struct
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import pytest
import torch

from parties import KEY, SECRET, Pair
from peers import Bank, MemoryListener, honest, surroundings
from tacit import Guard, objective, run_audit
from tacit.measure import auc_bound
from tacit.party.schedule import Schedule
from tacit.training.cut import Embedding, Gradient
from tacit.training.party import LabelParty
from tacit.types import View
from tacit.wire.protocol.codec import decode, encode
from tacit.wire.protocol.header import HEADER_BYTES
from tacit.wire.protocol.messages import (
    Align,
    CheckpointMessage,
    Evaluate,
    Heartbeat,
    Hello,
    Records,
)
from tacit.wire.transport.wrappers import RecordingTransport

ATTACKS = (
    *("norm", "cosine", "hint", "mean", "median", "majority", "principal", "energy"),
    *("energy(share=0.9)", "memory", "kmeans(by=direction)", "kmeans", "kmeans(by=both)"),
)
QUICK = ("norm", "mean", "memory")
MARVELL = {"protect": "marvell(s=4, covariance=full)"}
RANDOMISED = {"protect": "none", "labels": "rr(epsilon=1.0)"}
RUN = 16  # so many zeros and ones in a row are no coincidence
TYPES = ("u1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8")


@dataclass
class Run:
    """All that passed between the parties, and all that must not have."""

    frames: list = field(default_factory=list)  # (way, bytes), as the label party's line saw them
    clean: list = field(default_factory=list)  # per step, the gradients of the true labels
    weights: list = field(default_factory=list)  # the top model's, as bytes
    losses: list = field(default_factory=list)
    certificates: list = field(default_factory=list)
    truth: np.ndarray | None = None
    plan: object = None
    history: list = field(default_factory=list)

    @property
    def sent(self):
        return [frame for way, frame in self.frames if way == "sent"]

    @property
    def batches(self):
        """The label party's own order of rows, step by step, with the epoch."""
        parts = Schedule.of(self.plan, len(self.truth)).parts(first=0)
        return [(part.number, rows) for part in parts for rows in part.batches]

    def tape(self):
        """Return what the feature party saw, from the frames alone."""
        seen = {"sent": [], "received": []}
        for way, frame in self.frames:
            message = decode(frame)
            if isinstance(message, Embedding | Gradient):
                seen[way].append(message)
        return [
            View(
                grads=g.values,
                embeddings=e.values,
                ids=rows,
                step=g.step,
                epoch=epoch,
            )
            for (epoch, rows), e, g in zip(
                self.batches, seen["received"], seen["sent"], strict=True
            )
        ]


def spied(run, bank):
    """Patch a label party so that what it must keep is written down; nothing else changes."""
    step, update, release = LabelParty.step, LabelParty.update, Guard.release

    def watched_step(self, rows, embeddings):
        cut = embeddings[0].values.clone().requires_grad_()
        company = bank[0].party
        run.truth = np.asarray(company.table.labels)[company._common.order]
        loss = objective.get("bce").loss(
            self._outputs(rows, cut), torch.from_numpy(run.truth)[rows]
        )
        run.clean.append(torch.autograd.grad(loss, cut)[0])
        run.weights += [
            row.numpy().tobytes()
            for p in self.top.parameters()
            for row in p.detach().clone().reshape(len(p), -1)
        ]
        return step(self, rows, embeddings)

    def watched_update(self):
        run.losses.append(update(self))
        return run.losses[-1]

    def watched_release(self, cut):
        released = release(self, cut)
        run.certificates.append(released.certificate)
        return released

    stack = ExitStack()
    for owner, name, stand_in in (
        (LabelParty, "step", watched_step),
        (LabelParty, "update", watched_update),
        (Guard, "release", watched_release),
    ):
        stack.enter_context(mock.patch.object(owner, name, stand_in))
    return stack


class Tapped(MemoryListener):
    """Hands out lines to the label party that write down every frame."""

    def __init__(self, meeting, frames):
        self._meeting, self._frames = meeting, frames

    def accept(self, *, timeout):
        line = self._meeting.accept(timeout=timeout)
        return RecordingTransport(line, lambda way, frame: self._frames.append((way, frame)))


def record(folder, *, planted=None, **bank_settings):
    """Let both companies train; return everything."""
    pair = Pair(
        folder,
        rows=3000,
        epochs=2,
        batch_size=128,
        save_every=1000,
        test_percent=10,
        wait=60,
        bank={"attacks": [], **bank_settings},
    )
    run, banks = Run(), []
    with spied(run, banks), planted or ExitStack():
        with Bank(pair, wrap=lambda meeting: Tapped(meeting, run.frames)) as bank:
            banks.append(bank)
            honest(bank)
            bank.end()
        run.plan, run.history = bank.party.plan, bank.results["history"]
    return run


# --- byte by byte ---


def windows(data):
    """Return all pieces of eight bytes, as sorted numbers."""
    parts = [np.frombuffer(data[at : at + (len(data) - at) // 8 * 8], "<u8") for at in range(8)]
    return np.sort(np.concatenate(parts))


def any_in(patterns, data, known):
    """Whether one of the patterns, of eight bytes or more, is in the data."""
    first = np.array([int.from_bytes(p[:8], "little") for p in patterns], dtype=np.uint64)
    there = known[np.searchsorted(known, first).clip(max=len(known) - 1)] == first
    return any(patterns[k] in data for k in np.flatnonzero(there))


def columns(run):
    """Return the labels in every order that both parties know: by batch, and all of them."""
    return [*(run.truth[rows.numpy()] for _, rows in run.batches), run.truth]


def packed(labels):
    """Return labels as bits from every place on, both ways round."""
    twice = np.concatenate([labels, labels]).astype(np.uint8)
    return [
        np.packbits(twice[at : at + 128], bitorder=order).tobytes()
        for at in range(len(labels))
        for order in ("big", "little")
    ]


def has_bits(data):
    """Whether there is a row of zeros and ones, both of them, as numbers of any type."""
    for kind in map(np.dtype, TYPES):
        as_bits = f"<u{kind.itemsize}"
        one = np.ones(1, kind).view(as_bits)[0]
        for at in range(kind.itemsize):
            end = at + (len(data) - at) // kind.itemsize * kind.itemsize
            numbers = np.frombuffer(data[at:end], as_bits)
            inside = (numbers == 0) | (numbers == one)
            edges = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]])))
            starts, ends = edges[::2], edges[1::2]
            for a, b in zip(starts[ends - starts >= RUN], ends[ends - starts >= RUN], strict=True):
                if 0 < np.count_nonzero(numbers[a:b]) < b - a:
                    return True
    return False


def has_floats(body, numbers):
    """Whether one of the numbers is among the float32 values of a body.

    At any other place four bytes may be the same by chance.
    """
    values = np.frombuffer(body[: len(body) // 4 * 4], "<u4")
    return bool(np.isin(np.array(numbers, "<f4").view("<u4"), values).any())


def leaks(run, sent=None):
    """Return what of the label party's own is in the frames that left it."""
    frames = run.sent if sent is None else sent
    data = b"".join(frames)
    known = windows(data)
    secrets = [form for secret in (KEY, SECRET) for form in (secret, secret.hex().encode())]
    measures = [v for epoch in run.history for v in epoch["test"].values()] + run.losses
    numbers = [np.float64(v).tobytes() for v in measures]
    texts = [f"{v:.4f}".encode() for v in measures]
    rows = [row.numpy().tobytes() for grads in run.clean for row in grads]
    weights = [row for row in run.weights if len(row) >= 8]
    found = {
        "a key": any_in(secrets, data, known),
        "a clean gradient": any_in(rows, data, known),
        "a weight of the top model": any_in(weights, data, known),
        "a loss or a measure": any(n in data for n in numbers + texts)
        or any(has_floats(f[HEADER_BYTES:], measures) for f in frames),
        "labels as bits": any(any_in(packed(c), data, known) for c in columns(run)),
        "labels as numbers": any(has_bits(body(f)) for f in frames),
        "bytes that are no message": not all(map(plain, frames)),
    }
    return {name for name, there in found.items() if there}


def body(frame):
    """Return what follows the header, without the numbers in a record that both parties know."""
    with suppress(RuntimeError):
        message = decode(frame)
        if isinstance(message, Gradient):
            record = message.record
            _, *known = struct.unpack_from("<qqqq", record)
            assert known == [1, message.step, message.step]
            return frame[HEADER_BYTES : -len(record)] + record[32:]
    return frame[HEADER_BYTES:]


def plain(frame):
    """Whether a frame is exactly one message that a label party may send, without a note."""
    try:
        message = decode(frame)
    except RuntimeError:
        return False
    allowed = isinstance(
        message, Hello | Align | Records | Gradient | CheckpointMessage | Heartbeat
    ) or (isinstance(message, Evaluate) and message.note is None and message.values is None)
    return allowed and encode(message) == frame


# --- under attack ---


def broken(run, *, labels=None, certificate=None, attacks=ATTACKS):
    """Return the attacks that got further than was claimed, or than features alone allow."""
    truth = {row: int(label) for row, label in enumerate(run.truth)}
    audit = run_audit(run.tape(), truth, attacks=attacks, certificate=certificate)
    assert {row["attack"] for row in audit.table} == {*attacks}
    if labels is None:
        claimed = auc_bound(certificate.sum_kl * run.plan.epochs)
    else:
        baseline = audit.record["baseline"]["auc"]
        guard = Guard("none", labels=labels, seed=0)
        claimed = guard.label_certificate(baseline_auc=baseline).combined_auc
    assert claimed < 0.85, "a claim that allows everything would hide everything"
    return {
        row["attack"]
        for row in audit.table
        if row["state"] == "leaks" and row["low"] > (row["bound"] or claimed)
    }


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory):
    with surroundings(tmp_path_factory):
        yield


@pytest.fixture(scope="module")
def marvell(tmp_path_factory):
    return record(tmp_path_factory.mktemp("marvell") / "pair", **MARVELL)


@pytest.fixture(scope="module")
def randomised(tmp_path_factory):
    return record(tmp_path_factory.mktemp("rr") / "pair", **RANDOMISED)


def weakest(run):
    return max(run.certificates, key=lambda certificate: certificate.sum_kl)


def test_nothing_of_its_own_leaves_a_label_party_with_marvell(marvell):
    assert len(marvell.clean) == len(marvell.batches) == len(marvell.certificates) > 30
    assert leaks(marvell) == set()


def test_nothing_of_its_own_leaves_a_label_party_with_randomised_labels(randomised):
    assert leaks(randomised) == set()


def test_attacks_stay_within_what_marvell_claims(marvell):
    assert broken(marvell, certificate=weakest(marvell)) == set()


def test_attacks_stay_within_what_randomised_labels_claim(randomised):
    assert broken(randomised, labels=RANDOMISED["labels"]) == set()


# --- leaks that were planted ---


def test_a_guard_that_lets_gradients_through_is_found(tmp_path, marvell):
    release = Guard.release

    def careless(self, cut):
        return replace(release(self, cut), grads=cut.grads)

    open_ = mock.patch.object(Guard, "release", careless)
    run = record(tmp_path / "pair", planted=open_, **MARVELL)
    assert leaks(run) == {"a clean gradient"}
    assert broken(run, certificate=weakest(marvell), attacks=QUICK) == {*QUICK}


def test_a_mechanism_that_did_not_run_is_found(tmp_path):
    run = record(tmp_path / "pair", protect="none")
    assert leaks(run) == {"a clean gradient"}
    assert broken(run, labels=RANDOMISED["labels"], attacks=QUICK) == {*QUICK}


HIDDEN = {
    **{
        f"labels as {kind}": (
            lambda run, kind=kind: columns(run)[5].astype(kind).tobytes(),
            "labels as numbers",
        )
        for kind in TYPES
    },
    "labels as bits": (lambda run: packed(columns(run)[5])[0], "labels as bits"),
    "labels as bits, turned": (lambda run: packed(columns(run)[-1])[77], "labels as bits"),
    "the noise key": (lambda _: KEY, "a key"),
    "the label secret as text": (lambda _: SECRET.hex().encode(), "a key"),
    "a clean gradient": (lambda run: run.clean[7][3].numpy().tobytes(), "a clean gradient"),
    "a row of weights": (lambda run: run.weights[3], "a weight of the top model"),
    "a loss": (lambda run: np.float64(run.losses[9]).tobytes(), "a loss or a measure"),
    "a loss as float32": (lambda run: np.float32(run.losses[9]).tobytes(), "a loss or a measure"),
    "a measure": (
        lambda run: f"auc {run.history[0]['test']['auc']:.4f}".encode(),
        "a loss or a measure",
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_appended_to_a_frame_is_found(marvell, name):
    make, says = HIDDEN[name]
    frames = list(marvell.sent)
    place = next(n for n, f in enumerate(frames) if isinstance(decode(f), Gradient)) + 5
    frames[place] += make(marvell)
    assert {says, "bytes that are no message"} <= leaks(marvell, frames)


def test_a_note_with_a_measure_is_found(tmp_path):
    run = record(tmp_path / "pair", share_metrics=True, **MARVELL)
    assert leaks(run) == {"bytes that are no message"}, "rounded, it is no measure of the model"
