"""Write the golden files anew: only where a format was changed on purpose, with a new version.

Call it as ``PYTHONPATH=src:tests/support python tests/golden/make.py NAME ...``, with the names of
what to write. Tests read these files and never write them.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

from format_examples import (
    CURSOR,
    FRAMES,
    GOLDEN,
    LAYERED,
    RUN,
    SECRET,
    STATES,
    fill,
    folder_forms,
    list_forms,
    made_model,
    party_forms,
    recommend_forms,
    training_forms,
    write_forms,
)
from study_examples import dump, study_text
from tacit.party.checkpoint import CheckpointStore
from tacit.party.journal import Journal
from tacit.party.record_exchange import RecordCopy
from tacit.tape import TapeWriter
from tacit.wire.protocol.codec import encode


def frames(_folder):
    made = {
        name: encode(message, narrow=narrow).hex() for name, (message, narrow) in FRAMES.items()
    }
    (GOLDEN / "frames_v2.json").write_text(json.dumps(made, indent=1) + "\n")


def tape(_folder):
    place = GOLDEN / "tape_v1_layers.tape"
    shutil.rmtree(place, ignore_errors=True)
    with TapeWriter(place) as writer:
        for ids, grads, layers in LAYERED:
            writer.append(ids, grads, layers=layers)


def checkpoint(_folder):
    place = GOLDEN / "checkpoints_v1"
    shutil.rmtree(place, ignore_errors=True)
    model, optimizer = made_model(trained=True)
    CheckpointStore(place, run=RUN).save(
        3, models={"bottom": model}, optimizers={"bottom": optimizer}, cursor=CURSOR, states=STATES
    )


def journal(folder):
    place, witness, copied = folder / "journal", folder / "witness", folder / "records"
    with Journal.open(place, run=RUN, secret=SECRET, witness=witness) as held:
        fill(held)
        copy = RecordCopy.open(copied, run=RUN)
        copy.keep(held.read(0, held.count))
        copy.close()
    for made, name in ((place, "journal_v2"), (witness, "witness_v1"), (copied, "records_v2")):
        shutil.copyfile(made, GOLDEN / name)


def commands(folder):
    write_forms(GOLDEN / "train_and_audit.json", training_forms(folder))
    write_forms(GOLDEN / "run_directory.json", folder_forms(folder / "run-noise"))
    write_forms(GOLDEN / "list.json", list_forms())
    write_forms(GOLDEN / "recommend.json", recommend_forms())


def party(folder):
    write_forms(GOLDEN / "party.json", party_forms(folder / "parties"))


def studies(_folder):
    (GOLDEN / "studies.json").write_text(study_text(dump()))


WRITERS = (frames, tape, checkpoint, journal, commands, party, studies)


def run():
    known = {writer.__name__: writer for writer in WRITERS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=known)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TACIT_CACHE"] = f"{folder}/cache"
        for name in parser.parse_args().names:
            known[name](Path(folder))


if __name__ == "__main__":
    run()
