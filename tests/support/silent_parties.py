"""Parties of a run that sends embeddings once: their folders, and both at work in one process."""

import csv
import threading
from contextlib import ExitStack, closing

import numpy as np

from parties import MemoryListener, Pair, PausedError, Quartet, configure, ignore
from tacit.party import calling, predict
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
        configure(pair.folder / name / "party.toml", record=None, **method)
    return pair


def silent_quartet(folder, **more):
    """Make a label party and three feature parties for a silent run."""
    return silent_pair(folder, kind=Quartet, **more)


class Traffic:
    """Every frame that crosses, by who sent it.

    With ``stop``, the ``victim`` ends when so many parts are there: the label party when it has
    stored the last of them and not said so, the feature party when it has heard of it.
    """

    def __init__(self, *, stop=None, victim=None):
        self.frames = {"label": [], "feature": []}
        self.stop, self.victim, self.over = stop, victim, False

    def wrap(self, transport):
        """Return a feature party's transport that is listened to."""

        def heard(way, frame):
            self.frames["feature" if way == "sent" else "label"].append(bytes(frame))

        return RecordingTransport(transport, heard)


def run_here(pair, *, traffic=None, names=None):
    """Run a silent training in this process; return the results of all parties by name."""
    listener, found, errors = MemoryListener(), {}, []
    traffic = Traffic() if traffic is None else traffic

    def dial(*_, **__):
        if traffic.over:
            raise PausedError
        return traffic.wrap(listener.dial())

    def work(name, session, *args):
        def told(done, _):
            if (name, done) == (traffic.victim, traffic.stop):
                raise PausedError

        try:
            found[name] = session.run(*args, told)
        except BaseException as error:
            errors.append(error)
            traffic.over = True
            listener.close()

    real, calling.dial = calling.dial, dial
    try:
        with ExitStack() as stack:
            threads = []
            for name in names or ("bank", *pair.features):
                config = read_party_config(pair.folder / name / "party.toml")
                folder = stack.enter_context(StateFolder(config.own_state))
                kind = SilentLabelSession if name == "bank" else SilentFeatureSession
                session = stack.enter_context(closing(kind(config, folder, log=ignore)))
                args = (listener,) if name == "bank" else ()
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


def predicted_here(pair, out):
    """Score the parties' own tables as new rows; return the scores as written, by id."""
    listener, errors = MemoryListener(), []
    real = predict.dialler, predict.listen
    predict.dialler, predict.listen = lambda _: listener.dial, lambda *_: listener

    def work(config):
        try:
            predict.predict_rows(config, config.data, out, log=ignore)
        except BaseException as error:
            errors.append(error)

    try:
        configs = [read_party_config(path) for path in (pair.bank, pair.platform)]
        threads = [threading.Thread(target=work, args=(config,)) for config in configs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
    finally:
        predict.dialler, predict.listen = real
    if errors:
        raise errors[0]
    with out.open() as file:
        return {row["id"]: row["score"] for row in csv.DictReader(file)}


def stored(pair, peer="platform", *, version=1, width=WIDTH):
    """Return the embeddings that the label party has of a feature party."""
    state = pair.state("bank")
    folder = state if version == 1 else state / f"version-{version}"
    return np.fromfile(folder / "embeddings" / f"{peer}.f32", dtype="<f4").reshape(-1, width)


def silent_differences(run, wanted):
    """Return what two finished silent runs do not have in common, each in a few words."""
    names = [("bank", f"embeddings/{peer}.f32") for peer in run.features]
    names += [(peer, "bottom.safetensors") for peer in run.features]
    names += [("bank", "head.safetensors"), ("bank", "history.json")]
    return [
        f"{party}: {name}"
        for party, name in names
        if (run.state(party) / name).read_bytes() != (wanted.state(party) / name).read_bytes()
    ]
