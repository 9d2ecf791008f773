"""A supplier that is gone for good, by what a peer says, and is not: it takes no writes, until that was an error."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicate.cli.root import root
from replicate.dbapi import Connection, OperationalError
from replicate.door.snapshot import door_of
from replicate.errors import ConfigurationError
from replicate.instance.instance import Instance
from replicate.lost.file import SUFFIX
from replicate.lost.read import LostReader
from replicate.pool.shared_memory import PoolKind
from replicate.pool.shared_memory import retire as retire_pool
from replicate.roles.restored_supplier import settle, turn_back
from replicate.roles.retired_supplier import not_retired, note_retired
from replicate.roles.retiring import finish, part, retire
from replicate.roles.supplier import convert, replicas
from replicate.status.collect import collect
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers, run

GONE = "b was said to be gone for good, by a"


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path)
    made.by["b"].register_peer("a", "127.0.0.1", 7430)
    return made


def command(site: Instance, *words: str) -> Result:
    return CliRunner().invoke(root, ["-i", str(site.path), *words], standalone_mode=False)


def insert(connection: Connection) -> None:
    connection.execute("INSERT INTO tb (v) VALUES ('nobody takes it')")
    connection.commit()


def is_refused(two: Suppliers) -> bool:
    before = two.last_seqno("b")
    with pytest.raises(OperationalError, match=GONE):
        run(two, "b", "INSERT INTO tb (v) VALUES ('nobody takes it')")
    return two.last_seqno("b") == before


@pytest.mark.parametrize("is_pool_new", [False, True])
def test_no_commit_gets_a_number_once_it_is_told(two: Suppliers, is_pool_new: bool) -> None:
    """On a connection that was open before, in a transaction that was; and after its pool was made again."""
    site = two.by["b"]
    connection = two.connect("b")
    connection.execute("INSERT INTO tb (v) VALUES ('begun before')")
    assert note_retired(site, "a")
    assert not note_retired(site, "a"), "once"
    before = two.last_seqno("b")
    with pytest.raises(OperationalError, match=GONE):
        connection.commit()
    connection.rollback()
    assert connection.execute("SELECT * FROM tb").fetchall() == []
    if is_pool_new:
        retire_pool(PoolKind.JOURNAL, site.content.uuid)
    with pytest.raises(OperationalError, match=GONE):
        insert(connection)
    connection.close()
    assert is_refused(two)
    assert two.last_seqno("b") == before
    (told,) = [one.told for one in replicas(site) if one.name == "b"]
    assert told == "this one; gone for good, by what a says"
    assert [one.subject for one in collect(site).findings if one.code == "SUPPLIER_RETIRED"] == ["a"]


def test_what_it_gets_it_applies(two: Suppliers) -> None:
    note_retired(two.by["b"], "a")
    two.write("a", 3)
    two.carry("a", "b")
    assert len(two.rows("b")["ta"]) == 3


def test_where_one_is_killed_after_it_is_noted_the_next_word_of_a_peer_ends_it(two: Suppliers) -> None:
    connection = two.connect("b")
    assert kill_at("retired.noted:1", "tests.harness.suppliers:hear_of_retirement", two.by["b"].path) == -signal.SIGKILL
    assert not note_retired(two.by["b"], "a")
    connection.execute("INSERT INTO tb (v) VALUES ('as before')")
    with pytest.raises(OperationalError, match=GONE):
        connection.commit()
    connection.close()


def test_an_error_is_undone_once_nobody_says_it_who_is_a_peer(two: Suppliers) -> None:
    site = two.by["b"]
    note_retired(site, "a")
    assert command(site, "replica", "restore").return_value == 1
    with pytest.raises(ConfigurationError, match="a says that b is gone for good, and is a peer of it"):
        not_retired(site)
    assert is_refused(two)
    site.unregister_peer("a")
    assert command(site, "replica", "restore", "--force").output == "b takes writes\n"
    assert command(site, "replica", "restore").output == "b takes writes\n"
    two.write("b", 2)
    two.carry("b", "a")
    assert len(two.rows("a")["tb"]) == 2, "a never said so"
    assert not not_retired(site), "nothing is to be undone"


def test_where_its_own_journal_says_so_that_is_no_error(two: Suppliers) -> None:
    site = two.by["b"]
    retire(two.by["a"], "b", timeout_s=0)
    two.carry("a", "b")
    note_retired(site, "a")
    site.unregister_peer("a")
    with pytest.raises(ConfigurationError, match="its own journal says so"):
        not_retired(site)


def test_one_that_waits_for_what_it_had_takes_no_writes_when_that_is_back(two: Suppliers) -> None:
    site = two.by["b"]
    assert turn_back(site)
    note_retired(site, "a")
    assert not settle(site)
    assert is_refused(two)
    site.unregister_peer("a")
    assert not_retired(site)
    two.write("b")


def test_what_it_alone_has_goes_to_a_file_with_its_role(two: Suppliers, tmp_path: Path) -> None:
    """And is applied on who is to have it, under another name."""
    site = two.by["b"]
    run(two, "b", "INSERT INTO tb (v) VALUES ('cut off')")
    retire(two.by["a"], "b", timeout_s=0)
    note_retired(site, "a")
    found = command(site, "instance", "convert", "--role", "secondary", "--force")
    assert "transactions that would be lost" in found.output
    site.reload()
    assert (site.role, site.content.retired_by) == ("secondary", None)
    (path,) = tmp_path.glob(f"b-lost-*{SUFFIX}")
    with LostReader(path) as reader:
        assert sum(one.is_data for one in reader.transactions()) >= 1
    with door_of(two.by["a"]) as door:
        for step in (part, finish):
            step(door, site.content.uuid, timeout_s=5)
    assert command(two.by["a"], "lost", "apply", str(path)).return_value == 0
    assert [row[1] for row in two.rows("a")["tb"]] == ["cut off"]


def test_a_copy_of_others_that_say_so_is_no_supplier_again(two: Suppliers) -> None:
    site = two.by["b"]
    retire(two.by["a"], "b", timeout_s=0)
    two.carry("a", "b")
    convert(site, "secondary", timeout_s=30, force=True)
    with pytest.raises(ConfigurationError, match="b is gone for good, as a supplier"):
        convert(site, "supplier", timeout_s=30)


def test_one_that_is_told_so_by_its_own_stream_drops_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    retire(two.by["b"], "a", timeout_s=0)
    two.carry("b", "a")
    with pytest.raises(OperationalError, match="a was said to be gone for good, by b"):
        run(two, "a", "DROP TABLE ta")
