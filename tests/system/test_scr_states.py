"""The four states of two arrays of checkpoint records, on two real sites with partitions: level; the primary ahead, and
softly resynchronized; the secondary ahead, and refused; the old primary resynchronized from the new one, softly and
hard, and each site in its old role again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.both_sites import KEPT, Both
from tests.harness.street import QUICK

pytestmark = pytest.mark.slow


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path, settings=QUICK, schema=KEPT)
    made.build()
    try:
        yield made.start()
    finally:
        made.close()


def states(both: Both, code: int = 0) -> dict[str, str]:
    """By partition, as the primary sees it."""
    done = both.on(both.primary, "--json", "scr", "--with", both.secondary, check=False)
    assert done.returncode == code, done.stderr
    return {row["partition_id"]: row["state"] for row in json.loads(done.stdout)["rows"]}


def all_even(both: Both) -> bool:
    return set(states(both).values()) == {"even"}


def cut(both: Both) -> None:
    both.on(both.primary, "source", "stop", "--peer", both.secondary.name)


def write(both: Both, table: str, count: int) -> None:
    for number in range(count):
        both.write(f"INSERT INTO {table} VALUES ('state', {number})")


def take_over(both: Both) -> str:
    """The primary has transactions that nobody else has; the secondary becomes primary, and refuses it. Up to where
    `scr` says there that the other one has to go back."""
    cut(both)
    write(both, "audit", 2)
    both.on(both.secondary, "promote", "--force")
    both.exchange()
    done = both.on(both.primary, "scr", "--with", both.secondary, check=False)
    assert done.returncode == 1
    found = re.search(r"ahead, and refused.*rollback --to (\d+)", done.stdout)
    assert found, done.stdout
    return found[1]


def test_the_four_states(both: Both) -> None:
    for site in (both.primary, both.secondary):
        both.on(site, "partition", "create", "sales", "--id", "2")
    both.on(both.primary, "partition", "assign", "sales", "audit")
    both.write("CREATE TABLE other (a, b)")
    both.equal()
    assert set(states(both)) == {"ALL", "DEFAULT", "sales"}
    assert all_even(both)

    cut(both)
    write(both, "audit", 3)
    write(both, "other", 1)
    assert states(both) == {"ALL": "behind by 4", "sales": "behind by 3", "DEFAULT": "behind by 1"}
    both.on(both.primary, "source", "start", "--peer", both.secondary.name)
    both.equal()
    assert all_even(both)

    seqno = take_over(both)
    both.on(both.secondary, "demote")
    both.on(both.secondary, "rollback", "--to", seqno)
    both.equal()
    assert all_even(both)

    seqno = take_over(both)
    both.on(both.secondary, "demote")
    for name in ("receiver", "update"):
        both.on(both.secondary, name, "stop")
    refused = both.on(both.secondary, "seed", "--restart", "--from", both.primary, check=False)
    assert refused.stderr.startswith("UNDELIVERED")  # first into a file, what is only there
    both.on(both.secondary, "rollback", "--to", seqno)
    both.on(both.secondary, "seed", "--restart", "--from", both.primary)
    both.all_start()
    both.equal()
    assert all_even(both)
    assert both.primary.name == "primary"  # each site has its old role again
