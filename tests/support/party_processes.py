"""The processes of two parties: started, watched by what they say, killed, started again."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from multiprocessing.reduction import DupFd
from pathlib import Path

TACIT = str(Path(sys.executable).parent / "tacit")
PATIENCE = 120.0


def wait_until(happened, *, timeout=PATIENCE):
    """Wait for something that nobody announces, such as a file."""
    deadline = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


class Running:
    """A process of ``tacit party``, and the lines that it has written so far.

    It is forked from a process that has loaded everything and done nothing, which saves seconds;
    with ``command`` it is the command as one types it, after the words that ``command`` holds, and
    with ``words`` another command than ``party``.
    """

    def __init__(self, config, *more, command=None, words=None):
        words = ["party", str(config), *more] if words is None else words
        self.lines = []
        self._grown = threading.Condition()
        lines, ours = os.pipe()
        forked = command is None
        self.process = _Forked(words, ours) if forked else _Typed([*command, TACIT, *words], ours)
        os.close(ours)
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def _read(self, lines):
        with os.fdopen(lines) as file:
            for line in file:
                self._note(line.rstrip("\n"))
        self._note(None)

    def _note(self, line):
        with self._grown:
            self.lines.append(line)
            self._grown.notify_all()

    @property
    def said(self):
        return "\n".join(line for line in self.lines if line is not None)

    def wait_for(self, pattern, *, timeout=PATIENCE):
        """Return as soon as a line has been written that fits."""

        def seen():
            return any(line is None or re.search(pattern, line) for line in self.lines)

        with self._grown:
            self._grown.wait_for(seen, timeout)
        assert re.search(pattern, self.said), f"{pattern!r} was not said:\n{self.said}"

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        """End the process at once; it must not have ended by itself."""
        self.signal(signal.SIGKILL)
        self.was_killed()

    def was_killed(self):
        assert self.end() == -signal.SIGKILL, f"it had ended before:\n{self.said}"

    def ended(self):
        """Return the exit code, None while there is none."""
        return self.process.poll()

    def end(self, *, timeout=PATIENCE):
        """Wait for the end and return the exit code."""
        wait_until(lambda: self.ended() is not None, timeout=timeout)
        self._reader.join()
        return self.ended()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.ended() is None:
            self.signal(signal.SIGKILL)
        self.end()


class _Typed(subprocess.Popen):
    """The command in a process of its own, both outputs in one pipe."""

    def __init__(self, words, lines):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        super().__init__(words, stdout=lines, stderr=lines, env=env)


class _Forked:
    """The same, forked from a process that is ready for it."""

    _SERVER = multiprocessing.get_context("forkserver")
    _SERVER.set_forkserver_preload(
        ["tacit.cli.app", "tacit.party.label", "torch._dynamo", "party_processes"]
    )

    def __init__(self, words, lines):
        ready = DupFd(lines)
        self._process = self._SERVER.Process(target=_run, args=(words, ready, dict(os.environ)))
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode


def _run(words, lines, environment):
    """Be the command: its outputs, its environment, its exit code."""
    from tacit.cli import main

    os.environ.update(environment)
    pipe = lines.detach()
    for output in (1, 2):
        os.dup2(pipe, output)
    os.close(pipe)
    sys.exit(main(words))


class Training:
    """Both processes of a pair, each of which can be killed and started again."""

    def __init__(self, pair, *, command=None):
        self.pair = pair
        self._command = command or {}
        self._all = ExitStack()
        self.running = {}

    def start(self, party):
        config = self.pair.folder / party / "party.toml"
        self.running[party] = self._all.enter_context(
            Running(config, command=self._command.get(party))
        )
        return self.running[party]

    def kill(self, *parties):
        """End some at the same moment; they must not have ended by themselves."""
        for party in parties:
            self.running[party].signal(signal.SIGKILL)
        for party in parties:
            self.running[party].was_killed()

    def finish(self, *, timeout=PATIENCE):
        both_end(*self.running.values(), timeout=timeout)

    def __enter__(self):
        for party in ("bank", *self.pair.features):
            self.start(party)
        return self

    def __exit__(self, *_):
        self._all.close()


AS_TYPED = {name: [] for name in ("bank", "platform", "bureau", "registry")}


def train(pair, *, command=None, timeout=PATIENCE):
    """Train with two processes to the end."""
    with Training(pair, command=command) as training:
        training.finish(timeout=timeout)


def both_end(*running, timeout=PATIENCE):
    """Wait for the end of all, and see that it was a good one."""
    deadline = time.monotonic() + timeout
    while any(party.ended() is None for party in running):
        failed = any(party.ended() for party in running)
        said = "\n".join(party.said for party in running)
        assert time.monotonic() < deadline and not failed, said  # noqa: PT018
        time.sleep(0.02)
    assert [party.end() for party in running] == [0] * len(running), [p.said for p in running]
