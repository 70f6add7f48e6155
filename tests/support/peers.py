"""Two parties in one process, with peers in between that do not keep the rules."""

import re
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from unittest import mock

import pytest
import torch

from parties import MemoryListener, Pair, PausedError, differences
from tacit.errors import LostError
from tacit.party.config import identity_of, read_party_config
from tacit.party.feature_session import FeatureSession
from tacit.party.label import LabelPartySession
from tacit.state_dir import StateFolder
from tacit.training.cut import RECORD_BYTES, Embedding
from tacit.wire.protocol.codec import decode, encode
from tacit.wire.protocol.connection import Timings
from tacit.wire.protocol.header import VERSION, Limits
from tacit.wire.protocol.messages import Align, Heartbeat, Hello, Records, Refuse
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.grpc_server import Listener

TIMINGS = Timings(beat=0.1, silence=5, patience=20, greeting=5)
LONG = 60.0


def tensor(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def train(step, values):
    return Embedding(step=step, values=values)


def listener(config, log):
    """Listen as the label party of a configuration does."""
    return Listener(
        config.address, identity=identity_of(config), peers=config.peers, limits=Limits(), log=log
    )


def dial_to(pair, party="platform"):
    """Open a transport to the label party's address as a feature party does."""
    config = read_party_config(pair.folder / party / "party.toml")
    return dial(
        config.address,
        identity=identity_of(config),
        peer=config.peer,
        limits=Limits(),
        timeout=LONG,
    )


class Rogue:
    """A party that says what it is told to, right or wrong, and nothing else."""

    def __init__(self, transport, pair, party="platform"):
        self.transport = transport
        self.config = read_party_config(pair.folder / party / "party.toml")
        self.plan = self.config.plan(classes=2)
        self.reason = None
        self._pair = pair

    @property
    def cut(self):
        """The shape of a batch's embeddings by the plan."""
        return self.plan.batch_size, *self.plan.cut

    @property
    def ids(self):
        """The ids of the honest feature party, as texts in the order in which it shows them."""
        lines = (self._pair.folder / self.config.name / "features.csv").read_text().splitlines()
        return tuple(sorted(line.split(",", 1)[0] for line in lines[1:]))

    def say(self, *things):
        """Send messages, or bytes as they are."""
        for thing in things:
            frame = thing if isinstance(thing, bytes) else encode(thing)
            self.transport.send(frame, timeout=LONG)

    def hear(self, kind=None):
        """Return the next message that is no sign of life; a refusal is the end."""
        while isinstance(message := decode(self.transport.receive(timeout=LONG)), Heartbeat):
            pass
        if isinstance(message, Refuse):
            self.reason = message.reason
            raise LostError("refused")
        assert kind is None or isinstance(message, kind), message
        return message

    def hello(self, **changes):
        usual = {
            "versions": (VERSION,),
            "party": self.config.name,
            "plan_digest": self.plan.digest(),
            "number": self.config.number,
        }
        return Hello(**{**usual, **changes})

    def greeted(self, offer=0):
        """Say a right hello and return the step from which the answer goes on."""
        self.say(self.hello(resume_point=offer - 1 if offer else None))
        answer = self.hear(Hello)
        return 0 if answer.resume_point is None else answer.resume_point + 1

    def align(self, ids):
        """Show ids and agree on what is common."""
        shared = 0
        for at in range(0, len(ids), 1024):
            piece = ids[at : at + 1024]
            self.say(Align(ids=piece))
            shared += self.hear(Align).count
        while True:  # with several feature parties, which of them all have
            self.say(Align(count=shared))
            if self.hear(Align).held is not None:
                return

    def compare(self):
        """Say that no record of the journal was kept; take those that come, and return them."""
        kept = b""
        while True:
            self.say(Records(count=len(kept) // RECORD_BYTES))
            answer = self.hear(Records)
            if answer.values is None:
                return kept
            kept += answer.content

    def ready(self, offer=0):
        """Do everything right up to the first step; return which one that is."""
        start = self.greeted(offer)
        self.align(self.ids)
        self.compare()
        return start

    def refused(self):
        """Wait for the end and return the reason that was given, None where none was."""
        with suppress(LostError):
            while True:
                self.hear()
        self.transport.close()
        return self.reason


class Bank:
    """The label party at work in a thread, as ``tacit party`` runs it."""

    def __init__(self, pair, *, tls=False, timings=TIMINGS, wrap=None, done=lambda *_: None):
        self.pair, self.lines, self.error, self.results = pair, [], None, None
        self._done, self._tls = done, tls
        self._open = ExitStack()
        self._open.enter_context(
            mock.patch("tacit.party.label_session.Timings", return_value=timings)
        )
        folder = self._open.enter_context(StateFolder(pair.state("bank")))
        config = read_party_config(pair.bank)
        self.party = LabelPartySession(config, folder, log=self.lines.append)
        self._open.callback(self.party.close)
        self._accepting = listener(config, self.lines.append) if tls else MemoryListener()
        self._open.callback(self._accepting.close)
        self._listener = self._accepting if wrap is None else wrap(self._accepting)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.results = self.party.run(self._listener, self._done)
        except BaseException as error:
            self.error = error

    def dial(self):
        """Open a transport to the label party as the feature party would."""
        return dial_to(self.pair) if self._tls else self._accepting.dial()

    def rogue(self):
        return Rogue(self.dial(), self.pair)

    def said(self, pattern, *, since=0):
        """Wait until the log has a line that fits, and return it."""
        deadline = time.monotonic() + LONG
        while time.monotonic() < deadline and self.error is None:
            found = [line for line in self.lines[since:] if re.search(pattern, line)]
            if found:
                return found[0]
            time.sleep(0.005)
        raise AssertionError(f"{pattern!r} is not in {self.lines[since:]}") from self.error

    @property
    def journal(self):
        """What is on record so far, byte for byte."""
        return (self.pair.state("bank") / "journal").read_bytes()

    def stop(self):
        """End the party where it waits for a connection."""
        self._accepting.close()
        with suppress(PausedError):
            self.end()

    def end(self):
        """Wait until the run is over; it must have ended well."""
        self._thread.join(LONG)
        over = not self._thread.is_alive()
        self._open.close()
        assert over, f"the label party goes on: {self.lines}"
        if self.error is not None:
            raise self.error
        return self.results

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self._open.close()


def honest(bank, *, stop=None, done=lambda *_: None, timings=TIMINGS, dial=None, log=None):
    """Run the honest feature party to the end, or to its death after so many steps."""

    def count(step, steps):
        done(step, steps)
        if step == stop:
            raise PausedError

    lines = [] if log is None else log
    with ExitStack() as open_:
        for name, result in (("Timings", lambda: timings), ("dial", dial or bank.dial)):
            stand_in = mock.Mock(side_effect=lambda *_, result=result, **__: result())
            open_.enter_context(mock.patch(f"tacit.party.calling.{name}", stand_in))
        folder = open_.enter_context(StateFolder(bank.pair.state("platform")))
        config = read_party_config(bank.pair.platform)
        party = open_.enter_context(closing(FeatureSession(config, folder, log=lines.append)))
        try:
            return party.run(count)
        except PausedError:
            return None
        except LostError as error:
            error.add_note(
                f"the label party: {vars(bank).get('error')!r}, {vars(bank).get('lines')}"
            )
            raise


def short(**changes):
    """Return the timings of a party that soon loses its patience."""
    return replace(TIMINGS, **changes)


def fresh_pair(folder):
    """Two parties that have not begun: 12 steps, a checkpoint at every fourth and sixth."""
    return Pair(
        folder,
        rows=300,
        epochs=2,
        batch_size=32,
        save_every=4,
        test_percent=20,
        wait=60,
        bank={"attacks": []},
    )


def undisturbed(pair, folder):
    """Return the same parties after a run with nobody else around."""
    made = pair.copy(folder)
    with Bank(made) as bank:
        honest(bank)
        bank.end()
    return made


def finished(bank, wanted, **settings):
    """Let the honest party finish and compare everything with the undisturbed run."""
    honest(bank, **settings)
    assert bank.end()["ended"] == "finished"
    assert not differences(bank.pair, wanted)


@contextmanager
def surroundings(tmp_path_factory):
    """One thread and a cache of its own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield patch
    torch.set_num_threads(threads)
