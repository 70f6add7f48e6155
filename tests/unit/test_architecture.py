"""Imports go down only: read from the import statements, not from what happens to be loaded."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tacit

ROOT = Path(tacit.__file__).parent
LAYERS = (
    {"types", "errors", "spec", "rng", "rows", "kernels"},
    {"_version", "_config", "fields", "state_dir"},
    {"measure"},
    {"accounting"},
    {"protect", "attack", "nets", "data", "objective"},
    {"evaluate", "pretrain"},
    {"guard", "monitor"},
    {"tape"},
    {"training"},
    {"wire"},
    {"party"},
    {"experiment"},
    {"report"},
    {"audit"},
    {"papers"},
    {"testing", "cli"},
)
"""Packages from the lowest to the highest: each imports only from lower ones and from itself."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PURE = {name for names in LAYERS[:7] for name in names} - LAYERS[1] - {"data"}
OUTSIDE = {
    "os",
    "io",
    "sys",
    "socket",
    "logging",
    "pathlib",
    "subprocess",
    "ray",
    "pickle",
    "shutil",
}
SPEAKING = {"open", "print", "input", "eval", "exec"}


LINES, BODY = 500, 60  # of a file and of a function, docstring apart


def modules():
    return sorted(ROOT.rglob("*.py"))


def shown(path):
    return str(path.relative_to(ROOT))


def imports(path):
    """Yield every imported module name, at any depth of the file except type checking."""
    tree = ast.parse(path.read_text())
    lazy = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in lazy:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "tacit":
                yield from (f"tacit.{alias.name}" for alias in node.names)
            else:
                yield node.module


def home(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def violations(path, names):
    """Yield the imports of a file that do not go down."""
    here = home(path)
    for name in names:
        top = name.removeprefix("tacit.").split(".")[0]
        if not name.startswith("tacit.") or top == here:
            continue
        if LEVEL[top] > 1 and LEVEL[top] >= LEVEL[here]:
            yield f"{shown(path)} imports {name}"


def test_imports_go_down():
    files = [path for path in modules() if home(path) != "__init__"]
    assert {home(path) for path in files} == set(LEVEL)
    assert not [it for path in files for it in violations(path, imports(path))]


def test_the_check_itself_finds_violations():
    path = ROOT / "protect" / "gaussian.py"
    for name in ("tacit.attack.base", "tacit.nets", "tacit.guard", "tacit.cli"):
        assert list(violations(path, [name]))
    assert not list(violations(path, ["tacit.measure.bounds", "tacit.protect.base", "torch"]))


def outside_world(path):
    """Yield what a file imports or calls that reads or writes."""
    tops = {name.split(".")[0] for name in imports(path)}
    yield from (f"{shown(path)} imports {name}" for name in sorted(tops & OUTSIDE))
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    yield from (f"{shown(path)} calls {name}" for name in sorted(calls & SPEAKING))


def test_the_core_does_no_input_or_output():
    pure = [path for path in modules() if home(path) in PURE]
    assert not [offence for path in pure for offence in outside_world(path)]
    commands = [path for path in modules() if home(path) == "cli"]
    assert [it for path in commands for it in outside_world(path)]  # the check itself finds some


def ill_formed(name, text):
    """Yield what is too long in a file, and each class that is neither final nor abstract."""
    if text.count("\n") > LINES:
        yield f"{name} has {text.count(chr(10))} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and name != "errors.py":
            marks = {ast.unparse(d) for d in node.decorator_list}
            bases = {ast.unparse(b) for b in node.bases}
            if "final" not in marks and not bases & {"ABC", "Protocol"}:
                yield f"{name}: {node.name} is neither final nor abstract"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            if length > BODY:
                yield f"{name}: {node.name} has {length} lines"


def test_files_stay_small_and_classes_are_final_or_abstract():
    assert not [it for path in modules() for it in ill_formed(shown(path), path.read_text())]


def test_what_is_too_long_or_neither_final_nor_abstract_is_found():
    fits = "def f():\n" + "    pass\n" * BODY + "pass\n" * (LINES - BODY - 1)
    assert not list(ill_formed("a.py", fits))
    assert list(ill_formed("a.py", fits + "pass\n")) == [f"a.py has {LINES + 1} lines"]
    longer = "async def f():\n" + "    pass\n" * (BODY + 1)
    assert list(ill_formed("a.py", longer)) == [f"a.py: f has {BODY + 1} lines"]
    assert list(ill_formed("a.py", "class A: pass")) == ["a.py: A is neither final nor abstract"]


def test_no_pickle_and_no_unsafe_load():
    unsafe = ("weights_only=False", "yaml.load(")
    assert not [
        f"{shown(path)}: {word}"
        for path in modules()
        for word in unsafe
        if word in path.read_text()
    ]


@pytest.mark.parametrize("statement", ["import tacit", "import tacit.measure", "import tacit.cli"])
def test_light_imports_do_not_load_torch(statement):
    code = f"import sys; {statement}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


def test_everything_exported_exists_and_is_documented():
    for name in tacit.__all__:
        thing = getattr(tacit, name)
        assert name == "__version__" or thing.__doc__, name
    assert set(tacit.__all__) <= {*dir(tacit), "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tacit.nothing  # noqa: B018
