"""A secondary that was away is replayed from the primary's journal files, and the live stream goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.street import Street

pytestmark = pytest.mark.slow


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    made = Street(tmp_path).build()
    try:
        yield made.start()
    finally:
        made.close()


def test_the_stream_goes_on_behind_a_replay(street: Street) -> None:
    street.finish([street.writer(1, count=40)])
    street.prove_equal()
    port = street.port()

    refused = street.on(street.secondary, "replay", "--journal", street.primary, check=False)
    assert refused.returncode == 73
    assert "Update Process of secondary runs" in refused.stderr
    street.on(street.secondary, "update", "stop")
    refused = street.on(street.secondary, "replay", "--journal", street.primary, check=False)
    assert refused.returncode == 73
    assert "Receiver Server of secondary runs" in refused.stderr

    # Some of the backlog has been received and was not applied, the rest has not even been received.
    street.finish([street.writer(2, count=40, seed=2)])
    street.on(street.secondary, "receiver", "stop")
    street.finish([street.writer(3, count=60, seed=3)])
    street.write("ALTER TABLE account ADD COLUMN extra DEFAULT 1", "UPDATE account SET extra = 2 WHERE id % 2")
    dry = json.loads(street.on(street.secondary, "replay", "--journal", street.primary, "--dry-run", "--json").stdout)
    done = json.loads(street.on(street.secondary, "replay", "--journal", street.primary, "--json").stdout)
    assert dry["dry_run"]
    assert (dry["seqno"], dry["keys"], dry["pieces"]) == (done["seqno"], done["keys"], done["pieces"])
    assert done["seqno"] == street.last_seqno(street.primary) == street.last_seqno(street.secondary)
    assert done["transactions"] >= 100
    again = street.on(street.secondary, "replay", "--journal", street.primary / "journal")
    assert "nothing to replay" in again.stdout

    street.start_receiver(f"127.0.0.1:{port}")
    street.start_update()
    street.finish([street.writer(4, count=30, seed=4)])
    street.prove_equal()
    street.on(street.secondary, "journal", "verify")


def test_what_makes_no_sense_is_refused(street: Street, tmp_path: Path) -> None:
    for arguments, code, text in (
        (("--journal", tmp_path / "nowhere"), 69, "NOT_FOUND"),
        (("--journal", street.primary, "--to", "many"), 2, "neither a sequence number"),
        (("--journal", street.primary, "--master", "local[1]"), 2, "--engine spark"),
        ((), 2, "--journal"),
    ):
        found = street.on(street.secondary, "replay", *map(str, arguments), check=False)
        assert (found.returncode, text in found.stderr) == (code, True), found.stderr
    found = street.on(street.primary, "replay", "--journal", street.primary, check=False)
    assert (found.returncode, "PERMISSION" in found.stderr) == (77, True)
