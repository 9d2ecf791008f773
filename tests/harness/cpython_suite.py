"""Runs a module of CPython's own test.test_sqlite3 with replicate.dbapi in sqlite3's place: a process of its own.

Guarantees: every connection that a test opens is one of `replicate.dbapi` to a region of a real primary; what a test
knows as a file is a region at that path, so that connections to one path share it. The result is one JSON object on
standard output: the outcome of each test by its name.
Leaves to others: which tests should pass.

    python -m tests.harness.cpython_suite test_dbapi DIRECTORY [TEST NOT TO BE RUN ...]
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sqlite3 as standard
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import apsw

from replicate import dbapi
from replicate.admin.regions import add_region
from replicate.instance.instance import Instance

_SETTINGS = '[journal]\ndurability = "off"\npool_bytes = 1048576\n'


class Regions:
    """A primary for each database that the suite opens."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0
        self._files: dict[Path, tuple[Path, int]] = {}

    def of(self, database: Any) -> Path:
        """The instance of a database: a new one for ":memory:" and "", and for a file that is not there."""
        name = os.fsdecode(database)
        if name in (":memory:", ""):
            self._made += 1
            return self._make(self._directory / f"{self._made}.db")
        path = Path(name).absolute()
        known = self._files.get(path)
        if known is not None and path.exists() and path.stat().st_ino == known[1]:
            return known[0]
        if not path.parent.is_dir():
            raise dbapi.OperationalError("unable to open database file")
        made = self._make(path)
        self._files[path] = made, path.stat().st_ino
        return made

    def _make(self, path: Path) -> Path:
        self._made += 1
        instance = Instance.create(self._directory / f"instance{self._made}", role="primary", name=f"n{self._made}")
        (instance.path / "replicate.toml").write_text(_SETTINGS)
        instance = Instance.open(instance.path)  # with these settings
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            connection.execute("PRAGMA application_id = 1; PRAGMA application_id = 0")  # a file of at least one page
        add_region(instance, path)
        return instance.path


def replacement(regions: Regions) -> types.ModuleType:
    """A module that the suite takes for sqlite3."""
    module = types.ModuleType("sqlite3")
    for name in dir(standard):
        if not name.startswith("__"):
            setattr(module, name, getattr(standard, name))
    for name in dbapi.__all__:
        setattr(module, name, getattr(dbapi, name))

    class Connection(dbapi.Connection):
        """As sqlite3.Connection: of a database, not of an instance and a region."""

        def __init__(self, database: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(regions.of(database), "main", *arguments, **options)

    def connect(database: Any, *arguments: Any, **options: Any) -> Any:
        names = ("timeout", "detect_types", "isolation_level", "check_same_thread", "factory")
        options.update(zip(names, arguments, strict=False))
        return options.pop("factory", Connection)(database, **options)

    module.__getattr__ = dbapi.__getattr__  # type: ignore[method-assign]
    module.Connection = Connection  # type: ignore[attr-defined]
    module.connect = connect  # type: ignore[attr-defined]
    module.dbapi2 = module  # type: ignore[attr-defined]
    return module


class Outcomes(unittest.TestResult):
    """The outcome of every test by its name: "ok", "skipped", or the last line of what went wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def stopTest(self, test: unittest.TestCase) -> None:
        """Of a test that nothing was told of."""
        self.found.setdefault(_name(test), "ok")
        super().stopTest(test)

    def addError(self, test: Any, err: Any) -> None:
        """An exception."""
        self._told(test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        """An assertion."""
        self._told(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """A part of a test."""
        if err is not None:
            self._told(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        """The suite itself leaves it out here."""
        self.found[_name(test)] = f"skipped: {reason}"

    def _told(self, test: Any, error: Any) -> None:
        lines = f"{error[0].__name__}: {error[1]}".strip().splitlines()
        self.found[_name(test)] = " ".join(line.strip() for line in lines if line.strip())[:300]


def _name(test: Any) -> str:
    return ".".join(str(test.id()).split(".")[-2:])


def without(suite: unittest.TestSuite, names: list[str]) -> unittest.TestSuite:
    """A suite without the tests of these names."""
    kept = unittest.TestSuite()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(without(test, names))
        elif _name(test) not in names:
            kept.addTest(test)
    return kept


def main(module: str, directory: Path, not_run: list[str]) -> None:
    """Run one module of the suite."""
    os.environ["REPLICATE_SHM_DIR"] = str(directory / "shm")
    (directory / "shm").mkdir()
    os.chdir(directory)
    replaced = replacement(Regions(directory))
    sys.modules["sqlite3"] = sys.modules["sqlite3.dbapi2"] = replaced
    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"test.test_sqlite3.{module}"))
    outcomes = Outcomes()
    with open(os.devnull, "w", encoding="utf-8") as quiet, contextlib.redirect_stderr(quiet):
        without(suite, not_run).run(outcomes)
    print(json.dumps(outcomes.found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
