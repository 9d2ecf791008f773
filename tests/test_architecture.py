"""The rules of design §4, checked by reading every source file: layers, pure modules, who may use which library, sizes.

A new module is one line in LAYERS (or none, where a pattern covers it). A library with a restricted circle of users is
one line in LIBRARIES, a forbidden direction one in FORBIDDEN. Loosen a rule only with the reason beside it.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("replicate", "source_server", "receiver_server", "update_process")
LINES_MAX = 500

# P pure: no clock, socket, file, thread or log. D disk or shared memory. N network or process. X composition.
# A module imports its own layer and those before it. The first pattern that matches counts.
LAYERS: tuple[tuple[str, str], ...] = (
    # The shared core.
    ("replicate.errors", "P"),
    ("replicate.limits", "P"),
    ("replicate.settings", "P"),
    ("replicate.findings", "P"),
    ("replicate.pasteable", "P"),
    ("replicate.peer_authority", "P"),
    ("replicate.security.tls", "N"),
    ("replicate.security.authenticate", "N"),
    ("replicate.metrics.gauges", "P"),
    ("replicate.metrics.http", "P"),
    ("replicate.metrics.port", "N"),
    ("replicate.config", "P"),  # but for `load`, which reads the one file
    ("replicate.metrics.statistics", "P"),
    ("replicate.daemon.repetition", "P"),
    ("replicate.transaction", "P"),
    ("replicate.vector", "P"),
    ("replicate.resync", "P"),
    ("replicate.journal.record", "P"),
    ("replicate.pool.control", "P"),
    ("replicate.pool.ring", "P"),
    ("replicate.wire", "P"),
    ("replicate.wire.*", "P"),
    ("replicate.database.names", "P"),
    ("replicate.database.pages", "P"),
    ("replicate.database.statements", "P"),
    ("replicate.database.pragmas", "P"),
    ("replicate.seed.format", "P"),
    ("replicate.seed.request", "N"),
    ("replicate.status.text", "P"),
    ("replicate.status.report", "P"),
    ("replicate.status.catching_up", "P"),
    ("replicate.compare", "P"),
    ("replicate.daemon", "P"),
    ("replicate.door", "P"),
    ("replicate.instance", "P"),
    ("replicate.metrics", "P"),
    ("replicate.recovery", "P"),
    ("replicate.security", "P"),
    ("replicate.seed", "P"),
    ("replicate.status", "P"),
    ("replicate.admin", "P"),
    ("replicate.commit", "P"),
    ("replicate.journal", "P"),
    ("replicate.pool", "P"),
    ("replicate.database", "P"),
    ("replicate.journal.*", "D"),
    ("replicate.pool.*", "D"),
    ("replicate.database.*", "D"),
    ("replicate.daemon.control", "N"),
    ("replicate.daemon.could_start", "N"),
    ("replicate.daemon.daemon", "N"),
    ("replicate.daemon.drive", "N"),
    ("replicate.listening", "N"),
    ("replicate.log", "N"),
    ("replicate.other_package", "N"),
    ("replicate.filter", "N"),
    ("replicate", "X"),
    ("replicate.dbapi*", "X"),
    ("replicate.bench*", "X"),
    ("replicate.cli", "X"),
    ("replicate.cli.*", "X"),
    ("replicate.*", "D"),  # the door, recovery, instance and what stands on them
    # The daemons.
    ("source_server.link", "P"),
    ("source_server.retry", "P"),
    ("source_server.reader", "D"),
    ("source_server", "P"),
    ("source_server.*", "N"),
    ("receiver_server.link", "P"),
    ("receiver_server.flow", "P"),
    ("receiver_server.gate", "P"),
    ("receiver_server", "P"),
    ("receiver_server.*", "N"),
    ("update_process.batch", "P"),
    ("update_process.plain", "P"),
    ("update_process.done", "P"),
    ("update_process.process", "N"),
    ("update_process.replay.net", "P"),
    ("update_process.replay.fold", "P"),
    ("update_process.replay.bulk", "P"),
    ("update_process", "P"),
    ("update_process.*", "D"),
)

# Who may import a library. "" = everybody not in P; listed patterns only otherwise.
DOOR = (
    "replicate.region_functions",
    "replicate.commit.*",
    "replicate.recovery.recovery",
    "replicate.recovery.rings",
    "replicate.recovery.redo",
    "replicate.recovery.stale_wal",
    "replicate.apply_session",
)
LIBRARIES: dict[str, tuple[str, ...]] = {
    "apsw": ("replicate.database.*", "replicate.dbapi*", "replicate.bench.*", *DOOR),  # bench: plain SQLite beside us
    "sqlite3": ("replicate.dbapi*",),  # for its exception classes only: two SQLite libraries on one file lose locks
    "pyspark": ("update_process.replay.*",),
    "click": ("replicate.cli.*",),
    "structlog": (
        "replicate.log",
        "replicate.daemon.daemon",
        "replicate.metrics.port",
        "*_server.server*",
        "update_process.process*",
    ),
    "trio": (
        "replicate.daemon.daemon",
        "replicate.security.authenticate",
        "replicate.daemon.drive",
        "replicate.listening",
        "replicate.metrics.port",
        "replicate.pool.doorbell",
        "replicate.security.tls",
        "*_server.*",
        "update_process.*",
    ),
    "ssl": ("replicate.security.identity", "replicate.security.tls"),
    "cryptography": ("replicate.security.certificate",),
    "prometheus_client": ("replicate.metrics.gauges",),
    "multiprocessing": (),  # its shared memory unlinks what others still use; our pools are files of our own
    "logging": (),  # logs are structlog's
    "asyncio": (),
    "pickle": (),  # never for bytes that came from elsewhere, and so never
}

# What pure modules must not import, over and above the restricted libraries.
IMPURE = frozenset(
    {
        "asyncio",
        "concurrent",
        "contextvars",
        "datetime",
        "fcntl",
        "fileinput",
        "ftplib",
        "glob",
        "http",
        "io",
        "logging",
        "mmap",
        "os",
        "pathlib",
        "queue",
        "random",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "stat",
        "structlog",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "trio",
        "urllib",
        "apsw",
        "click",
        "pyspark",
        "multiprocessing",
    }
)
PURE_EXCEPTIONS: dict[str, frozenset[str]] = {
    "replicate.config": frozenset({"pathlib", "os"}),  # `load`
}

# (importer, imported): directions that layers alone do not forbid.
FORBIDDEN: tuple[tuple[str, str], ...] = (
    ("source_server*", "receiver_server*"),  # daemons meet in pools and on the wire
    ("source_server*", "update_process*"),
    ("receiver_server*", "source_server*"),
    ("receiver_server*", "update_process*"),
    ("update_process*", "source_server*"),
    ("update_process*", "receiver_server*"),
    ("replicate.[!c]*", "*_server*"),  # only the command line starts daemons
    ("replicate.[!c]*", "update_process*"),
    ("replicate.c[!l]*", "*_server*"),
    ("replicate.c[!l]*", "update_process*"),
    ("replicate.[!c]*", "replicate.cli*"),
    ("replicate.c[!l]*", "replicate.cli*"),
    ("*_server*", "replicate.cli*"),
    ("update_process*", "replicate.cli*"),
    ("replicate.journal.*", "replicate.pool*"),  # the journal is the truth and knows nothing of its cache
    ("replicate.journal.*", "replicate.database*"),
    ("replicate.journal.*", "replicate.wire*"),
    ("replicate.pool.*", "replicate.database*"),
    ("replicate.pool.*", "replicate.wire*"),
    ("replicate.wire.*", "replicate.pool*"),
    ("replicate.wire.*", "replicate.database*"),
    ("replicate.database.*", "replicate.pool*"),
    ("replicate.database.*", "replicate.wire*"),
    ("*", "tests*"),
)

UNFINISHED = ("TO" + "DO", "FIX" + "ME", "X" * 3 + " ", "NotImplemented" + "Error")


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def imports(name: str) -> frozenset[str]:
    """Dotted names of all modules that module `name` imports, wherever in the file, TYPE_CHECKING included."""
    found = set()
    for node in ast.walk(tree(modules()[name])):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: relative import; write the whole name"
            assert node.module is not None
            # `from package import module` imports the module; `from module import name` imports the module.
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update((inner & modules().keys()) or {node.module})
    return frozenset(found - {name})


def layer(name: str) -> str:
    for pattern, letter in LAYERS:
        if fnmatchcase(name, pattern):
            return letter
    raise AssertionError(f"{name} stands in no layer: add it to LAYERS in {__file__}")


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES


def python_files() -> list[Path]:
    folders = (*PACKAGES, "tests", "deploy", ".ci")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("name", modules())
def test_imports_go_down_the_layers(name: str) -> None:
    order = "PDNX"
    own = order.index(layer(name))
    # `replicate` itself is imported by importing anything below it; its own imports are late.
    above = [
        other for other in imports(name) if is_ours(other) and other != "replicate" and order.index(layer(other)) > own
    ]
    assert not above, f"{name} ({layer(name)}) imports {', '.join(f'{o} ({layer(o)})' for o in sorted(above))}"


def package(name: str) -> str:
    """The package below `replicate`, or the module that stands there alone; the daemons are one each."""
    top, _, below = name.partition(".")
    return f"{top}.{below.partition('.')[0]}" if top == "replicate" and below else top


def test_packages_form_no_circle() -> None:
    below: dict[str, set[str]] = {}
    for name in modules():
        others = {package(other) for other in imports(name) if is_ours(other)}
        below.setdefault(package(name), set()).update(others - {package(name), "replicate"})
    tuple(graphlib.TopologicalSorter(below).static_order())  # CycleError names a circle


# Files that know one another: parts of one thing, of which the lower ones name the upper one's type.
CIRCLES: tuple[frozenset[str], ...] = (
    frozenset(f"receiver_server.{name}" for name in ("server", "connection", "seed", "figures")),
    frozenset(f"source_server.{name}" for name in ("server", "connection", "seed", "figures")),
    frozenset(f"replicate.dbapi.{name}" for name in ("connection", "cursor", "blob")),  # `cursor.connection` is PEP 249
    frozenset(f"replicate.door.{name}" for name in ("door", "takeover", "voiding")),  # the door's other parts
    frozenset(f"replicate.database.{name}" for name in ("capture", "capture_outcome")),
)


def reached(name: str) -> set[str]:
    """All modules of ours that one imports, by others too."""
    found: set[str] = set()
    left = [name]
    while left:
        for other in imports(left.pop()) & modules().keys() - {"replicate"} - found:
            found.add(other)
            left.append(other)
    return found


def test_files_form_no_circle_but_those() -> None:
    below = {name: reached(name) for name in modules() if name != "replicate"}
    found = {frozenset(other for other in below if name in below[other] and other in below[name]) for name in below}
    assert found - {frozenset()} == set(CIRCLES)


@pytest.mark.parametrize("name", [name for name in modules() if layer(name) == "P"])
def test_pure_modules_touch_nothing(name: str) -> None:
    tops = {other.partition(".")[0] for other in imports(name)}
    impure = (tops & IMPURE) - PURE_EXCEPTIONS.get(name, frozenset())
    assert not impure, f"{name} is pure and imports {sorted(impure)}"
    calls = [node for node in ast.walk(tree(modules()[name])) if isinstance(node, ast.Call)]
    names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    assert not names & {"open", "print", "input", "exec", "eval", "__import__"}, f"{name} is pure and calls {names}"


@pytest.mark.parametrize("name", modules())
def test_libraries_stay_in_their_circle(name: str) -> None:
    for other in imports(name):
        users = LIBRARIES.get(other.partition(".")[0])
        if users is not None:
            assert any(fnmatchcase(name, user) for user in users), f"{name} imports {other}; only {users} may"


@pytest.mark.parametrize("name", modules())
def test_forbidden_directions(name: str) -> None:
    for importer, imported in FORBIDDEN:
        if fnmatchcase(name, importer):
            found = [other for other in imports(name) if fnmatchcase(other, imported)]
            assert not found, f"{name} must not import {found}"


@pytest.mark.parametrize("name", modules())
def test_imports_of_ours_exist(name: str) -> None:
    missing = [other for other in imports(name) if is_ours(other) and other not in modules()]
    assert not missing, f"{name} imports {missing}"


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LINES_MAX, f"{path} has more than {LINES_MAX} lines"
    docstring = ast.get_docstring(tree(path))
    assert docstring or not text.strip(), f"{path} has no docstring"


@pytest.mark.parametrize(
    "name", [n for n, path in modules().items() if path.name != "__init__.py" and ".cli." not in n]
)
def test_docstrings_say_what_is_guaranteed_and_what_is_not_known(name: str) -> None:
    docstring = " ".join((ast.get_docstring(tree(modules()[name])) or "").split())
    assert "Guarantee" in docstring, f"{name}: what does it guarantee?"
    assert "Refuses to know" in docstring, f"{name}: what does it refuse to know?"


@pytest.mark.parametrize("name", modules())
def test_nothing_is_left_unfinished(name: str) -> None:
    text = modules()[name].read_text(encoding="utf-8")
    assert not [word for word in UNFINISHED if word in text]


def test_test_directories_are_no_packages() -> None:
    found = {path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("__init__.py")}
    assert found <= {"__init__.py", "harness/__init__.py"}


def test_the_tables_name_what_exists() -> None:
    """A rule for a module that is gone is a rule that checks nothing."""
    names = list(modules())
    planned = {"replicate.filter"}  # not there yet
    for pattern, _ in LAYERS:
        if pattern not in planned:
            assert any(fnmatchcase(name, pattern) for name in names), f"no module matches {pattern}"
