"""What nobody must find in logs, arguments, environments and status files: values of rows, and keys."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.instance.instance import Instance
from replicate.security.shared_key import default_path, read_key
from tests.harness.street import Street
from tests.harness.waiting import wait_until

MARK = "geheim-7f3a"
FOREIGN = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA writable_schema = 1")
version = connection.execute("PRAGMA schema_version").fetchone()[0]
guard = connection.execute(
    "SELECT sql FROM sqlite_schema WHERE name = '_replicate_guard_update_setting'"
).fetchone()[0]
connection.execute("DROP TRIGGER _replicate_guard_update_setting")
connection.execute("UPDATE setting SET value = ? WHERE name = 'card'", (sys.argv[2],))
connection.execute(guard)
connection.execute(f"PRAGMA schema_version = {version}")
connection.commit()
"""


@pytest.fixture
def street(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Street]:
    made = Street(tmp_path, settings='[receiver]\npool_bytes = "4 MiB"\n[log]\nlevel = "debug"\n')
    monkeypatch.setenv("REPLICATE_SHM_DIR", made.environment["REPLICATE_SHM_DIR"])
    try:
        yield made.build().start()
    finally:
        made.close()


def seen_from_outside(street: Street) -> bytes:
    """Arguments and environments of the daemons, their logs, what they said, and what the commands print of them."""
    found = b""
    for instance in (street.primary, street.secondary):
        for file in (*(instance / "log").iterdir(), *(instance / "run").glob("*.json")):
            found += file.read_bytes()
        for file in (instance / "run").glob("*.status.json"):
            told = json.loads(file.read_text())
            if told["state"] == "serving":
                for kind in ("cmdline", "environ"):
                    found += Path(f"/proc/{told['pid']}/{kind}").read_bytes()
        found += street.on(instance, "status", check=False).stdout.encode()
        found += street.on(instance, "--json", "status", check=False).stdout.encode()
    return found


@pytest.mark.slow
def test_no_row_and_no_key_is_seen_from_outside_even_after_a_conflict(street: Street) -> None:
    street.write(f"INSERT INTO setting VALUES ('card', '{MARK}-1')")
    street.prove_equal()
    key = read_key(default_path(Instance.open(street.primary).content.network))
    before = seen_from_outside(street)
    street.on(street.secondary, "update", "stop")
    foreign = street.python(FOREIGN, str(street.secondary / "regions" / "main.db"), f"{MARK}-foreign")
    street.finish([foreign])
    street.start_update()
    street.write(f"UPDATE setting SET value = '{MARK}-2' WHERE name = 'card'")
    wait_until(lambda: street.daemon(street.secondary, "update")["exit_code"] == 65)
    assert "CONFLICT" in street.daemon(street.secondary, "update")["error"]
    after = seen_from_outside(street)
    for found in (before, after):
        assert len(found) > 5000
        assert MARK.encode() not in found
        for form in (key, key.hex().encode()):
            assert form not in found
    # They stand in one file, for the instance's owner.
    (conflict,) = (street.secondary / "conflict").iterdir()
    assert MARK in conflict.read_text()
    assert stat.S_IMODE(conflict.stat().st_mode) == 0o600


def test_no_command_takes_a_secret_as_an_argument() -> None:
    """Arguments are seen by everybody in the list of processes: keys are named by their files."""
    import click

    from replicate.cli.root import root

    def options(command: click.Command) -> Iterator[str]:
        for parameter in command.params:
            yield from parameter.opts
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                yield from options(inner)

    found = set(options(root))
    assert len(found) > 20
    for word in ("password", "secret", "token", "passphrase"):
        assert not [option for option in found if word in option and not option.endswith("-file")]
