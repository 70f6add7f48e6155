"""The rules of the tree, read from its source: imports go down, names are plain, files small."""

import ast
import pkgutil
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import tacit

ROOT = Path(tacit.__file__).parent
REPOSITORY = Path(__file__).parents[2]
LAYERS = (
    {"types", "errors", "spec", "rng", "rows", "kernels"},
    {"_version", "_config", "fields", "atomic", "state_dir"},
    {"measure"},
    {"accounting"},
    {"protect", "attack", "nets", "data", "objective"},
    {"evaluate", "pretrain", "heads"},
    {"guard", "monitor"},
    {"tape", "plugins"},
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

METAPHORS = {
    "line",
    "place",
    "works",
    "guest",
    "reception",
    "meeting",
    "team",
    "desk",
    "vault",
    "company",
    "lesson",
    "scene",
    "sight",
    "pursuit",
    "recall",
    "ahead",
    "together",
}
"""Words that say nothing of what a thing is: no class, module or function is called so."""


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


def public_classes(text):
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def shared_class_names(texts):
    """Yield every public class name that is in several files, with the files."""
    found = defaultdict(list)
    for name, text in texts.items():
        for called in public_classes(text):
            found[called].append(name)
    yield from (f"{called}: {where}" for called, where in found.items() if len(where) > 1)


def test_a_public_class_name_stands_for_one_thing():
    assert not list(shared_class_names({shown(path): path.read_text() for path in modules()}))
    twice = {"a.py": "class A:\n    class B: pass", "b.py": "class B: pass\nclass _A: pass"}
    assert list(shared_class_names(twice)) == ["B: ['a.py', 'b.py']"]


def metaphors(name, text):
    """Yield the modules, classes and public functions of a file that a metaphor names."""
    tree = ast.parse(text)
    functions = [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    called = [*Path(name).with_suffix("").parts, *public_classes(text), *functions]
    yield from (f"{name}: {it}" for it in called if it.lower() in METAPHORS)


def test_no_name_is_a_metaphor():
    assert not [it for path in modules() for it in metaphors(shown(path), path.read_text())]
    offender = "class Place: pass\ndef recall(): pass\ndef _line(): pass\nclass Outline: pass"
    assert list(metaphors("team/vault.py", offender)) == [
        "team/vault.py: team",
        "team/vault.py: vault",
        "team/vault.py: Place",
        "team/vault.py: recall",
    ]


def lists_exports(text):
    """Whether a module says what a star import takes."""
    targets = (
        target
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def test_only_packages_list_what_they_export():
    files = [path for path in modules() if path.name != "__init__.py"]
    assert not [shown(path) for path in files if lists_exports(path.read_text())]
    assert all(map(lists_exports, ('__all__ = ["a"]', "__all__: list[str] = []", "__all__ += a")))
    assert not lists_exports("names = tacit.__all__")


UNFORMATTED = re.compile(r"#\s*fmt:\s*(skip|off)\b")


def test_everything_is_formatted():
    folders = ("src", "tests", "benchmarks", "examples")
    files = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    assert not [str(path) for path in files if UNFORMATTED.search(path.read_text())]
    assert UNFORMATTED.search("x = 1  # fmt" + ": skip")
    assert UNFORMATTED.search("#fmt" + ":off")


def broken_references(page, text):
    """Yield the files that a page names or links to and that do not exist."""
    for name in re.findall(r"`((?:[\w.*-]+/)+[\w.*-]+\.(?:py|json))`", text):
        if not any(list(folder.glob(name)) for folder in (REPOSITORY, ROOT, ROOT.parent)):
            yield f"{page.name}: {name}"
    for name in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", text):
        if not (page.parent / name).exists():
            yield f"{page.name}: {name}"


def test_pages_name_files_that_exist():
    pages = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "docs/architecture.md")]
    assert not [it for page in pages for it in broken_references(page, page.read_text())]
    page = REPOSITORY / "docs" / "made_up.md"
    text = "`guard/nowhere.py` and `guard/guard.py`, [a](nowhere.md#x) and [b](audit.md#x)"
    assert list(broken_references(page, text)) == [
        "made_up.md: guard/nowhere.py",
        "made_up.md: nowhere.md",
    ]


def unknown_names(page, text):
    """Yield the dotted names and imported names of tacit in a page that do not exist."""
    named = re.findall(r"\btacit(?:\.\w+)+\(?", text)
    for module, names in re.findall(r"^from (tacit[\w.]*) import ([\w, ]+)$", text, re.M):
        named += [f"{module}.{name.strip()}" for name in names.split(",")]
    for name in dict.fromkeys(named):
        try:
            found = pkgutil.resolve_name(name.rstrip("("))
        except (AttributeError, ImportError):
            yield f"{page.name}: {name}"
        else:
            if name.endswith("(") and not callable(found):
                yield f"{page.name}: {name} is not called"


def test_pages_name_modules_and_functions_that_exist():
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    assert not [it for page in pages for it in unknown_names(page, page.read_text())]
    text = "`tacit.nets(x)`, `tacit.Guard(x)`, `tacit.nets.no`\nfrom tacit.data import load, lost"
    assert list(unknown_names(Path("a.md"), text)) == [
        "a.md: tacit.nets( is not called",
        "a.md: tacit.nets.no",
        "a.md: tacit.data.lost",
    ]


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
