"""The rules of design §4, checked by reading every source file: layers, pure modules, who may use which library, sizes.

A new module is one line in LAYERS (or none, where a pattern covers it). A library with a restricted circle of users is
one line in LIBRARIES, a new folder a word in FLOORS. Loosen a rule only with the reason beside it.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeVar

import pytest

pytestmark = pytest.mark.turns(1)  # a rule of every commit

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("replicate", "source_server", "receiver_server", "update_process")
LINES_MAX = 700  # 500 shaped the code: classes were cut into mixins to stay below it

# P pure: no clock, socket, file, thread or log. D disk or shared memory. N network or process. X composition.
# A module imports its own layer and those before it. The first pattern that matches counts.
LAYERS: tuple[tuple[str, str], ...] = (
    # The shared core.
    ("replicate.errors", "P"),
    ("replicate.limits", "P"),
    ("replicate.model", "P"),
    ("replicate.model.*", "P"),
    ("replicate.settings", "P"),
    ("replicate.settings.*", "P"),  # but for `load`, which reads the one file
    ("replicate.wire", "P"),
    ("replicate.wire.*", "P"),
    ("replicate.journal.frame", "P"),
    ("replicate.journal.sections", "P"),
    ("replicate.journal.record", "P"),
    ("replicate.journal.walk", "P"),
    ("replicate.audit.selection", "P"),
    ("replicate.audit.record_lines", "P"),
    ("replicate.filters.filter_process", "N"),
    ("replicate.filters.callable_host", "N"),
    ("replicate.filters.program", "D"),
    ("replicate.filters.whose_words", "D"),
    ("replicate.filters.switch", "D"),
    ("replicate.filters.stream", "N"),
    ("replicate.filters*", "P"),
    ("replicate.pool.control", "P"),
    ("replicate.pool.ring", "P"),
    ("replicate.region.sqlite.sql.own_functions", "D"),
    ("replicate.region.sqlite.sql.*", "P"),
    ("replicate.region.sqlite.forensics.pages", "P"),
    ("replicate.roles.handover", "P"),
    ("replicate.roles.succession", "P"),
    ("replicate.roles.encounters", "N"),
    ("replicate.transfer.records", "P"),
    ("replicate.transfer.container", "P"),
    ("replicate.transfer.packet.format", "P"),
    ("replicate.transfer.packet.epochs", "P"),
    ("replicate.transfer.packet.order", "P"),
    ("replicate.transfer.packet.packet_changes", "P"),
    ("replicate.transfer.packet.supplier_rows", "P"),
    ("replicate.transfer.packet.vector_order", "P"),
    ("replicate.transfer.seed.request", "N"),
    ("replicate.logs.files", "D"),
    ("replicate.logs.picture", "D"),
    ("replicate.logs*", "P"),
    ("replicate.admin.join_plan", "P"),
    ("replicate.admin.joining", "N"),
    ("replicate.admin.peer_address", "N"),
    ("replicate.seeing.follow", "D"),
    ("replicate.seeing.instance_view", "D"),
    ("replicate.seeing.site_records", "D"),
    ("replicate.seeing.page_client", "N"),
    ("replicate.seeing.other_host", "N"),
    ("replicate.seeing*", "P"),
    ("replicate.web.request", "P"),
    ("replicate.web.server", "N"),
    ("replicate.status.text", "P"),
    ("replicate.status.report", "P"),
    ("replicate.status.comparing", "P"),
    ("replicate.status.listens", "P"),
    ("replicate.security.tls", "N"),
    ("replicate.security.authenticate", "N"),
    ("replicate.daemon.admission", "P"),
    ("replicate.daemon.figures", "P"),
    ("replicate.daemon.http", "P"),
    ("replicate.daemon.index_patrol", "N"),
    ("replicate.daemon.repeated_lines", "P"),
    ("replicate.daemon.statistics", "P"),
    ("replicate.daemon.control", "N"),
    ("replicate.daemon.could_start", "N"),
    ("replicate.daemon.daemon", "N"),
    ("replicate.daemon.link_driver", "N"),
    ("replicate.daemon.listening", "N"),
    ("replicate.daemon.log", "N"),
    ("replicate.daemon.metrics_port", "N"),
    ("replicate.daemon.order_socket", "N"),
    ("replicate.daemon.orders", "N"),
    ("replicate.daemon.source_progress", "N"),
    ("replicate.daemon.receiver_and_update", "N"),
    ("replicate.daemon.zero_backlog", "N"),
    ("replicate.daemon.statistics_lines", "N"),
    ("replicate.daemon.role_watch", "N"),
    ("replicate.system.other_package", "N"),
    ("replicate", "X"),
    ("replicate.dbapi*", "X"),
    ("replicate.bench*", "X"),
    ("replicate.cli", "X"),
    ("replicate.cli.*", "X"),
    ("replicate.*", "D"),
    # The daemons.
    ("source_server.link", "P"),
    ("source_server.retry", "P"),
    ("source_server.reader", "D"),
    ("source_server.*", "N"),
    ("receiver_server.link", "P"),
    ("receiver_server.flow", "P"),
    ("receiver_server.seed_arrival", "P"),
    ("receiver_server.*", "N"),
    ("update_process.plan", "P"),
    ("update_process.window.columns", "P"),
    ("update_process.work_result", "P"),
    ("update_process.process", "N"),
    ("update_process.replay.net", "P"),
    ("update_process.replay.fold", "P"),
    ("update_process.replay.bulk", "P"),
    ("*_server", "P"),
    ("update_process", "P"),
    ("update_process.*", "D"),
)

# What stands on what: a folder imports those on the floors before its own, and never one beside it.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("replicate.errors", "replicate.limits"),
    ("replicate.system", "replicate.settings"),
    ("replicate.model",),
    ("replicate.journal",),  # the truth: it knows nothing of its caches, of the wire, of databases
    ("replicate.pool", "replicate.wire", "replicate.region", "replicate.filters"),
    ("replicate.instance",),
    ("replicate.door", "replicate.audit", "replicate.security"),
    ("replicate.compare", "replicate.dbapi", "replicate.bench"),
    ("replicate.daemon",),
    ("replicate.lost", "replicate.transfer"),
    ("replicate.roles", "replicate.status", "replicate.logs"),
    # Daemons meet in pools and on the wire.
    ("replicate.admin", "replicate.seeing", "source_server", "receiver_server", "update_process"),
    ("replicate.web",),
    ("replicate.cli",),  # it alone starts daemons
    ("replicate",),  # the names that applications import, loaded late
)

# What knows a kind of region by region/protocol.py only, never SQLite itself.
WITHOUT_SQLITE = (
    "replicate.door.*",
    "replicate.roles.undo_transactions",
    "replicate.region.protocol",
    "receiver_server.*",
)

# Who may import a library. "" = everybody not in P; listed patterns only otherwise.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "apsw": ("replicate.region.sqlite.*", "replicate.dbapi*"),
    "sqlite3": ("replicate.dbapi*",),  # for its exception classes only: two SQLite libraries on one file lose locks
    "pyspark": ("update_process.replay.*",),
    "curses": ("replicate.cli.screen",),
    "click": ("replicate.cli.*",),
    "structlog": (
        "replicate.daemon.log",
        "replicate.daemon.daemon",
        "replicate.daemon.metrics_port",
        "update_process.process*",
    ),
    "trio": (
        "replicate.daemon.daemon",
        "replicate.security.authenticate",
        "replicate.daemon.link_driver",
        "replicate.daemon.index_patrol",
        "replicate.daemon.listening",
        "replicate.daemon.metrics_port",
        "replicate.daemon.order_socket",
        "replicate.daemon.statistics_lines",
        "replicate.daemon.ticks",
        "replicate.daemon.role_watch",
        "replicate.filters.filter_process",
        "replicate.filters.stream",
        "replicate.pool.doorbell",
        "replicate.roles.encounters",  # of two daemons, which may not import one another
        "replicate.security.tls",
        "replicate.web.server",
        "replicate.cli.web",
        "*_server.*",
        "update_process.*",
    ),
    "h11": ("replicate.web.server",),
    "ssl": (
        "replicate.security.identity",
        "replicate.security.tls",
        "replicate.seeing.page_client",
        "replicate.web.server",
    ),
    "cryptography": tuple(f"replicate.security.{name}" for name in ("certificate", "signing", "sealing")),
    "prometheus_client": ("replicate.daemon.figures",),
    "matplotlib": ("replicate.logs.picture", "replicate.audit.picture"),
    "pyarrow": ("replicate.audit.parquet", "update_process.replay.*"),
    "tomlkit": ("replicate.instance.settings_file",),
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
    "replicate.settings.load": frozenset({"pathlib", "os"}),  # `load`
    "replicate.model.moment": frozenset({"datetime"}),  # the calendar alone; the clock is its caller's
}

ATTRIBUTES_MAX = 25

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


Thing = TypeVar("Thing")


def of_all(things: Callable[[], Iterable[Thing]]) -> Callable[[Callable[[Thing], None]], Callable[[], None]]:
    """A rule for each of many things is one test, which tells of all that break it: a test for each would cost each
    process of a run several seconds before it begins."""

    def of(rule: Callable[[Thing], None]) -> Callable[[], None]:
        def test() -> None:
            told = []
            for one in things():
                try:
                    rule(one)
                except AssertionError as error:
                    told.append(f"{one}: {error}")
            assert not told, "\n".join(told)

        test.__name__, test.__doc__ = rule.__name__, rule.__doc__
        return test

    return of


@of_all(modules)
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


@of_all(modules)
def test_folders_import_from_the_floors_below(name: str) -> None:
    floor = {folder: at for at, folders in enumerate(FLOORS) for folder in folders}
    own = package(name)
    others = {other for other in imports(name) if is_ours(other) and package(other) not in (own, "replicate")}
    above = sorted(other for other in others if floor[package(other)] >= floor[own])
    assert not above, f"{name} stands on floor {floor[own]} and imports {above}"
    assert not any(other.partition(".")[0] == "tests" for other in imports(name))


def reached(name: str) -> set[str]:
    """All modules of ours that one imports, by others too."""
    found: set[str] = set()
    left = [name]
    while left:
        for other in imports(left.pop()) & modules().keys() - {"replicate"} - found:
            found.add(other)
            left.append(other)
    return found


def test_files_form_no_circle() -> None:
    below = {name: reached(name) for name in modules() if name != "replicate"}
    found = {frozenset(other for other in below if name in below[other] and other in below[name]) for name in below}
    assert found == {frozenset()}


@of_all(lambda: [name for name in modules() if layer(name) == "P"])
def test_pure_modules_touch_nothing(name: str) -> None:
    tops = {other.partition(".")[0] for other in imports(name)}
    impure = (tops & IMPURE) - PURE_EXCEPTIONS.get(name, frozenset())
    assert not impure, f"{name} is pure and imports {sorted(impure)}"
    calls = [node for node in ast.walk(tree(modules()[name])) if isinstance(node, ast.Call)]
    names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    assert not names & {"open", "print", "input", "exec", "eval", "__import__"}, f"{name} is pure and calls {names}"


@of_all(modules)
def test_libraries_stay_in_their_circle(name: str) -> None:
    for other in imports(name):
        users = LIBRARIES.get(other.partition(".")[0])
        if users is not None:
            assert any(fnmatchcase(name, user) for user in users), f"{name} imports {other}; only {users} may"


@of_all(modules)
def test_the_door_sees_regions_by_their_protocol(name: str) -> None:
    if any(fnmatchcase(name, pattern) for pattern in WITHOUT_SQLITE):
        assert not [other for other in imports(name) if other.startswith("replicate.region.sqlite")]


KINDS = """
from replicate.region.protocol import RegionKind
from replicate.region.sqlite.kind import SqliteKind
from tests.simulation.regions import ModelKind

class Lacking(ModelKind):
    sync = None  # type: ignore[assignment]

real: type[RegionKind] = SqliteKind
model: type[RegionKind] = ModelKind
refused: type[RegionKind] = Lacking
"""


@pytest.mark.slow
def test_mypy_accepts_each_kind_of_region_and_none_that_lacks_something(tmp_path: Path) -> None:
    (tmp_path / "kinds.py").write_text(KINDS, encoding="utf-8")
    # A cache of its own: another run of mypy may be at work with the one of the checkout.
    program = ("-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "kinds.py"))
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    told = subprocess.run(
        [sys.executable, *program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    refused = 1 + KINDS.splitlines().index("refused: type[RegionKind] = Lacking")
    assert [line.split(":")[1] for line in told.stdout.splitlines() if ": error:" in line] == [str(refused)], told


@of_all(modules)
def test_imports_of_ours_exist(name: str) -> None:
    missing = [other for other in imports(name) if is_ours(other) and other not in modules()]
    assert not missing, f"{name} imports {missing}"


@of_all(lambda: [name for name, path in modules().items() if path.name != "__init__.py"])
def test_a_name_is_imported_from_where_it_stands(name: str) -> None:
    """`import X as X` hands a name on: then it stands in two modules, and a reader looks in the wrong one."""
    handed_on = [
        alias.name
        for node in ast.walk(tree(modules()[name]))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]
    assert not handed_on, f"{name} hands on {handed_on}"


@of_all(python_files)
def test_every_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LINES_MAX, f"{path} has more than {LINES_MAX} lines"
    docstring = ast.get_docstring(tree(path))
    assert docstring or not text.strip(), f"{path} has no docstring"


@functools.cache
def file_names() -> frozenset[str]:
    """All Python files of ours, by all ends of their paths: a/b/c.py, b/c.py, c.py."""
    found = set()
    for path in python_files():
        parts = path.relative_to(ROOT).parts
        found.update("/".join(parts[place:]) for place in range(len(parts)))
    return frozenset(found)


@of_all(python_files)
def test_a_module_that_is_named_in_words_exists(path: Path) -> None:
    """In a module's docstring, and anywhere in the product: a name that was left behind leads a reader nowhere."""
    is_product = path.relative_to(ROOT).parts[0] in PACKAGES
    text = path.read_text(encoding="utf-8") if is_product else ast.get_docstring(tree(path)) or ""
    named = re.findall(r"(?<![\w./-])(?:\.\./)*((?:\w+/)*\w+\.py)\b", text)
    assert not set(named) - file_names(), f"{sorted(set(named) - file_names())} are not there"


def test_the_rooms_are_all_in_the_chapter_for_contributors() -> None:
    chapter = (ROOT / "deploy" / "manual" / "contributing.md").read_text(encoding="utf-8")
    table = [line.split("|")[1] for line in chapter.splitlines() if line.startswith("| `")]
    told = {name for row in table for name in re.findall(r"[\w./]+", row)}
    rooms = {folder.removeprefix("replicate.") for floor in FLOORS for folder in floor} - {"replicate"}
    named = {name.removeprefix("replicate/").removesuffix(".py") for name in told}
    assert named == rooms


@of_all(lambda: [n for n, path in modules().items() if path.name != "__init__.py" and ".cli." not in n])
def test_docstrings_say_what_is_guaranteed_and_what_is_not_known(name: str) -> None:
    docstring = " ".join((ast.get_docstring(tree(modules()[name])) or "").split())
    assert "Guarantee" in docstring, f"{name}: what does it guarantee?"
    assert "Leaves to others" in docstring, f"{name}: what does it leave to others?"


@functools.cache
def classes() -> tuple[tuple[str, ast.ClassDef], ...]:
    """(module, class), of all of them."""
    return tuple(
        (name, node)
        for name, path in modules().items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    )


def test_a_class_name_stands_for_one_thing() -> None:
    where: dict[str, list[str]] = {}
    for name, node in classes():
        where.setdefault(node.name, []).append(name)
    assert {name: modules for name, modules in where.items() if len(modules) > 1} == {}


# The first four make fields of their own, that of the fifth is not compared, and Spark's base has no slots.
DATACLASSES: Final = {"CapturedTable", "OpenBatch", "SuppliedBatch", "Replay", "LastInPartition", "BlockPartition"}


def test_records_are_structs() -> None:
    assert {c.name for _, c in classes() if any("dataclass" in ast.unparse(d) for d in c.decorator_list)} == DATACLASSES


def test_classes_have_few_attributes() -> None:
    found = {}
    for _, node in classes():
        own = {
            one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and isinstance(one.value, ast.Name):
                own |= {one.attr} if one.value.id == "self" else set()
        if len(own) > ATTRIBUTES_MAX:
            found[node.name] = len(own)
    assert found == {}


DOCSTRING_WORDS_MAX = 150  # rule 9 of the house style; lines that are set in, as pictures and tables are, do not count


def test_a_module_says_shortly_what_it_is() -> None:
    found = {}
    for name, path in modules().items():
        lines = (ast.get_docstring(tree(path)) or "").splitlines()
        words = sum(len(line.split()) for line in lines if not line.startswith("    "))
        if words > DOCSTRING_WORDS_MAX:
            found[name] = words
    assert found == {}


# Where the kind of a transaction is named: what makes frames, or a fast way that leaves other kinds to a slow one.
# All else asks record.py (`changes_of`, CHANGES_BEGIN, LARGE_BEGINS): a transaction may be told in other words.
NAMING_KINDS = frozenset(
    {
        "replicate.journal.record",
        "replicate.journal.walk",
        "replicate.audit.count",  # a fast way for transactions of one change
        "replicate.door.door",
        "replicate.door.own_removal",  # makes one that no session has captured
        "replicate.filters.selection",
        "replicate.door.recovery.region_rings",  # a primary's own commits
        "replicate.door.recovery.stale_wal",  # the same
        "replicate.lost.apply",  # the body that a large one would have
        "update_process.window.columns",
        "update_process.window.single_transaction",
        "update_process.replay.archive.arrow_rows",
    }
)


@of_all(modules)
def test_what_a_body_holds_is_asked_at_one_place(name: str) -> None:
    named = {
        node.attr
        for node in ast.walk(tree(modules()[name]))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Kind"
    }
    assert not named & {"TRANSACTION", "LARGE", "RESTATED_LARGE"} or name in NAMING_KINDS


NAME_THE_WORDS = (
    ROOT / "deploy" / "manual" / "contributing.md",
    ROOT / "tests" / "deploy" / "test_manual.py",
    ROOT / "tests" / "test_architecture.py",
)


def texts() -> list[Path]:
    """The product's modules, those of the tests, and what else stands in a checkout for people to read or run."""
    endings = ("", ".py", ".sh", ".md", ".conf", ".service", ".target", ".yml")
    others = [path for folder in ("deploy", ".ci") for path in (ROOT / folder).rglob("*") if path.suffix in endings]
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path not in NAME_THE_WORDS]
    shipped = [one for one in others if one.is_file() and one not in NAME_THE_WORDS]
    return [*modules().values(), *tests, ROOT / "README.md", *shipped]


@of_all(texts)
def test_the_words_are_plain(path: Path) -> None:
    """Rule 3 and 4 of the house style, as far as a word shows it."""
    text = " ".join(path.read_text(encoding="utf-8").split())
    assert not re.findall(r"(?i)\bcan not\b(?! only)|\banew\b|\bwhom?ever\b", text), "cannot; again; a process that"
    assert not re.findall(r"(?i)\b(?:to|outlives) who\b", text), "a process that, one that"


# Texts that say how far a side, a clock or a reader is *behind* another one: the field's word for what lags.
SPEAK_OF_LAG = (
    "README.md",
    "deploy/alerts/dualsite.yml",
    "deploy/demo.py",
    "replicate/cli/replay.py",
    "replicate/compare/compare.py",
    "replicate/compare/scr.py",
    "replicate/daemon/last_heard.py",
    "replicate/daemon/statistics.py",
    "replicate/daemon/zero_backlog.py",
    "replicate/door/primary.py",
    "replicate/door/pruning.py",
    "replicate/door/recovery/recovery.py",
    "replicate/door/region_part.py",
    "replicate/lost/keep.py",
    "replicate/lost/undelivered.py",
    "replicate/model/clock_skew.py",
    "replicate/model/contact.py",
    "replicate/model/ruv.py",
    "replicate/pool/control.py",
    "replicate/pool/receive_pool.py",
    "replicate/security/certificate.py",
    "replicate/status/clocks.py",
    "replicate/status/report.py",
    "tests/faults/crash_runs.py",
    "tests/pictures.py",
    "tests/receiver_server/test_returning_primary_alone.py",
    "tests/replicate/admin/test_partitions_elements.py",
    "tests/replicate/cli/test_ruv.py",
    "tests/replicate/cli/test_scr.py",
    "tests/replicate/compare/test_ruv.py",
    "tests/replicate/compare/test_scr.py",
    "tests/replicate/compare/test_scr_partitions.py",
    "tests/replicate/daemon/test_statistics.py",
    "tests/replicate/door/recovery/test_idle_region.py",
    "tests/replicate/door/recovery/test_recovery.py",
    "tests/replicate/door/test_door.py",
    "tests/replicate/door/test_pruning.py",
    "tests/replicate/door/test_region_part.py",
    "tests/replicate/model/test_ruv.py",
    "tests/replicate/seeing/test_street.py",
    "tests/replicate/status/test_clocks.py",
    "tests/replicate/status/test_collect.py",
    "tests/simulation/plants.py",
    "tests/simulation/roles/world.py",
    "tests/source_server/test_reader.py",
    "tests/source_server/test_restart.py",
    "tests/spark/test_archive_steps.py",
    "tests/system/test_prometheus.py",
    "tests/system/test_scr_states.py",
    "update_process/figures.py",
)
LEFT_THERE = r"(?i)\b(?:leaves?|left|stayed)\b[^.;]{0,60}? behind\b|\bbehind (?:[\w']+ ){1,2}backs?\b"
"""What is left lying, or done unseen: there "after" would mean something else."""


def behind_for_after(path: Path) -> list[str]:
    """Where a text, or a name in it, says *behind*."""
    text = path.read_text(encoding="utf-8")
    if "behind" not in text.lower():
        return []
    text = re.sub(LEFT_THERE, "", " ".join(text.replace("_", " ").split()))
    return re.findall(r"(?i).{0,30}behind.{0,20}", text)


@of_all(lambda: [one for one in texts() if one.name != "CHANGES.md"])  # that tells what was
def test_what_comes_later_comes_after(path: Path) -> None:
    found = behind_for_after(path)
    is_lag = path.relative_to(ROOT).as_posix() in SPEAK_OF_LAG
    assert not found or is_lag, f'"after" in time or in a file; of what lags, a line in SPEAK_OF_LAG: {found}'


def test_who_is_said_to_speak_of_lag_does() -> None:
    assert [name for name in SPEAK_OF_LAG if not behind_for_after(ROOT / name)] == []


@of_all(modules)
def test_nothing_is_left_unfinished(name: str) -> None:
    text = modules()[name].read_text(encoding="utf-8")
    assert not [word for word in UNFINISHED if word in text]


def test_test_directories_are_no_packages() -> None:
    found = {path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("__init__.py")}
    assert found <= {"__init__.py", "harness/__init__.py"}


def test_the_tables_name_what_exists() -> None:
    """A rule for a module that is gone is a rule that checks nothing."""
    names = list(modules())
    for pattern, _ in LAYERS:
        assert any(fnmatchcase(name, pattern) for name in names), f"no module matches {pattern}"
    assert {package(name) for name in names} == {folder for folders in FLOORS for folder in folders}
