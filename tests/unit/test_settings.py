"""Settings are written once: flags, keys of files and the template follow from their fields."""

import tomllib

import pytest
import typer

from tacit.cli.app import app
from tacit.cli.init import make_pair
from tacit.errors import SpecError, UsageError
from tacit.experiment.config import TrainConfig
from tacit.party.config import PartyConfig, read_party_config
from tacit.party.settings import TrainingSettings

SHARED = TrainingSettings.model_fields
OTHERWISE = {
    "protect": "a label party must choose one",
    "seed": "of everything in one process, of the order of rows between parties",
    "threads": "the free cores in one process, all cores at a party",
}
WRONG = [
    ("epochs", 0),
    ("batch_size", 1),
    ("depth", 5),
    ("lr", 0),
    ("weight_decay", 1),
    ("cut", 0),
    ("combine", "max_pool"),
    ("protect", "marvel(s=4)"),
    ("labels", "rr(epsilon=-1)"),
    ("objective", "mse"),
    ("budget", "auc=2"),
    ("attacks", ["nrom"]),
    ("monitor_every", 0),
    ("threads", 0),
]


@pytest.fixture(scope="module")
def flags():
    """Return the flags of ``tacit train`` by the name of their setting."""
    command = typer.main.get_command(app).commands["train"]
    return {parameter.name: parameter for parameter in command.params}


@pytest.fixture
def bank(tmp_path):
    return make_pair(tmp_path / "pair", address="127.0.0.1:7700", rows=100)[0]


def test_every_setting_of_a_run_has_a_flag_and_no_flag_has_a_default_of_its_own(flags):
    alone = {"_plugins", "config", "out", "record", "tensorboard", "as_json", "help"}
    assert flags.keys() - alone == TrainConfig.model_fields.keys()
    for name in TrainConfig.model_fields:
        assert flags[name].default in (None, []), name
        wanted = "--attack" if name == "attacks" else "--" + name.replace("_", "-")
        assert flags[name].opts == [wanted]


def test_the_help_of_a_flag_is_the_description_with_the_default(flags):
    for name, field in TrainConfig.model_fields.items():
        assert field.description
        assert flags[name].help.startswith(field.description)
    assert flags["epochs"].help.endswith("[5]")


@pytest.mark.parametrize("config", [TrainConfig, PartyConfig])
def test_both_commands_take_the_shared_settings_as_they_are(config):
    for name, field in SHARED.items():
        if name in OTHERWISE:
            continue
        own = config.model_fields[name]
        assert (own.default, own.annotation) == (field.default, field.annotation)
        assert (own.metadata, own.description) == (field.metadata, field.description)


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_both_commands_refuse_the_same_value_with_the_same_words(bank, name, value):
    text = bank.read_text()
    lines = [line for line in text.splitlines() if not line.startswith(f"{name} =")]
    written = f'"{value}"' if isinstance(value, str) else value
    written = str(value).replace("'", '"') if isinstance(value, list) else written
    bank.write_text("\n".join([*lines, f"{name} = {written}"]))
    said = []
    for read in (lambda: TrainConfig.of({name: value}), lambda: read_party_config(bank)):
        with pytest.raises((UsageError, SpecError)) as caught:
            read()
        said.append(str(caught.value))
    here, there = said
    assert here.removeprefix("the command line: ") == there.removeprefix(f"{bank}: ")
    assert name in here


def test_the_template_explains_its_keys_as_the_fields_do(bank):
    lines = bank.read_text().splitlines()
    for name in tomllib.loads("\n".join(lines)):
        description = PartyConfig.model_fields[name].description
        (line,) = [line for line in lines if line.startswith(f"{name} =")]
        if name not in ("role", "name", "protect"):
            assert line.endswith(f"# {description}")
