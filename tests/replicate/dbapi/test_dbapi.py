"""The module as PEP 249 and sqlite3 have it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from replicate import dbapi


def test_module_interface() -> None:
    assert (dbapi.apilevel, dbapi.paramstyle, dbapi.threadsafety) == ("2.0", "qmark", 1)
    assert dbapi.IntegrityError is sqlite3.IntegrityError
    assert dbapi.Row is sqlite3.Row
    assert dbapi.SQLITE_DENY == 1
    with pytest.raises(AttributeError):
        _ = dbapi.nonsense


def test_a_standard_library_without_its_driver_version_is_enough() -> None:
    """As Python 3.14's: it took `sqlite3.version` away, after two releases of warnings."""
    program = (
        "import sqlite3\n"
        "for name in ('version', 'version_info', '__getattr__'):\n"
        "    vars(sqlite3).pop(name, None)\n"
        "import replicate.dbapi as driver\n"
        "print(driver.version, driver.version_info)"
    )
    command = [sys.executable, "-W", "error::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2.6.0 (2, 6, 0)\n", "")
