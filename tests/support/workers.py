"""Two parties with several workers each: their folders, and runs of all workers."""

import threading
from contextlib import ExitStack, closing

from parties import MemoryListener, Pair, configure, free_port, ignore
from party_processes import Running, both_end
from tacit.party.config import read_party_config
from tacit.party.feature_session import FeatureSession
from tacit.party.label import LabelPartySession
from tacit.party.workers.label_worker import LabelWorker
from tacit.state_dir import StateFolder


class Pairs(Pair):
    """A bank and a platform with so many workers each."""

    def __init__(self, folder, *, workers=2, **more):
        super().__init__(folder, workers=workers, **more)
        self.workers = workers
        self._give_addresses()

    def _give_addresses(self):
        """Give every worker and both groups an address of their own."""
        workers = self.workers
        ports = sorted({free_port() for _ in range(workers + 8)})[: workers + 2]
        address = [f"127.0.0.1:{port}" for port in ports[:workers]]
        for config, port in zip((self.bank, self.platform), ports[workers:], strict=True):
            configure(config, address=address, group=f"127.0.0.1:{port}")

    def copy(self, folder):
        made = super().copy(folder)
        made.workers = self.workers
        made._give_addresses()
        return made

    def each(self):
        """Return party and number of every worker, those that listen first."""
        return [(party, n) for party in ("bank", "platform") for n in range(self.workers)]

    def config(self, party, worker):
        return read_party_config(self.folder / party / "party.toml", worker=worker)


def train_here(pairs, monkeypatch, *, log=lambda *_: None):
    """Train with all workers in this process, a thread each; return their setups."""
    listeners = {pairs.config("bank", n).endpoint: MemoryListener() for n in range(pairs.workers)}
    monkeypatch.setattr("tacit.party.calling.dial", lambda address, **_: listeners[address].dial())
    work, setups, failed = [], {}, []

    def run(setup, *args):
        try:
            with closing(setup):
                setup.run(*args)
        except BaseException as error:
            failed.append(error)

    with ExitStack() as stack:
        (pairs.folder / "bank" / "state").mkdir(mode=0o700, exist_ok=True)
        (pairs.folder / "platform" / "state").mkdir(mode=0o700, exist_ok=True)
        for party, number in pairs.each():
            config = pairs.config(party, number)
            folder = stack.enter_context(StateFolder(config.own_state))
            label = LabelWorker if number else LabelPartySession
            kind = FeatureSession if party == "platform" else label
            setup = kind(config, folder, log=lambda text, who=(party, number): log(who, text))
            setups[party, number] = setup
            args = (ignore,) if party == "platform" else (listeners[config.endpoint], ignore)
            work.append(threading.Thread(target=run, args=(setup, *args), daemon=True))
        for thread in work:
            thread.start()
        for thread in work:
            thread.join(timeout=120)
            assert not thread.is_alive(), "a worker does not end"
    if failed:
        raise failed[0]
    return setups


class WorkerProcesses:
    """A process for every worker of both parties, each of which can be killed and come back."""

    def __init__(self, pairs):
        self.pairs = pairs
        self._all = ExitStack()
        self.running = {}

    def start(self, party, worker):
        config = self.pairs.folder / party / "party.toml"
        self.running[party, worker] = self._all.enter_context(
            Running(config, "--worker", str(worker))
        )
        return self.running[party, worker]

    def finish(self):
        both_end(*self.running.values())

    def __enter__(self):
        for party, worker in self.pairs.each():
            self.start(party, worker)
        return self

    def __exit__(self, *_):
        self._all.close()
