"""Plug-ins in this process: what they register, and every way in which one is refused."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import tacit
from guard_examples import KEY, course, released, same, stored
from tacit import Guard, attack, data, nets, objective, plugins, protect
from tacit.errors import InputError, ParameterError, SpecError, UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep_store import key_of
from tacit.party.budget_plan import plan_budget
from tacit.protect import Isotropic, Plan, Protection
from tacit.protect.marvell.class_stats import ClassMeans
from tacit.spec import Registry, Specified
from tacit.testing import AttackContract, ProtectionContract

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugin"
PROTECTION, ATTACK = EXAMPLES / "tacit_median_noise.py", EXAMPLES / "tacit_far.py"
DOCS = EXAMPLES.parents[1] / "docs" / "extending.md"
SMALL = (
    "from dataclasses import dataclass\n"
    "from tacit.attack import ATTACKS, Attack\n"
    '@ATTACKS.register("{name}")\n'
    "@dataclass(frozen=True)\n"
    "class Small(Attack):\n"
    "    def score(self, prepared, rng):\n"
    "        return prepared.rows[:, 0]\n"
)


@pytest.fixture(autouse=True)
def _registries_as_they_were(monkeypatch):
    tables = plugins._tables()
    before = [dict(table) for table in tables]
    monkeypatch.setattr(plugins, "_files", {})
    plugins.load_installed.cache_clear()
    modules = set(sys.modules)
    yield
    plugins.load_installed.cache_clear()
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)
    for name in set(sys.modules) - modules:
        if name.startswith(("tacit_plugin_", "tacit_far", "tacit_median", "broken_")):
            del sys.modules[name]


def names():
    return [set(table) for table in plugins._tables()]


@pytest.mark.parametrize("check", ProtectionContract.checks())
def test_the_example_protection_keeps_its_contract(check):
    plugins.load_file(PROTECTION)
    getattr(ProtectionContract("median_noise(t=2)"), check)()


@pytest.mark.parametrize("check", AttackContract.checks())
def test_the_example_attack_keeps_its_contract(check):
    plugins.load_file(ATTACK)
    getattr(AttackContract("far"), check)()


@pytest.mark.parametrize("number", range(4))
def test_the_files_in_the_docs_are_whole(number, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    assert len(blocks) == 4
    place = tmp_path / "mine.py"
    place.write_text(blocks[number])
    (name,) = plugins.load_file(place).names
    match name:
        case "median_noise":
            ProtectionContract(name).check_all()
        case "far":
            AttackContract(name).check_all()
        case "funnel":
            whole = nets.get("funnel(width=32)").build(parties=[nets.Inputs(4)], seed=0)
            assert whole.width == 16
        case "rings":
            assert len(data.load(name, rows=100, seed=1)) == 100


def test_a_file_is_run_once_and_says_what_it_registered():
    first = plugins.load_file(PROTECTION)
    assert plugins.load_file(PROTECTION) is first
    assert first.names == {"median_noise"}
    assert plugins.loaded_files() == (first,)
    assert "median_noise" in tacit.list_protections()
    assert str(protect.get("median_noise( 2 ) | iso(1)")) == "median_noise(t=2) | iso(t=1)"
    with pytest.raises(ParameterError, match="median_noise: t must be positive, got -1"):
        protect.get("median_noise(-1)")


def test_every_kind_can_be_registered(tmp_path):
    place = tmp_path / "all-of.it.py"
    place.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "import torch\n"
        "from tacit.data import load, register_dataset\n"
        "from tacit.objective import OBJECTIVES, BinaryCrossEntropy, Loss\n"
        "from tacit.protect import LABELS, LabelMechanism\n"
        "from tacit.protect.labels.mechanisms import LabelClaim\n"
        "TACIT_API = 1\n"
        '@LABELS.register("as_they_are")\n'
        "@dataclass(frozen=True)\n"
        "class AsTheyAre(LabelMechanism):\n"
        "    def randomize(self, labels, draws, *, classes, plan):\n"
        "        return torch.from_numpy(labels)\n"
        "    def claim(self, classes):\n"
        "        return LabelClaim(epsilon=30.0)\n"
        '@OBJECTIVES.register("twice")\n'
        "@dataclass(frozen=True)\n"
        "class Twice(Loss):\n"
        "    factor: float = 2.0\n"
        "    def loss(self, outputs, labels):\n"
        "        return self.factor * BinaryCrossEntropy().loss(outputs, labels)\n"
        "    def probabilities(self, outputs):\n"
        "        return outputs.sigmoid()\n"
        '@register_dataset("half", description="half of the rows", classes=2)\n'
        "def half(*, rows=200, seed=0):\n"
        '    return load("breast_cancer", rows=rows, seed=seed)\n'
    )
    found = plugins.load_file(place)
    assert found.names == {"as_they_are", "twice", "half"}
    assert str(objective.get("twice(3)")) == "twice(factor=3)"
    assert str(protect.get_labels("as_they_are")) == "as_they_are"
    assert len(data.load("half")) == 200
    assert len(data.load("half", rows=50, seed=3)) == 50
    assert data.describe("half").description == "half of the rows"
    assert data.check("half").rows == 200
    assert "half" in tacit.list_datasets()
    with pytest.raises(SpecError, match="half has no option 'sep'"):
        data.load("half", sep=",")


def test_a_model_of_a_plugin_is_built(tmp_path):
    place = tmp_path / "net.py"
    source = Path(nets.mlp.__file__).read_text().replace('"mlp"', '"mlp_of_a_plugin"')
    place.write_text(source.replace('get("mlp(', 'get("mlp_of_a_plugin('))
    plugins.load_file(place)
    whole = nets.get("mlp_of_a_plugin(hidden=8)").build(parties=[nets.Inputs(4)], seed=0)
    assert len(whole.bottoms) == 1


BROKEN = [
    ("def f(:\n", "is not Python: line 1: invalid syntax"),
    ("\0", "is not Python: "),
    ("x = 1\n", "registers nothing: use a decorator in it, such as @PROTECTIONS.register"),
    ("\nimport nothing_like_it\n", "line 2: ModuleNotFoundError: No module named 'nothing_like"),
    ("def f():\n    raise KeyError('a')\nf()\n", "cannot be imported: line 2: KeyError: 'a'"),
    ("import sys\nsys.exit(0)\n", "cannot be imported: line 2: SystemExit: 0"),
    ("assert False\n", "cannot be imported: line 1: AssertionError"),
    ("TACIT_API = 2\nimport nothing_like_it\n", "for version 2 of the plug-in interface, this tac"),
    ("TACIT_API = 'x'\n", "is written for version 'x'"),
    (SMALL.format(name="norm"), "attack 'norm' is registered already, as tacit.attack.scoring.No"),
    (SMALL.format(name="a b"), "attack 'a b': a name is a letter, then letters, digits, _ or -"),
    (SMALL.format(name="z").replace("(frozen=True)", ""), "'z' must be a frozen dataclass: write"),
    (SMALL.format(name="z").replace("@dataclass(frozen=True)\n", ""), "must be a frozen dataclass"),
    (SMALL.format(name="z").replace("def score", "def scor"), "attack 'z' lacks score: see Attack"),
    (SMALL.format(name="z").replace("(Attack)", ""), "'z' must be a class that derives from Attac"),
    (
        "from tacit.data import register_dataset\n"
        "register_dataset('ads', description='')(lambda: None)\n",
        "data set 'ads' is taken: choose another name",
    ),
    (SMALL.format(name="z") + "1 / 0\n", "cannot be imported: line 8: ZeroDivisionError"),
]


@pytest.mark.parametrize(("source", "rule"), BROKEN, ids=[rule[:40] for _, rule in BROKEN])
def test_what_is_wrong_is_one_line_and_leaves_nothing_registered(source, rule, tmp_path):
    place = tmp_path / "mine.py"
    place.write_text(source)
    before, modules = names(), set(sys.modules)
    with pytest.raises(UsageError) as caught:
        plugins.load_file(place)
    text = str(caught.value)
    assert text.startswith(f"--plugin {place}: ")
    assert rule in text
    assert "\n" not in text
    assert names() == before
    assert not [name for name in set(sys.modules) - modules if "tacit_plugin" in name]
    assert plugins.loaded_files() == ()


def test_decorators_may_stand_in_either_order(tmp_path):
    first, second = '@ATTACKS.register("mine")\n', "@dataclass(frozen=True)\n"
    place = tmp_path / "mine.py"
    place.write_text(SMALL.format(name="mine").replace(first + second, second + first))
    assert plugins.load_file(place).names == {"mine"}
    assert str(attack.get("mine()")) == "mine"


def test_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "state.json").write_text("{}")
    for name, rule in (
        ("none.py", "there is no such file"),
        ("folder.py", "cannot be read as text"),
        ("bytes.py", "cannot be read as text"),
        ("state.json", "is no Python file: name one that ends in .py"),
    ):
        with pytest.raises(UsageError, match=rule):
            plugins.load_file(tmp_path / name)


def test_two_plugins_with_one_name_are_refused(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"# {folder}\n{SMALL.format(name='mine')}")
    plugins.load_file(tmp_path / "a" / "mine.py")
    with pytest.raises(UsageError, match=r"'mine' is registered already, as tacit_plugin_mine_"):
        plugins.load_file(tmp_path / "b" / "mine.py")
    assert "mine" in tacit.list_attacks()


def installed(folder, **entries):
    """Make a package with entry points, as an installer leaves it."""
    about = folder / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    lines = [f"{name} = {module}" for name, module in entries.items()]
    (about / "entry_points.txt").write_text("\n".join(["[tacit.plugins]", *lines, ""]))


def test_installed_plugins_are_imported_once(tmp_path, monkeypatch):
    installed(tmp_path, far="tacit_far", median="tacit_median_noise")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    plugins.load_installed()
    plugins.load_installed()
    assert {"far"} <= set(tacit.list_attacks())
    assert {"median_noise"} <= set(tacit.list_protections())
    assert plugins.loaded_files() == ()  # workers have them installed as well
    with pytest.raises(UsageError, match=r"'far' is registered already, as tacit_far\.Far: cho"):
        plugins.load_file(ATTACK)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (None, "cannot be imported: ModuleNotFoundError: No module named 'broken_plugin'"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("x = 1", "registers nothing"),
        ("TACIT_API = 3\n1 / 0", "is written for version 3 of the plug-in interface"),
        (SMALL.format(name="norm"), "attack 'norm' is registered already"),
    ],
)
def test_a_broken_package_is_named(source, rule, tmp_path, monkeypatch):
    installed(tmp_path, mine="broken_plugin")
    if source is not None:
        (tmp_path / "broken_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    before = names()
    for _ in range(2):
        with pytest.raises(UsageError) as caught:
            plugins.load_installed()
        assert str(caught.value).startswith("plug-in mine of the package mine: ")
        assert rule in str(caught.value)
        assert names() == before


def test_the_text_of_a_plugin_is_part_of_the_key_of_trials_that_use_it(tmp_path):
    place = tmp_path / "mine.py"
    place.write_text(SMALL.format(name="mine"))
    one = plugins.load_file(place)
    other = plugins.Plugin(path=one.path, source=one.source + "#", names=one.names)
    uses, does_not = TrainConfig(attacks=("norm", "mine")), TrainConfig(attacks=("norm",))
    assert key_of(does_not, "a:b", plugins=[one]) == key_of(does_not, "a:b")
    keys = {key_of(uses, "a:b", plugins=some) for some in ([], [one], [other], [one, other])}
    assert len(keys) == 4


@dataclass(frozen=True)
class Seen:
    """What a protection of someone else remembers."""

    batches: int
    means: ClassMeans | None = None


@dataclass(frozen=True)
class Counting(Protection[Any]):
    """Noise that depends on how many batches there were: a restart must not start anew."""

    memory_types: ClassVar[tuple[type, ...]] = (Seen, ClassMeans)

    def plan(self, batch, memory):
        seen = Seen(1 if memory is None else memory.batches + 1, ClassMeans.nothing(2, 3))
        return Plan(noise=(Isotropic(std=float(seen.batches)),), memory=seen, how="x")


def test_a_protection_declares_what_it_remembers(tmp_path):
    cuts = course()[:6]
    whole, first = Guard(Counting(), key=KEY), Guard(Counting(), key=KEY)
    released(first, cuts[:3])
    guard = Guard(Counting(), key=KEY)
    guard.load_state(*stored(tmp_path, guard=first.to_state())["guard"])
    same(released(guard, cuts[3:]), released(whole, cuts)[3:])
    assert guard._last.after[0].batches == 6

    @dataclass(frozen=True)
    class Undeclared(Counting):
        memory_types: ClassVar[tuple[type, ...]] = (ClassMeans,)

    guard = Guard(Undeclared(), key=KEY)
    guard.release(cuts[0])
    with pytest.raises(InputError, match="remembers Seen, which has no place in a state"):
        guard.to_state()


@dataclass(frozen=True)
class Certificate:
    """A name that a state uses already."""


@pytest.mark.parametrize("kind", [Certificate, int, type("tuple", (), {})])
def test_types_that_no_state_can_hold_are_refused(kind):
    @dataclass(frozen=True)
    class Wrong(Counting):
        memory_types: ClassVar[tuple[type, ...]] = (kind,)

    with pytest.raises(ParameterError, match=f"memory_types has {kind.__name__}: it must be a dat"):
        Guard(Wrong())


def test_a_registry_takes_classes_of_its_kind_only():
    registry: Registry[Any] = Registry("thing")
    for wrong in (3, int, len):
        with pytest.raises(SpecError, match="'x' must be a class that derives from Specified"):
            registry.register("x")(wrong)
    with pytest.raises(SpecError, match="a name is a letter"):
        registry.register("")(Specified)


BOUNDED = (
    "from dataclasses import dataclass\n"
    "from tacit.protect import PROTECTIONS, Isotropic, Plan, Protection, noise_only\n"
    '@PROTECTIONS.register("bounded")\n'
    "@dataclass(frozen=True)\n"
    "class Bounded(Protection):\n"
    '    """Noise by the longest row: no two rows are farther apart than twice its length."""\n'
    "    keeps_gaussian = True\n"
    "    sum_kl: float = 0.1\n"
    "    declared: float = 0.1\n"
    "    def largest_sum_kl(self):\n"
    "        return self.declared\n"
    "    def plan(self, batch, memory):\n"
    "        longest = float(batch.rows.norm(dim=1).max())\n"
    "        if not longest:\n"
    "            return noise_only(batch, None)\n"
    "        noise = Isotropic(std=2 * longest / self.sum_kl**0.5)\n"
    "        return Plan(noise=(noise,), memory=None, how='x', sum_kl=self.sum_kl,"
    " any_covariance=True)\n"
)


def test_a_budget_is_planned_from_what_a_plugin_declares(tmp_path):
    (tmp_path / "bounded.py").write_text(BOUNDED)
    plugins.load_file(tmp_path / "bounded.py")

    def planned(spec):
        return plan_budget("sum_kl=0.5", protect=spec, labels=None, classes=2, releases=20)

    assert planned("bounded").allowed == 5
    assert planned("bounded | marvell(sum_kl=0.05, covariance=full)").allowed == 10
    assert planned("marvell(sum_kl=0.05, covariance=full) | bounded").allowed == 10
    with pytest.raises(UsageError, match=r"max_norm \| bounded.* claims nothing"):
        planned("max_norm | bounded")
    check = "check_what_a_budget_is_planned_from"
    getattr(ProtectionContract("bounded"), check)()
    with pytest.raises(AssertionError, match=r"0\.2 is above 0\.1"):
        getattr(ProtectionContract("bounded(sum_kl=0.2)"), check)()


def test_the_contract_checks_that_all_rows_get_the_same_noise(tmp_path):
    source = BOUNDED.replace("Isotropic(std=2 *", "Isotropic(std=batch.rows.norm(dim=1) + 2 *")
    (tmp_path / "bounded.py").write_text(source)
    plugins.load_file(tmp_path / "bounded.py")
    with pytest.raises(AssertionError, match="rows get different noise"):
        ProtectionContract("bounded").check_what_a_budget_is_planned_from()
