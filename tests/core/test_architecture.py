"""Imports go down only: read from the import statements, not from what happens to be loaded."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tacit

ROOT = Path(tacit.__file__).parent
ROOTS = {"types", "errors", "machine", "rng", "rows", "spec", "_version"}
EVERYTHING = {"*"}
ALLOWED = {
    "measure": set(),
    "data": set(),
    "nets": set(),
    "protect": {"measure.bounds"},
    "attack": {"measure"},
    "checks": {"protect", "measure"},
    "label_guard": {"protect", "measure"},
    "guard": {"checks", "label_guard", "protect", "measure"},
    "monitor": {"attack", "measure"},
    "recall": {"attack", "measure"},
    "objective": {"measure"},
    "runtime": {"guard", "monitor", "objective", "measure", "data", "nets", "audit.tape"},
    "report": {"measure"},
    "audit": {"attack", "measure", "report"},
    "study": {
        "runtime",
        "data",
        "nets",
        "audit",
        "report",
        "guard",
        "monitor",
        "recall",
        "objective",
        "measure",
        "protect",
        "attack",
    },
    "testing": {"guard", "protect", "attack", "measure"},
    "cli": EVERYTHING,
}
PURE = (
    "types",
    "errors",
    "rng",
    "rows",
    "spec",
    "measure",
    "protect",
    "attack",
    "label_guard",
    "guard",
    "monitor",
    "recall",
)
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


def modules():
    return sorted(ROOT.rglob("*.py"))


def imports(path):
    """Yield every imported module name, at any depth of the file except type checking."""
    tree = ast.parse(path.read_text())
    lazy = {n for node in ast.walk(tree) if isinstance(node, ast.If) for n in ast.walk(node)
            if getattr(node.test, "id", "") == "TYPE_CHECKING"}  # fmt: skip
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


def violations(path, allowed, names):
    for name in names:
        if not name.startswith("tacit."):
            continue
        inner = name.removeprefix("tacit.")
        top = inner.split(".")[0]
        fine = top in ROOTS or top == home(path) or "*" in allowed
        if not fine and not any(inner == a or inner.startswith(f"{a}.") for a in allowed):
            yield f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down(path):
    place = home(path)
    if place == "__init__":
        return
    allowed = set() if place in ROOTS else ALLOWED[place]
    assert not list(violations(path, allowed, imports(path)))


def test_the_check_itself_finds_violations():
    path = ROOT / "protect" / "noise.py"
    assert list(violations(path, ALLOWED["protect"], ["tacit.attack.base"]))
    assert list(violations(path, ALLOWED["protect"], ["tacit.measure.leak"]))
    assert not list(violations(path, ALLOWED["protect"], ["tacit.measure.bounds", "torch"]))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_does_no_input_or_output(path):
    if home(path) not in PURE:
        return
    used = {name.split(".")[0] for name in imports(path)} & OUTSIDE
    calls = {n.func.id for n in ast.walk(ast.parse(path.read_text()))
             if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}  # fmt: skip
    assert not used, f"{path.name} imports {used}"
    assert not calls & {"open", "print", "input", "eval", "exec"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_small_and_classes_are_final_or_abstract(path):
    text = path.read_text()
    assert text.count("\n") <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and home(path) != "errors":
            marks = {ast.unparse(d) for d in node.decorator_list}
            bases = {ast.unparse(b) for b in node.bases}
            assert "final" in marks or bases & {"ABC", "Protocol"}, f"{node.name} is neither"
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 40, f"{node.name} has {length} lines"


def test_no_pickle_and_no_unsafe_load():
    for path in modules():
        text = path.read_text()
        assert "weights_only=False" not in text
        assert "yaml.load(" not in text


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
