"""Parties of a run that sends embeddings once: their folders, and both at work in one process."""

import threading
from contextlib import ExitStack, closing

import numpy as np

from parties import MemoryListener, Pair, Quartet, configure, ignore
from tacit.party import calling
from tacit.party.config import read_party_config
from tacit.party.silent_feature import SilentFeatureSession
from tacit.party.silent_label import SilentLabelSession
from tacit.state_dir import StateFolder
from tacit.wire.transport.wrappers import RecordingTransport

LONG = 120.0
WIDTH = 6
BANK = {"labels": None, "share_metrics": None, "on_odd_embeddings": None, "epochs": 3}


def silent_pair(folder, *, rows=400, kind=Pair, bank=None, platform=None, **both):
    """Make parties that agree on a silent run with small embeddings."""
    both = {"protect": "silent", "width": WIDTH, **both}
    pair = kind(folder, rows=rows, bank={**BANK, **(bank or {})}, **both)
    for name in pair.features:
        method = {"pretrain": "pca"} if platform is None else platform
        configure(pair.folder / name / "party.toml", record=None, share_metrics=None, **method)
    return pair


def silent_quartet(folder, **more):
    """Make a label party and three feature parties for a silent run."""
    return silent_pair(folder, kind=Quartet, **more)


class Traffic:
    """Every frame that crosses, by who sent it."""

    def __init__(self):
        self.frames = {"label": [], "feature": []}

    def wrap(self, transport):
        """Return a feature party's transport that is listened to."""

        def heard(way, frame):
            self.frames["feature" if way == "sent" else "label"].append(frame)

        return RecordingTransport(transport, heard)


def run_here(pair, *, traffic=None, names=None, lines=None):
    """Run a silent training in this process; return the results of all parties by name."""
    listener, found, errors = MemoryListener(), {}, []
    say = ignore if lines is None else lines.append

    def work(name, session, *args):
        try:
            found[name] = session.run(*args)
        except BaseException as error:
            errors.append(error)

    def dial(*_, **__):
        transport = listener.dial()
        return transport if traffic is None else traffic.wrap(transport)

    real, calling.dial = calling.dial, dial
    try:
        with ExitStack() as stack:
            threads = []
            for name in names or ("bank", *pair.features):
                config = read_party_config(pair.folder / name / "party.toml")
                folder = stack.enter_context(StateFolder(config.own_state))
                kind = SilentLabelSession if name == "bank" else SilentFeatureSession
                session = stack.enter_context(closing(kind(config, folder, log=say)))
                args = (listener, ignore) if name == "bank" else (ignore,)
                threads.append(threading.Thread(target=work, args=(name, session, *args)))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LONG)
    finally:
        calling.dial = real
    if errors:
        raise errors[0]
    return found


def stored(pair, peer="platform", *, version=1, width=WIDTH):
    """Return the embeddings that the label party has of a feature party."""
    state = pair.state("bank")
    folder = state if version == 1 else state / f"version-{version}"
    return np.fromfile(folder / "embeddings" / f"{peer}.f32", dtype="<f4").reshape(-1, width)
