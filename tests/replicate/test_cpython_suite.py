"""CPython 3.11's own test suite of sqlite3, with `replicate.dbapi` in sqlite3's place.

Every test of it must pass, but for those in EXCEPTIONS: each of these must fail (but for NOT_RUN), so that the list
cannot grow stale. application.md says the same in other words.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "test_backup",
    "test_dbapi",
    "test_dump",
    "test_factory",
    "test_hooks",
    "test_regression",
    "test_transactions",
    "test_types",
    "test_userfunctions",
)
TESTS_MIN = 400

EXCEPTIONS = {
    "a region cannot be the target of backup(), whose pages would go round the commit door": (
        "BackupTests.test_bad_target_closed_connection",
        "BackupTests.test_bad_target_in_transaction",
        "BackupTests.test_bad_target_same_connection",
        "BackupTests.test_database_source_name",
        "BackupTests.test_failing_progress",
        "BackupTests.test_modifying_progress",
        "BackupTests.test_progress",
        "BackupTests.test_progress_all_pages_at_once_1",
        "BackupTests.test_progress_all_pages_at_once_2",
        "BackupTests.test_simple",
    ),
    "deserialize() is refused: it would replace the region past the commit door": (
        "SerializeTests.test_deserialize_corrupt_database",
        "SerializeTests.test_deserialize_wrong_args",
        "SerializeTests.test_serialize_deserialize",
    ),
    "an instance and a region are opened, not a file or a URI; one that is not there is not created": (
        "ConnectionTests.test_connection_bad_reinit",
        "ModuleTests.test_error_code_on_exception",
        "OpenTests.test_open_undecodable_uri",
        "OpenTests.test_open_unquoted_uri",
        "OpenTests.test_open_uri",
        "OpenTests.test_open_uri_readonly",
        "OpenTests.test_open_with_undecodable_path",
    ),
    "cursors end with their connection, also when it is initialised again": ("ConnectionTests.test_connection_reinit",),
    "a statement object is its text: connection(sql) gives a str": ("ModuleTests.test_disallow_instantiation",),
    "an index over a function that only this connection has is refused: the other site could not write it": (
        "FunctionTests.test_func_deterministic",
        "FunctionTests.test_func_non_deterministic",
    ),
    "the test writes the file with plain sqlite3 in a second process while we have it open": (
        "MultiprocessTests.test_ctx_mgr_rollback_if_commit_failed",
    ),
    "VACUUM is refused: it renumbers rows": ("CursorTests.test_rowcount_vaccuum",),
}
NOT_RUN = ("MultiprocessTests.test_ctx_mgr_rollback_if_commit_failed",)
"""Of EXCEPTIONS: it fails by waiting."""
_REASONS = {test: reason for reason, tests in EXCEPTIONS.items() for test in tests}
_seen: dict[str, int] = {}


def outcomes(module: str, directory: Path) -> dict[str, str]:
    """What came of each test of one module of the suite."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.harness.cpython_suite", module, str(directory), *NOT_RUN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the list of exceptions is that of CPython 3.11")
@pytest.mark.skipif(
    importlib.util.find_spec("test.test_sqlite3") is None,
    reason="this Python comes without its test suite (on Debian: libpython3-testsuite)",
)
@pytest.mark.parametrize("module", MODULES)
def test_cpythons_own_tests_pass(module: str, tmp_path: Path) -> None:
    found = outcomes(module, tmp_path)
    failed = {test: what for test, what in found.items() if what != "ok" and not what.startswith("skipped: ")}
    unexpected = {test: what for test, what in failed.items() if test not in _REASONS}
    assert not unexpected
    stale = {test for test in found if found[test] == "ok" and test in _REASONS}
    assert not stale, "these pass: take them out of EXCEPTIONS and application.md"
    _seen[module] = len(found)
    if len(_seen) == len(MODULES):
        assert sum(_seen.values()) >= TESTS_MIN
