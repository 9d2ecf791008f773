"""Two origins, two incarnations and two versions of a table through the whole street, over three sites in a chain.

A feeds B, B feeds C. B then becomes primary (by hand: the command for it comes later) and writes in its own name; then
its journal directory turns out to be a restored copy, so its incarnation rises. C must have all of it, in order, once.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.instance.file import encode, read_file
from replicate.system.files import replace_file
from tests.harness.street import Street, assert_same_databases

pytestmark = pytest.mark.slow


def rewrite(instance: Path, **changes: object) -> None:
    """Change the instance file behind the product's back."""
    file = instance / "instance.json"
    replace_file(file, encode(replace(read_file(file), **changes)))  # type: ignore[arg-type]


def origins(street: Street, instance: Path) -> list[tuple[str, int]]:
    """(instance name, incarnation) of every history record that the journal's newest segment knows, oldest first."""
    program = """
import json, sys
from replicate.instance.instance import Instance
from replicate.door.recovery.opening import open_door
door = open_door(Instance.open(sys.argv[1]))
catalogue = door.catalogue_now()
print(json.dumps([[h.name, h.incarnation] for h in catalogue.histories]))
door.close()
"""
    process = street.python(program, str(instance))
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return [(name, incarnation) for name, incarnation in json.loads(output)]


def write(street: Street, instance: Path, *statements: str) -> int:
    """One transaction on any primary; its seqno."""
    street_primary, street.primary = street.primary, instance
    try:
        return street.write(*statements)
    finally:
        street.primary = street_primary


def test_three_sites_two_origins_two_incarnations_two_versions(street: Street) -> None:
    a, b = street.primary, street.secondary
    c = street.directory / "third"
    network = json.loads(street.on(a, "--json", "instance", "show").stdout)["network"]
    street.run("instance", "create", c, "--role", "secondary", "--name", "third", "--network", network)
    street._set(c)
    street.others.append(c)
    street.on(c, "receiver", "start", "--no-update", "--listen", "127.0.0.1:0")
    listen = street.daemon(c, "receiver")["facts"]["listen"]
    street.on(b, "peer", "add", "third", listen)
    street.write("INSERT INTO loose VALUES ('A', 1)")
    street.prove_equal()
    street.on(c, "seed", "--from", b)
    street.on(c, "update", "start")
    street.on(b, "source", "start", "--peer", "third")

    # Origin A, through B, into C; a table in two versions.
    street.write("INSERT INTO loose VALUES ('A', 2)", "ALTER TABLE loose ADD COLUMN c DEFAULT 'new'")
    last_of_a = street.write("INSERT INTO loose VALUES ('A', 3, 'three')")
    street.on(c, "wait", "--seqno", str(last_of_a), "--timeout", "120")

    # B becomes primary in its own name.
    street.on(a, "source", "stop")
    for name in ("update", "receiver", "source"):
        street.on(b, name, "stop")
    rewrite(b, role="primary")
    for file in Path(street.environment["REPLICATE_SHM_DIR"]).iterdir():
        if read_file(b / "instance.json").uuid.hex() in file.name:
            file.unlink()
    street.on(b, "source", "start", "--peer", "third")
    first_of_b = write(street, b, "INSERT INTO loose VALUES ('B', 4, 'four')")
    assert first_of_b == last_of_a + 2  # the history record of B's incarnation stands between
    street.on(c, "wait", "--seqno", str(first_of_b), "--timeout", "120")

    # B's journal turns out to be a copy: its numbers could have been used twice, so another incarnation.
    street.on(b, "source", "stop")
    rewrite(b, journal_inode="0:0")
    for file in Path(street.environment["REPLICATE_SHM_DIR"]).iterdir():
        if read_file(b / "instance.json").uuid.hex() in file.name:
            file.unlink()
    street.on(b, "source", "start", "--peer", "third")
    last = write(street, b, "UPDATE loose SET c = 'of the second incarnation' WHERE a = 'B'")
    street.on(c, "wait", "--seqno", str(last), "--timeout", "120")

    assert origins(street, c) == [("primary", 1), ("secondary", 2), ("secondary", 3)]  # its seed raised it once
    assert_same_databases(b / "regions" / "main.db", c / "regions" / "main.db")
    street.on(b, "compare", "--with", c)
    street.on(c, "journal", "verify")
