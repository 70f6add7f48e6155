"""Two networks of their own, with nothing in them but a line from one to the other."""

from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import DEVNULL, PIPE, Popen, run

PARTIES = ("bank", "platform")
BANK, PLATFORM = "10.77.0.1", "10.77.0.2"


@dataclass(frozen=True)
class Spaces:
    """The networks, each held by a process that does nothing."""

    pids: dict[str, int]

    @property
    def commands(self):
        """What to put before a command that is to run in a party's network."""
        return {party: ["nsenter", "-t", str(pid), "-n"] for party, pid in self.pids.items()}

    def inside(self, party, *words):
        """Run a command in a party's network."""
        return run([*self.commands[party], *words], check=True, capture_output=True)  # noqa: S603


@contextmanager
def namespaces():
    """Make both networks, or yield None where that is not permitted."""
    holders = [
        Popen(["unshare", "-n", "cat"], stdin=PIPE, stdout=PIPE, stderr=DEVNULL)  # noqa: S607
        for _ in PARTIES
    ]
    try:
        ready = [_is_there(holder) for holder in holders]
        pids = dict(zip(PARTIES, (holder.pid for holder in holders), strict=True))
        yield _joined(Spaces(pids)) if all(ready) else None
    finally:
        for holder in holders:
            holder.communicate()


def _is_there(holder):
    """Whether the process has its network; it ends at once where that is not permitted."""
    try:
        holder.stdin.write(b"ready\n")
        holder.stdin.flush()
    except BrokenPipeError:
        return False
    return holder.stdout.readline() == b"ready\n"


def _joined(spaces):
    ends = [str(spaces.pids[party]) for party in PARTIES]
    made = run(  # noqa: S603
        [  # noqa: S607
            "ip",
            "link",
            "add",
            "bank",
            "netns",
            ends[0],
            "type",
            "veth",
            "peer",
            "name",
            "platform",
            "netns",
            ends[1],
        ],
        check=False,
        stderr=DEVNULL,
    )
    if made.returncode:
        return None
    for party, place in zip(PARTIES, (BANK, PLATFORM), strict=True):
        spaces.inside(party, "ip", "addr", "add", f"{place}/24", "dev", party)
        spaces.inside(party, "ip", "link", "set", party, "up")
        spaces.inside(party, "ip", "link", "set", "lo", "up")
    return spaces
