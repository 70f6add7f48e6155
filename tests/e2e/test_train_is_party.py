"""``tacit train`` and ``tacit party`` on the same rows: one driver, so the same weights."""

import json
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from safetensors.numpy import load_file

from parties import Pair, configure, same_bits, train_here, write_secret
from tacit.cli import main
from tacit.guard.labels import label_key
from tacit.party.config import read_party_config
from tacit.rng import Key

SEED = 7
WAYS = [("none", None), ("marvell(s=4)", None), ("none", "rr(epsilon=1.0)")]


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_table(place, table, schema):
    pa.parquet.write_table(table, place)
    settings = {key: value for key, value in schema.items() if key != "parties"}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in settings.items()]
    for party, columns in schema.get("parties", {}).items():
        lines.append(f"[parties]\n{party} = {json.dumps(columns)}\n")
    place.with_name(f"{place.name}.schema.toml").write_text("".join(lines))
    return place


def as_one_table(pair):
    """Give both parties the same rows under the numbers that one table has; return that table.

    Only of numbers: a party's file has one more value per category, for those of later files.
    """
    bank, platform = pair.bank.parent, pair.platform.parent
    labels = pa.csv.read_csv(bank / "labels.csv").select(["id", "converted"])
    features = pa.csv.read_csv(platform / "features.csv")
    common = features.join(labels, "id", join_type="inner").sort_by("id").combine_chunks()
    numbers = pa.array(np.arange(len(common)))
    common = common.set_column(common.column_names.index("id"), "id", numbers)
    schema = tomllib.loads((platform / "features.csv.schema.toml").read_text())
    common = common.select(["id", "converted", *schema["numeric"]])
    del schema["categorical"]
    target = {"label": "converted", "positive": "yes"}
    held = write_table(platform / "features.parquet", common.drop_columns("converted"), schema)
    configure(pair.platform, data=held.name)
    held = write_table(
        bank / "labels.parquet", common.select(["id", "converted"]), {"id": "id", **target}
    )
    configure(pair.bank, data=held.name)
    both = {**schema, **target, "parties": {"platform": schema["numeric"]}}
    return write_table(pair.folder / "both.parquet", common, both)


def known_secrets(pair):
    """Give the label party the secrets that ``tacit train`` derives from its seed."""
    write_secret(pair.bank.parent / "state" / "noise.key", Key.from_seed(SEED)._secret)
    write_secret(pair.bank.parent / "labels.parquet.secret", label_key(None, SEED)._secret)


def trained_in_one_process(table, config, out):
    names = ("model", "epochs", "batch_size", "lr", "weight_decay", "seed", "protect", "labels")
    values = {name: getattr(config, name) for name in names}
    values |= {"dataset": str(table), "attacks": [], "bins": 0, "rare": 0, "threads": 1}
    file = out.with_suffix(".toml")
    lines = [
        f"{name} = {json.dumps(value)}\n" for name, value in values.items() if value is not None
    ]
    file.write_text("".join(lines))
    assert main(["train", "--config", str(file), "--out", str(out)]) == 0
    return {
        "platform": load_file(out / "feature_party_0.safetensors"),
        "bank": load_file(out / "label_party.safetensors"),
    }


@pytest.mark.parametrize(("protect", "labels"), WAYS)
def test_both_commands_train_the_same_weights(tmp_path, monkeypatch, protect, labels):
    bank = {"protect": protect, "labels": labels, "attacks": []}
    pair = Pair(tmp_path / "pair", epochs=2, batch_size=32, save_every=10, seed=SEED, bank=bank)
    table = as_one_table(pair)
    known_secrets(pair)
    train_here(pair, monkeypatch)
    ours = trained_in_one_process(table, read_party_config(pair.bank), tmp_path / "run")
    for party, part in (("platform", "bottom"), ("bank", "top")):
        trained = pair.checkpoint(party)[0]["model"]
        theirs = {name.removeprefix(f"{part}."): value for name, value in trained.items()}
        assert same_bits(ours[party], theirs)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    parties = pair.read("bank", "results.json")
    for name in ("protection", "labels", "objective", "steps", "epochs", "model", "test"):
        assert results[name] == parties[name], name
