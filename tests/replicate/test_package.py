"""What `import replicate` gives: PEP 249's names, the same objects as a connection's; nothing is loaded early."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

import replicate
from replicate import dbapi

ERRORS = (
    "Warning",
    "Error",
    "InterfaceError",
    "DatabaseError",
    "DataError",
    "OperationalError",
    "IntegrityError",
    "InternalError",
    "ProgrammingError",
    "NotSupportedError",
)


def test_the_module_globals_of_pep_249() -> None:
    assert (replicate.apilevel, replicate.threadsafety, replicate.paramstyle) == ("2.0", 1, "qmark")
    for name in ERRORS:
        found = getattr(replicate, name)
        assert found is getattr(dbapi.Connection, name)
        assert found is getattr(sqlite3, name)
    assert replicate.Row is sqlite3.Row
    assert set(replicate.__all__) <= set(dir(replicate))
    assert all(hasattr(replicate, name) for name in replicate.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Cursor'"):
        _ = replicate.Cursor  # type: ignore[attr-defined]


def test_importing_the_package_loads_neither_sqlite_nor_our_modules() -> None:
    program = (
        "import sys, replicate; "
        "print(sorted(m for m in sys.modules if m in ('apsw', 'sqlite3') or m.startswith('replicate.'))); "
        "replicate.Error; print('apsw' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.split("\n")[:2] == ["[]", "True"]
