"""``tacit init``: two companies in two folders, ready to train together."""

from __future__ import annotations

import shutil
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from tacit.errors import UsageError

BANK, PLATFORM = "bank", "platform"
EPOCHS, TARGET = 5, 0.65
"""How many epochs the sample is trained for, and the leak AUC that is planned for all of them."""

_SHARED = """
model = "mlp(hidden=32)"         # see tacit list models
lr = 2e-3                        # this party's own
weight_decay = 3e-4              # the same; randomised labels want more, such as 0.003
threads = 1                      # while both share a machine; without this line, all cores it has

# Both sides must say the same here; it is compared when they meet.
epochs = $epochs
batch_size = 256
seed = 7                         # of the common order of rows; no secret
matching = "private"             # of ids; "clear" is faster and shows the label party all of them
test_percent = 10                # rows held out to evaluate on
save_every = 50                  # steps between checkpoints
depth = 1                        # 2 to 4: so many steps overlap, faster, on slightly older weights
wire = "float32"                 # or bfloat16: half the bytes, rounded values
"""
_PARTY = {
    BANK: Template(
        """# The label party: it holds the labels and the upper part of the model, and it listens.
role = "label"
name = "bank"
peer = "platform"                # who may connect: the name in its certificate
address = "$address"     # where to listen
keys = "keys"                    # bank.pem, bank.key, ca.pem; in production from your own CA
data = "labels.csv"              # what its columns mean is in labels.csv.schema.toml
state = "state"                  # checkpoints, journal and noise key; only you may read it
wait = 600                       # seconds to wait for the other party
"""
        + _SHARED
        + """
# What leaves this party about its labels. See tacit list protections and tacit list labels.
# Every epoch releases each example once more, and what that tells adds up: protect is planned for
# $epochs epochs and a leak AUC of $target after all of them. For others, take what this prints:
# tacit recommend --target $target --epochs $epochs --examples $rows
protect = "$protect"
# labels = "$labels"   # randomise every label once instead: no epoch adds to it
# budget = "$budget"          # refuses to begin if protect is not planned for all epochs
share_metrics = false            # true tells the other party test AUC and accuracy, rounded
on_odd_embeddings = "warn"       # or refuse: embeddings that no honest bottom model sends
# witness = "../bank.witness"    # outside of state: shows if state was restored from a copy
"""
    ),
    PLATFORM: Template(
        """# The feature party: it holds features and the lower part of the model, and it connects.
role = "feature"
name = "platform"
peer = "bank"                    # the name that the other side's certificate must have
address = "$address"     # where the label party listens
keys = "keys"                    # platform.pem, platform.key, ca.pem
data = "features.csv"            # what its columns mean is in features.csv.schema.toml
state = "state"                  # checkpoints; only you may read it
wait = 600                       # seconds to wait for the other party
"""
        + _SHARED
        + """
record = false                   # true writes what this party sees to a tape, for tacit audit
"""
    ),
}


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    address: Annotated[str, typer.Option(help="Where the label party listens.")] = "127.0.0.1:7700",
    rows: Annotated[int, typer.Option(help="Rows of the sample tables.")] = 20_000,
) -> None:
    """Make two companies to try: configurations, keys and sample tables for each.

    The keys come from an authority for trials; in production each company has its own.
    """
    bank, platform = make_pair(directory, address=address, rows=rows)
    typer.echo(f"{bank.parent} is the label party's folder, {platform.parent} the feature party's.")
    typer.echo("Train together, each in a terminal of its own:")
    typer.echo(f"  tacit party {bank}")
    typer.echo(f"  tacit party {platform}")
    typer.echo("On two machines: copy one folder there and set address on both sides.")


def make_pair(directory: Path, *, address: str, rows: int) -> tuple[Path, Path]:
    """Fill a new folder; return the configurations of the label and the feature party."""
    from tacit.accounting import recommend  # noqa: PLC0415 - as above
    from tacit.data import schema_path, write_party_sample  # noqa: PLC0415 - loads numpy
    from tacit.wire.transport.tls import make_ca, make_party  # noqa: PLC0415 - as above

    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"DIR {directory}: exists and is not empty: name a new folder")
    noise, randomised = recommend(target=TARGET, epochs=EPOCHS, examples=rows)
    settings = {
        "address": address,
        "rows": rows,
        "epochs": EPOCHS,
        "target": TARGET,
        "protect": noise.protect,
        "labels": randomised.labels,
        "budget": noise.budget,
    }
    authority = directory / "authority"
    make_ca(authority)
    features, labels = write_party_sample(directory, rows=rows)
    for name, table in ((BANK, labels), (PLATFORM, features)):
        keys = directory / name / "keys"
        keys.mkdir(mode=0o700, parents=True)
        files = make_party(authority, name)
        files.certificate.rename(keys / files.certificate.name)
        files.key.rename(keys / files.key.name)
        shutil.copy2(files.ca, keys)
        for file in (table, schema_path(table)):
            file.rename(directory / name / file.name)
        (directory / name / "party.toml").write_text(_PARTY[name].substitute(settings))
    return directory / BANK / "party.toml", directory / PLATFORM / "party.toml"
