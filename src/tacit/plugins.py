"""Plug-ins: protections, attacks, models and data sets of others, from a file or a package.

A plug-in is Python that registers something when it runs. It runs with every right of the process
that loads it, so it is loaded only where a user asks for it: a file by its path, or a package that
was installed with an entry point. Nothing that comes out of data, a state folder or a message of
the other party is ever loaded.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, final

from tacit.errors import UsageError
from tacit.spec import Entry

API = 1
"""The version of what plug-ins may use; one says which it was written for by ``TACIT_API = 1``."""

GROUP = "tacit.plugins"
"""The group of entry points; each names a module."""


@final
@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A plug-in that was loaded from a file.

    Attributes:
        path: where the file lies.
        source: what was run.
        names: what it registered, without the kinds.
    """

    path: str
    source: str
    names: frozenset[str]

    @property
    def digest(self) -> str:
        """What stands for the source."""
        return _digest(self.source)

    def used_by(self, text: str) -> bool:
        """Whether a name of this plug-in occurs in a text, such as a configuration."""
        return not self.names.isdisjoint(re.findall(r"[A-Za-z_][\w-]*", text))


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


_files: dict[str, Plugin] = {}


def loaded_files() -> tuple[Plugin, ...]:
    """Return the plug-ins that this process has loaded from files, in their order."""
    return tuple(_files.values())


def load_file(path: Path) -> Plugin:
    """Run a Python file and return what it registered; one that was loaded before is not run again.

    Every way in which this can fail is one ``UsageError``, and nothing stays registered then.
    """
    where = f"--plugin {path}"
    if path.suffix != ".py":
        raise UsageError(f"{where}: is no Python file: name one that ends in .py")
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{where}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: cannot be read as text: {error}") from None
    return load_source(str(path.resolve()), source, where=where)


def load_source(path: str, source: str, *, where: str = "") -> Plugin:
    """Run what was read from a plug-in's file: workers run the text that their driver read."""
    where = where or f"--plugin {path}"
    digest = _digest(source)
    if digest in _files:
        return _files[digest]
    _check_source(source, where)
    stem = re.sub(r"\W", "_", Path(path).stem)
    module = ModuleType(f"tacit_plugin_{stem}_{digest[:8]}")
    module.__file__ = path

    def run() -> None:
        sys.modules[module.__name__] = module  # dataclasses look their annotations up there
        exec(compile(source, path, "exec", dont_inherit=True), vars(module))  # noqa: S102

    try:
        with _registering(where) as names:
            _guarded(run, where, path)
    except UsageError:
        sys.modules.pop(module.__name__, None)
        raise
    return _files.setdefault(digest, Plugin(path=path, source=source, names=frozenset(names)))


@cache
def load_installed() -> None:
    """Import the module of every entry point of the group, once in a process."""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        if entry.module not in sys.modules:  # else whoever runs this has imported it
            _load_entry(entry)


def _load_entry(entry: EntryPoint) -> None:
    package = entry.dist.name if entry.dist is not None else entry.module
    where = f"plug-in {entry.name} of the package {package}"

    def find() -> str | None:
        found = importlib.util.find_spec(entry.module)
        if found is None:
            raise ModuleNotFoundError(f"No module named {entry.module!r}")
        get_source: Callable[[str], str | None] | None = getattr(found.loader, "get_source", None)
        return None if get_source is None else get_source(entry.module)

    try:
        with _registering(where):
            source = _guarded(find, where, "")
            if source is not None:
                _check_source(source, where)
            _guarded(lambda: importlib.import_module(entry.module), where, "")
    except UsageError:
        sys.modules.pop(entry.module, None)
        raise


def _check_source(source: str, where: str) -> None:
    """Refuse what is no Python and what was written for another version, before it runs."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(f"{where}: is not Python: {line}{reason}") from None
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="TACIT_API")], value=ast.Constant(value=version)):
                if version != API:
                    raise UsageError(
                        f"{where}: is written for version {version!r} of the plug-in interface, "
                        f"this tacit has version {API}: get the plug-in or the tacit that fits"
                    )


def _guarded(run: Callable[[], Any], where: str, path: str) -> Any:  # noqa: ANN401
    """Return what some code of a plug-in returns, or name the exception that ended it."""
    try:
        return run()
    except UsageError as error:  # a name that is taken, a class that is none
        raise UsageError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        place = f"line {lines[-1]}: " if lines else ""
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise UsageError(f"{where}: cannot be imported: {place}{said}") from error


@contextmanager
def _registering(where: str) -> Iterator[set[str]]:
    """Fill a set with the names that are registered meanwhile; after an error none stays."""
    tables = _tables()
    before = [dict(table) for table in tables]
    names: set[str] = set()
    try:
        yield names
        for table, old in zip(tables, before, strict=True):
            for name in table.keys() - old.keys():
                _check_fields(table[name], where)
                names.add(name)
        if not names:
            raise UsageError(
                f"{where}: registers nothing: use a decorator in it, such as "
                '@PROTECTIONS.register("my_name")'
            )
    except UsageError:
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.update(old)
        raise


def _check_fields(entry: object, where: str) -> None:
    """Refuse a class without parameters to read; its decorators may stand in either order."""
    if not isinstance(entry, Entry):
        return  # a data set
    options = getattr(entry.cls, "__dataclass_params__", None)
    if options is None or not options.frozen:
        raise UsageError(
            f"{where}: {entry.name!r} must be a frozen dataclass: write @dataclass(frozen=True)"
        )


def _tables() -> tuple[dict[str, Any], ...]:
    """Return what is registered of every kind, by name; all of tacit's own is in it."""
    from tacit.attack import ATTACKS  # noqa: PLC0415 - loads torch
    from tacit.data.catalog import ENTRIES  # noqa: PLC0415 - as above
    from tacit.nets import MODELS  # noqa: PLC0415 - as above
    from tacit.objective import OBJECTIVES  # noqa: PLC0415 - as above
    from tacit.pretrain import PRETRAINERS  # noqa: PLC0415 - as above
    from tacit.protect import LABELS, PROTECTIONS  # noqa: PLC0415 - as above

    registries = (PROTECTIONS, LABELS, ATTACKS, MODELS, OBJECTIVES, PRETRAINERS)
    return (*(registry.entries for registry in registries), ENTRIES)
