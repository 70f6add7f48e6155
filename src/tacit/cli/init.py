"""``tacit init``: two companies in two folders, ready to train together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from tacit.errors import UsageError

BANK, PLATFORM = "bank", "platform"
EPOCHS, TARGET = 5, 0.65
"""How many epochs the sample is trained for, and the leak AUC that is planned for all of them."""

_COLUMN = 33
"""Where the comments begin."""
_OWN = ("model", "lr", "weight_decay", "threads")
_AGREED = (
    *("epochs", "batch_size", "seed", "matching", "test_percent"),
    *("save_every", "depth", "wire"),
)
_WHOSE = {
    BANK: "The label party: it holds the labels and the upper part of the model, and it listens.",
    PLATFORM: "The feature party: it holds features and the lower part of the model, and it "
    "connects.",
}
_FILE = """# $whose
$identity
$own

# Both sides must say the same here; it is compared when they meet.
$agreed

$rest
"""
_LABEL = """\
# What leaves this party about its labels. See tacit list protections and tacit list labels.
# Every epoch releases each example once more, and what that tells adds up: protect is planned for
# $epochs epochs and a leak AUC of $target after all of them. For others, take what this prints:
# tacit recommend --target $target --epochs $epochs --examples $rows
protect = "$protect"
# labels = "$labels"   # randomise every label once instead: no epoch adds to it
# budget = "$budget"          # refuses to begin if protect is not planned for all epochs

$silent
# head = "net"                   # trained on the embeddings; or "sklearn:..."
$settings
# witness = "../bank.witness"    # outside of state: shows if state was restored from a copy"""


_SILENT = """\
# Or send nothing that depends on labels: the bottom learns without them, its embeddings are sent
# once, and a head is trained where the labels are. The price: embeddings show the features. Both
# sides then say, in place of any other protect and of labels, and leave out epochs, batch_size, lr
# and weight_decay, which a head has other defaults for:
# protect = "silent"
# width = 32                     # numbers of an embedding; fewer show less"""


def _lines(**values: Any) -> str:  # noqa: ANN401 - as the fields of the configuration say
    """Return settings as TOML, each with the description of its field."""
    from tacit.party.config import PartyConfig  # noqa: PLC0415 - loads cryptography

    lines = []
    for name, value in values.items():
        told = PartyConfig.model_fields[name].description
        line = f"{name} = {json.dumps(value)}"
        lines.append(f"{line:<{_COLUMN - 1}} # {told}" if told else line)
    return "\n".join(lines)


def _party_file(name: str, given: Mapping[str, Any]) -> str:
    """Return the commented configuration of one of both parties."""
    from tacit.party.config import PartyConfig  # noqa: PLC0415 - loads cryptography

    bank = name == BANK
    fields = PartyConfig.model_fields
    own = {"model": "mlp(hidden=32)", "threads": 1}  # both share a machine here
    agreed = {"epochs": given["epochs"], "seed": 7, "save_every": 50}
    label = Template(_LABEL).substitute(
        given, settings=_lines(share_metrics=False, on_odd_embeddings="warn"), silent=_SILENT
    )
    return Template(_FILE).substitute(
        whose=_WHOSE[name],
        identity=_lines(
            role="label" if bank else "feature",
            name=name,
            peer=PLATFORM if bank else BANK,
            address=given["address"],
            keys="keys",
            data="labels.csv" if bank else "features.csv",
            state="state",
            wait=fields["wait"].default,
        ),
        own=_lines(**{key: own.get(key, fields[key].default) for key in _OWN}),
        agreed=_lines(**{key: agreed.get(key, fields[key].default) for key in _AGREED}),
        rest=label if bank else f'{_SILENT}\n# pretrain = "auto"\n\n{_lines(record=False)}',
    )


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
        (directory / name / "party.toml").write_text(_party_file(name, settings))
    return directory / BANK / "party.toml", directory / PLATFORM / "party.toml"
