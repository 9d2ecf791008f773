"""A secondary that holds what a filter has made: each other way to bring it data, or to take data from it, works in the
filter's words, or is refused by name.

Real processes, the source's filter, and the manual's commands.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from replicate.audit.show import show_journal
from replicate.filters.whose_words import read_content
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from tests.harness.ports import free_port
from tests.harness.sites import told_of_a_takeover
from tests.harness.street import QUICK, Street
from tests.harness.waiting import wait_until

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL);
CREATE TABLE entry (number INTEGER PRIMARY KEY, data BLOB);
CREATE TABLE audit (what TEXT, at INTEGER);
"""
FILTER = '[source]\nfilter = "tests.harness.filters:loud_and_without_entries"'


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    made = Street(tmp_path, settings=QUICK, schema=SCHEMA)
    try:
        made.build()
        (made.primary / "replicate.toml").write_text(QUICK.replace("[source]", FILTER))
        made.start()
        write(made)
        yield made
    finally:
        made.close()


def write(street: Street) -> int:
    """Rows that the filter changes, that it leaves out, and a transaction larger than a frame; the last number."""
    street.write("INSERT INTO account (owner) VALUES ('one'), ('two')", "INSERT INTO entry (data) VALUES (x'01')")
    street.write("UPDATE account SET owner = owner || ' more' WHERE id % 2", "DELETE FROM account WHERE id % 5 = 0")
    numbers = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1200)"
    return street.write(f"{numbers} INSERT INTO account (owner) SELECT printf('%1000d many', i) FROM n")


def rows(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT id, owner FROM account ORDER BY id").fetchall()


def came(street: Street, instance: Path) -> None:
    """All of the primary's is there, in the filter's words."""
    last = street.last_seqno(street.primary)
    street.on(instance, "wait", "--seqno", str(last), "--timeout", "60")
    made = [(key, str(owner).upper()) for key, owner in rows(street.database)]
    assert rows(instance / "regions" / "main.db") == made
    assert len(made) > 1000


def third_site(street: Street) -> Path:
    """A secondary of the secondary, its Receiver Server running; the secondary sends to it."""
    third = street.directory / "third"
    network = street.status(street.secondary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    street.others.append(third)
    port = free_port()
    street.on(third, "receiver", "start", "--no-update", "--listen", f"127.0.0.1:{port}")
    street.on(street.secondary, "peer", "add", "third", f"127.0.0.1:{port}")
    street.on(street.secondary, "source", "start", "--peer", "third")
    return third


@pytest.mark.slow
def test_a_third_site_gets_it_in_these_words_and_no_filter_runs_again(street: Street) -> None:
    third = third_site(street)
    street.on(third, "seed")
    street.on(third, "update", "start")
    write(street)
    for instance in (street.secondary, third):
        came(street, instance)
    street.on(street.secondary, "compare", "--with", third)
    kinds = {one.kind for one in show_journal(Instance.open(third))}
    assert {"RESTATED", "RESTATED_LARGE"} <= kinds


@pytest.mark.slow
def test_it_is_rebuilt_from_its_own_copy_and_journal(street: Street) -> None:
    """From a seed file and the journal of a site that is beyond the filter."""
    came(street, street.secondary)
    third = street.directory / "third"
    network = street.status(street.secondary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    street.on(street.secondary, "peer", "add", "third", f"127.0.0.1:{free_port()}")
    base = street.directory / "base.seed"
    street.on(street.secondary, "seed", "--to-file", base, "--for", "third")
    last = write(street)
    came(street, street.secondary)
    street.run("-i", third, "rebuild", "--from-file", base, "--journal", street.secondary, "--to", str(last))
    street.on(street.secondary, "compare", "--with", third)
    assert Chain(third / "journal").is_partial()
    known = read_content(third / "run")
    assert known is not None
    assert known.filter.startswith("tests.harness.filters:loud_and_without_entries")


@pytest.mark.slow
def test_its_journal_goes_on_nothing_but_its_own_copy(street: Street) -> None:
    came(street, street.secondary)
    third = street.directory / "third"
    network = street.status(street.secondary)["network"]
    street.run("instance", "create", third, "--role", "secondary", "--network", network)
    base = street.directory / "base.seed"
    (street.primary / "replicate.toml").write_text(QUICK)
    street.on(street.primary, "seed", "--to-file", base, "--for", "secondary")
    told = "the journal is that of a secondary that gets some partitions, rows or columns only, or what a filter tells"
    for words in (
        ("-i", third, "rebuild", "--from-file", base, "--journal", street.secondary),
        ("-i", third, "rebuild", "--from-file", base, "--journal", street.secondary / "journal"),
        ("archive", "--journal", street.secondary / "journal", street.directory / "archive"),
        ("audit", "show", "--journal", street.secondary / "journal", "--journal", street.primary),
    ):
        refused = street.run(*words, check=False)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert told in refused.stderr


@pytest.mark.slow
def test_a_backlog_of_the_primary_is_not_replayed_past_the_filter(street: Street) -> None:
    came(street, street.secondary)
    listen = f"127.0.0.1:{street.port()}"
    street.kill(street.primary, "source-secondary")
    write(street)
    street.on(street.secondary, "receiver", "stop")
    refused = street.run("-i", street.secondary, "replay", "--journal", street.primary, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "through the filter tests.harness.filters:loud_and_without_entries" in refused.stderr
    street.start_receiver(listen)
    street.start_source()
    street.start_update()
    came(street, street.secondary)


@pytest.mark.slow
def test_it_goes_back_by_what_stands_in_its_own_journal(street: Street) -> None:
    """A rollback takes back what the filter made, and the stream brings it again."""
    came(street, street.secondary)
    before = rows(street.secondary / "regions" / "main.db")
    at = street.last_seqno(street.secondary)
    write(street)
    came(street, street.secondary)
    street.kill(street.primary, "source-secondary")
    told_of_a_takeover(Instance.open(street.secondary), at)
    street.on(street.secondary, "rollback", "--to", str(at))
    assert rows(street.secondary / "regions" / "main.db") == before
    street.start_source()
    wait_until(lambda: street.last_seqno(street.secondary) > at, what="the stream goes on")
    came(street, street.secondary)
    street.on(street.secondary, "journal", "verify")


@pytest.mark.slow
def test_it_is_switched_off_and_on_under_load(tmp_path: Path) -> None:
    """At the border of a transaction, on both sides: one that changes nothing leaves nothing out, and nothing twice."""
    same = 'filter = "tests.harness.filters:same"'
    settings = QUICK.replace("[source]", f"[source]\n{same}").replace("[receiver]", f"[receiver]\n{same}")
    street = Street(tmp_path, settings=QUICK)
    try:
        street.build().start()  # a copy with rows is taken without a filter only
        listen = f"127.0.0.1:{street.port()}"
        for instance, daemon in ((street.primary, "source"), (street.secondary, "receiver")):
            street.on(instance, daemon, "stop")
            (instance / "replicate.toml").write_text(settings)
        street.start_receiver(listen)
        street.start_update()
        street.start_source()
        writer = street.writer(1, pause_s=0.002)
        seen = 0
        for turn in range(6):
            site, noun, *peer = (
                (street.primary, "source", "--peer", "secondary") if turn % 2 else (street.secondary, "receiver")
            )
            for word in ("off", "on"):
                street.on(site, noun, "filter", word, *peer)
                wait_until(lambda seen=seen: street.last_seqno(street.secondary) > seen + 10, what="it streams")  # type: ignore[misc]
                seen = street.last_seqno(street.secondary)
        assert writer.poll() is None
        writer.kill()
        writer.wait()
        street.prove_equal()
    finally:
        street.close()
