"""Becoming a supplier, and giving partitions away: what fits, what does not, and who is killed in between."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from receiver_server.position import find_applied
from replicate.admin.regions import add_region
from replicate.cli.common import plain
from replicate.compare.compare import compare, digest
from replicate.compare.digest import compare_digests, parse_digest
from replicate.compare.ruv import ruv_of
from replicate.dbapi import OperationalError, connect
from replicate.errors import (
    ConfigurationError,
    DamagedError,
    FormatUnknownError,
    NotFoundError,
    NotPrimaryError,
    NotWriterError,
    ReplicateError,
    SchemaChangedError,
    TryAgainError,
    UndeliveredError,
    UsageError,
)
from replicate.instance.consumers import Consumer, read_consumer, write_consumer
from replicate.instance.file import WITH_SUPPLIER, decode, encode
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.lost.keep import lost_files
from replicate.pool.shared_memory import PoolKind, retire
from replicate.roles import supplier
from replicate.roles.change_of_role import become_primary
from replicate.roles.partition_writers import give, share, written
from replicate.roles.supplier import convert
from replicate.status.collect import collect
from replicate.transfer.packet.epochs_file import read_epochs
from replicate.transfer.seed.direct import seed
from tests.harness.packets import bring, get_packets, take
from tests.harness.packets import said as said_by
from tests.harness.pair import Pair, assert_equal
from tests.harness.sites import kill_at
from tests.harness.suppliers import Suppliers
from tests.replicate.cli.test_partition import said


@pytest.fixture
def level(pair: Pair) -> Pair:
    pair.write(3)
    pair.catch_up()
    return pair


def test_a_primary_becomes_one_and_its_secondaries_go_on(level: Pair) -> None:
    """They are in step with its journal, as before."""
    made = convert(level.primary, "supplier", timeout_s=30)
    assert (made.role, made.writes_all) == ("supplier", True)
    assert (level.primary.role, level.primary.told_role, level.primary.receives) == ("primary", "supplier", True)
    level.write(2)
    level.catch_up()
    assert_equal(level)
    assert [(one.name, one.by, one.is_own) for one in written(level.primary)] == [("all others", "east", True)]
    assert [(one.by, one.is_own) for one in written(level.secondary)] == [("east", False)]


def test_its_secondary_becomes_one_that_writes_nothing_yet(level: Pair) -> None:
    convert(level.primary, "supplier", timeout_s=30)
    level.catch_up()
    made = convert(level.secondary, "supplier", timeout_s=30)
    assert (made.seqno, made.writes_all) == (level.last_seqno() + 1, False)
    assert convert(level.secondary, "supplier", timeout_s=30).seqno == made.seqno, "it is one already"


def test_not_before_its_source_is_one(level: Pair) -> None:
    with pytest.raises(ConfigurationError, match="the source of west is no supplier"):
        convert(level.secondary, "supplier", timeout_s=30, dry_run=True)
    convert(level.primary, "supplier", timeout_s=30)
    with pytest.raises(ConfigurationError, match="no supplier"):
        convert(level.secondary, "supplier", timeout_s=30)


def test_a_dry_run_changes_nothing(level: Pair) -> None:
    before = encode(level.primary.content)
    assert convert(level.primary, "supplier", timeout_s=30, dry_run=True).writes_all
    level.primary.reload()
    assert encode(level.primary.content) == before


def test_what_cannot_be_one_is_refused_by_name(tmp_path: Path, pair: Pair) -> None:
    unseeded = Instance.create(tmp_path / "new", role="secondary", name="new", network=pair.primary.content.network)
    with pytest.raises(ConfigurationError, match="new has no region"):
        convert(unseeded, "supplier", timeout_s=30)
    empty = Instance.create(tmp_path / "empty", role="primary", name="empty")
    with pytest.raises(ConfigurationError, match="empty has no region"):
        convert(empty, "supplier", timeout_s=30)
    apsw.Connection(str(tmp_path / "more.db")).execute("CREATE TABLE x (i)")
    add_region(pair.primary, tmp_path / "more.db", name="more")
    pair.secondary.note_waiting("more")
    with pytest.raises(ConfigurationError, match="every supplier has all regions, and more waits here for its seed"):
        convert(pair.secondary, "supplier", timeout_s=30)
    with pytest.raises(ConfigurationError, match="east is primary"):
        convert(pair.primary, "secondary", timeout_s=30)
    pair.primary.change_partitions(lambda known: known.with_element("STORAGE", "DEFAULT"))
    with pytest.raises(ConfigurationError, match="STORAGE is in a partition of its own"):
        convert(pair.primary, "supplier", timeout_s=30)
    with pytest.raises(NotPrimaryError, match="east is primary: partitions are given from supplier"):
        give(pair.primary, "DEFAULT", "west", timeout_s=30)


def make_past_us(instance: Instance) -> None:
    other = apsw.Connection(str(instance.regions[0].path))
    other.execute("CREATE TABLE sneaky (id INTEGER PRIMARY KEY)")
    other.close()


def test_one_whose_schema_another_client_has_changed_is_none(level: Pair) -> None:
    """Its table would count as what all have, and nobody else would ever hear of it."""
    convert(level.primary, "supplier", timeout_s=30)
    level.catch_up()
    make_past_us(level.secondary)
    for dry_run in (True, False):
        with pytest.raises(SchemaChangedError, match="another client changed the schema") as caught:
            convert(level.secondary, "supplier", timeout_s=30, dry_run=dry_run)
        assert caught.value.do.startswith("Seed it again: replicate -i ")
    level.secondary.reload()
    assert level.secondary.role == "secondary"
    make_past_us(level.primary)
    (found,) = [one for one in collect(level.primary).findings if one.code == "SCHEMA_CHANGED"]
    assert found.do.startswith("Make a new copy: replicate -i ")
    assert "instance convert --role secondary --force" in found.do


def test_a_release_before_this_one_refuses_the_file(level: Pair) -> None:
    convert(level.primary, "supplier", timeout_s=30)
    raw = encode(level.primary.content)
    assert (json.loads(raw)["format"], json.loads(raw)["role"]) == (WITH_SUPPLIER, "supplier") == (7, "supplier")
    assert decode(raw, "here").is_supplier
    with pytest.raises(FormatUnknownError):
        decode(raw.replace(b'"format": 7', b'"format": 99'), "here")


def test_a_partition_is_given_by_who_writes_it_to_who_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    with pytest.raises(NotWriterError, match="b writes that, not a"):
        give(two.by["a"], "Pb", "a", timeout_s=30)
    with pytest.raises(NotFoundError, match="no supplier zed has written here yet; there are a, b"):
        give(two.by["a"], "DEFAULT", "zed", timeout_s=30)
    with pytest.raises(NotFoundError, match="there is no partition X"):
        give(two.by["a"], "X", "b", timeout_s=30)
    with pytest.raises(NotFoundError, match="never leaves its instance"):
        give(two.by["a"], "NONE", "b", timeout_s=30)
    give(two.by["a"], "ALL", "b", timeout_s=30)
    two.level()
    two.write("b", 1, table="ta")
    two.level()
    two.assert_converged()
    assert [(one.number, one.by) for one in written(two.by["a"])] == [(0, "b"), (2, "b")]


def test_a_supplier_becomes_a_secondary_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is to be seeded again."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    two.write("b", 2)
    two.carry("a", "b")
    made = convert(two.by["b"], "secondary", timeout_s=30)
    ruv_of(two.by["b"])  # anybody who opens its region looks what lies beneath its WAL
    assert (made.role, two.by["b"].told_role) == ("secondary", "secondary")
    assert made.seqno == two.last_seqno("b")


def test_its_next_journal_counts_otherwise_so_nothing_is_known_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its old numbers it would take for known what they lack, and let the journal go."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = get_packets(Suppliers.create(tmp_path))
    two.write("b", 20)
    bring(two, "b", "a")
    take(two.by["b"], said_by(two, "a", "b"))
    b = two.by["b"]
    known = read_consumer(b.consumers_directory, "a")
    assert known is not None
    assert known.acknowledged_seqno > 20
    convert(b, "secondary", timeout_s=30)
    assert read_consumer(b.consumers_directory, "a") == Consumer("a", 0, known.uuid)
    assert not read_epochs(b.consumers_directory).replicas


def test_the_verbs_of_one_primary_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is changed by any of them."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    two = Suppliers.create(tmp_path)
    before = encode(two.by["a"].content)
    apsw.Connection(str(tmp_path / "x.db")).execute("CREATE TABLE x (i)")
    for words in (
        "promote", "demote", "switchover", "rollback --to 1", f"region add {tmp_path}/x.db", "conflict skip 9 --yes",
    ):  # fmt: skip
        with pytest.raises(ReplicateError, match="a is a supplier: ") as caught:
            said("-i", "a", *words.split())
        assert caught.value.exit_code == 78
    with pytest.raises(ReplicateError, match="a is supplier: only a secondary is seeded"):
        said("-i", "a", "seed", "--from", str(two.by["b"].path), "--restart")
    two.by["a"].reload()
    assert encode(two.by["a"].content) == before


def test_two_suppliers_are_compared_where_their_vectors_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    a, b = two.by["a"], two.by["b"]
    two.write("a", 3)
    with pytest.raises(TryAgainError, match="did not have the same transactions at any moment"):
        compare(a, b, timeout_s=0.2)
    ahead = digest(a, timeout_s=5)
    with pytest.raises(UsageError, match="did not have the same transactions"):
        compare_digests(ahead, digest(b, timeout_s=5))
    two.level()
    two.write("b")
    two.level()
    assert two.last_seqno("a") == two.last_seqno("b")
    assert compare(a, b, timeout_s=5).equal
    told = parse_digest(json.dumps(plain(digest(a, timeout_s=5))), where="x")
    assert compare_digests(told, digest(b, timeout_s=5)).equal
    region = apsw.Connection(str(b.regions[0].path))
    region.create_scalar_function("replicate_guard", lambda *_: 1)
    for trigger in [name for (name,) in region.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]:
        region.execute(f'DROP TRIGGER "{trigger}"')
    region.execute("UPDATE ta SET v = 'other' WHERE id = 2")
    region.close()
    assert compare(a, b, timeout_s=5).differs


def spoil_region(instance: Instance) -> None:
    path = instance.regions[0].path
    Path(f"{path}-wal").unlink(missing_ok=True)
    path.write_bytes(path.read_bytes()[:4096] + b"\x5a" * 4096 * 20)


def lose_region(instance: Instance) -> None:
    for path in instance.regions[0].path.parent.glob("*"):
        path.unlink()


def spoil_journal(instance: Instance) -> None:
    chain = Chain(instance.journal_directory)
    with open(chain.path_of(chain.first_seqnos()[-1]), "r+b") as file:  # the catalogue after the header
        file.seek(4200)
        file.write(b"\xff" * 64)


def lose_journal(instance: Instance) -> None:
    for path in instance.journal_directory.glob("*"):
        path.unlink()


@pytest.mark.parametrize("harm", [spoil_region, lose_region, spoil_journal, lose_journal])
def test_one_that_cannot_be_read_gets_a_new_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Instance], None]
) -> None:
    """The commands that it says itself."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    a, b = two.by["a"], two.by["b"]
    two.write("b", 3)
    two.level()
    retire(PoolKind.JOURNAL, b.content.uuid)
    harm(b)
    with pytest.raises(ReplicateError, match="only a secondary is seeded") as caught:
        seed(a, b, restart=True)
    assert "instance convert --role secondary --force, then" in caught.value.do
    with pytest.raises((DamagedError, NotFoundError)):
        convert(b, "secondary", timeout_s=30)
    b.reload()
    assert b.is_supplier
    assert convert(b, "secondary", timeout_s=30, force=True).role == "secondary"
    assert find_applied(b) is None, "its Receiver Server does not look at them either"
    seed(a, b, restart=True)
    b.reload()
    convert(b, "supplier", timeout_s=30)
    two.write("b", 3)
    two.write("a")
    two.level()
    two.assert_converged()
    assert len(two.rows("a")["tb"]) == 6


def test_what_is_committed_as_it_becomes_a_secondary_is_asked_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application writes on until the regions stand still: what it is told of then would go with the next seed."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    b, become_secondary = two.by["b"], supplier.become_secondary
    b.register_peer("a", "127.0.0.1", 7430)
    write_consumer(b.consumers_directory, Consumer("a", two.last_seqno("b")))

    def late(*arguments: Any, **named: Any) -> int:
        two.write("b", size=40)
        return become_secondary(*arguments, **named)

    monkeypatch.setattr(supplier, "become_secondary", late)
    with pytest.raises(UndeliveredError, match=r"1 transaction .* is on no peer"):
        convert(b, "secondary", timeout_s=30)
    b.reload()
    assert b.is_supplier
    kept = convert(b, "secondary", timeout_s=30, force=True).kept
    assert kept is not None
    assert (kept.from_seqno, kept.to_seqno) == (two.last_seqno("b") - 1, two.last_seqno("b"))


def test_what_only_it_has_is_asked_for_before_a_new_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by the seed no more: what its peers had of its old journal is forgotten then."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    two = Suppliers.create(tmp_path)
    b = two.by["b"]
    b.register_peer("a", "127.0.0.1", 7430)
    two.write("b", 3)
    again = ("-i", "b", "instance", "convert", "--role", "secondary")
    with pytest.raises(UndeliveredError, match="a has none yet") as caught:
        said(*again)
    assert "instance convert --role secondary --force, which writes what no peer has to a file first" in caught.value.do
    b.reload()
    assert b.is_supplier
    kept, told = said(*again, "--force").splitlines()
    assert ("transactions that would be lost" in kept, told.split(" (")[0]) == (True, "b is secondary")
    (file,) = lost_files(b.path)
    assert "tb" in said("lost", "show", str(file))
    said("-i", "b", "seed", "--from", str(two.by["a"].path), "--restart")
    assert "it writes as before: " in said("-i", "b", "instance", "convert", "--role", "supplier")
    two.write("b")
    two.level()
    two.assert_converged()
    write_consumer(b.consumers_directory, Consumer("a", two.last_seqno("b")))
    spoil_region(b)
    with pytest.raises(DamagedError):
        said(*again)
    assert json.loads(said("--json", *again, "--force"))["kept"] is None, "what peers have is known still"
    assert read_consumer(b.consumers_directory, "a") == Consumer("a")
    said("-i", "b", "seed", "--from", str(two.by["a"].path), "--restart")


def test_one_that_was_restored_begins_above_all_its_incarnations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that its copy brings back: one of them would give its numbers twice."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    a, b = two.by["a"], two.by["b"]
    backup = (b.path / "instance.json").read_bytes()
    for _ in range(3):
        convert(b, "secondary", timeout_s=30)
        seed(a, b, restart=True)
        b.reload()
        convert(b, "supplier", timeout_s=30)
        two.write("b")
        two.level()
    last = b.content.incarnation
    (b.path / "instance.json").write_bytes(backup)
    convert(b, "secondary", timeout_s=30, force=True)
    seed(a, b, restart=True)
    b.reload()
    convert(b, "supplier", timeout_s=30)
    assert b.content.incarnation == last + 1
    two.write("b")
    two.level()
    two.assert_converged()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["role.region_turned", "role.pool_retired", "role.changed", "append.after_write"])
def test_a_conversion_that_was_killed_is_finished_by_the_same_call(level: Pair, place: str) -> None:
    call = "tests.harness.suppliers:convert_to_supplier"
    assert kill_at(f"{place}:1", call, level.primary.path) == -signal.SIGKILL
    assert kill_at("", call, level.primary.path) == 0
    level.primary.reload()
    assert [(one.by, one.is_own) for one in written(level.primary)] == [("east", True)]
    level.write(1)
    level.catch_up()
    assert kill_at(f"{place}:1", call, level.secondary.path) in (-signal.SIGKILL, 0)
    assert kill_at("", call, level.secondary.path) == 0
    level.secondary.reload()
    assert level.secondary.is_supplier


def add_stock(two: Suppliers) -> Instance:
    """Both give their role up, a becomes primary, and a region is added there."""
    first = two.by["a"]
    for name in ("b", "a"):
        convert(two.by[name], "secondary", timeout_s=30, force=True)
    become_primary(first)
    connection = apsw.Connection(str(two.directory / "stock.db"))
    connection.execute("CREATE TABLE bin (id INTEGER PRIMARY KEY, v)")
    connection.close()
    add_region(first, two.directory / "stock.db", name="stock")
    first.reload()
    return first


def put(instance: Instance) -> None:
    connection = connect(instance.path, "stock", timeout=60)
    connection.execute("INSERT INTO bin (v) VALUES (1)")
    connection.commit()
    connection.close()


def test_a_region_that_was_added_while_nobody_was_a_supplier_knows_who_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could write there: it was written by \"\", who could not give it."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    first = add_stock(two)
    convert(first, "supplier", timeout_s=30)
    before = two.last_seqno("a")
    convert(first, "supplier", timeout_s=30)
    assert two.last_seqno("a") == before, "once"
    put(first)
    seed(first, two.by["b"], restart=True)
    two.by["b"].reload()
    convert(two.by["b"], "supplier", timeout_s=30)
    with pytest.raises(OperationalError, match="DEFAULT is written by a, not by b"):
        put(two.by["b"])
    two.write("b")
    put(first)
    two.level()
    two.assert_converged()


def test_a_region_that_was_added_to_what_several_write_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    two = Suppliers.create(tmp_path)
    share(two.by["b"], "2", "a", keys_chosen=True, timeout_s=30)
    two.level()
    with pytest.raises(ConfigurationError, match="region stock was added since several suppliers wrote here"):
        convert(add_stock(two), "supplier", timeout_s=30)
