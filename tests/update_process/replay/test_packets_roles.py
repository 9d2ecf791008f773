"""Packets where roles have changed: what a site lacks is told by who wrote it, whatever the numbers of journals say,
and what may be the only place of a transaction is neither passed by nor removed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import replicate
from replicate.errors import DivergedError, PermissionRefusedError, RollbackNeededError
from replicate.instance.instance import Instance
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.rollback import rollback
from tests.harness.packets import export, take
from tests.harness.pair import Pair
from tests.harness.replaying import assert_equal
from tests.replicate.cli.test_partition import said
from update_process.replay.packets import import_packets

PATIENCE_S = 20.0


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, "CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, owner, note)")
    made.seed()
    write(made, made.primary, 2)
    take(made.secondary, *carried(made, made.primary, "west"))
    return made


def write(pair: Pair, instance: Instance, count: int) -> int:
    connection = replicate.connect(instance.path)
    for _ in range(count):
        connection.execute("INSERT INTO account (owner, note) VALUES (?, ?)", (instance.name, "x"))
        connection.commit()
    connection.close()
    return pair.last_seqno(instance)


def carried(pair: Pair, sender: Instance, *targets: str, receipt: bool = False) -> list[Path]:
    return [one.path for one in export(sender, pair.directory / "out", *targets, receipt=receipt)]


def takes_over(pair: Pair, *, lost: int, wrote: int) -> tuple[list[Path], int]:
    """West takes over from east, which had `lost` transactions in a packet that had not come, and has written `wrote`
    since; that packet, and the last common transaction."""
    common = pair.last_seqno(pair.secondary)
    write(pair, pair.primary, lost)
    late = carried(pair, pair.primary, "west")
    become_primary(pair.secondary, timeout_s=PATIENCE_S)
    pair.secondary.reload()
    write(pair, pair.secondary, wrote)
    return late, common


@pytest.mark.parametrize("wrote", [0, 3, 9])
@pytest.mark.parametrize("is_peer", [False, True])
def test_what_a_lost_primary_had_more_is_never_removed(pair: Pair, wrote: int, is_peer: bool) -> None:
    """Nothing else has it, where that site does not come back."""
    (late,), common = takes_over(pair, lost=4, wrote=wrote)
    if is_peer:
        pair.secondary.register_peer("east", "", 0)
        pair.secondary.reload()
    before = pair.last_seqno(pair.secondary)
    done = import_packets(pair.secondary, [late.parent], now_s=time.time(), remove=True)
    (error,) = [one for one in done.errors if isinstance(one, DivergedError)]
    assert error.what.startswith(f"packet 2 of east has transactions of east up to its number {common + 3}, and here")
    assert "it is the place where they are" in error.do
    assert error.do.endswith(f"packet show {late} --transactions")
    shown = said("-i", str(pair.secondary.path), "packet", "show", str(late), "--transactions").splitlines()
    assert shown[-1] == "4 of 4 are not on west"
    assert len([line for line in shown if line.endswith("  NOT HERE")]) == 4
    assert len([line for line in shown if line.strip().startswith("INSERT")]) == 4
    assert late.exists()
    assert (done.known, done.applied, done.waiting) == (1, (), ())  # the first packet
    assert pair.last_seqno(pair.secondary) == before


def test_a_third_site_passes_it_by_and_goes_on(pair: Pair) -> None:
    off = Instance.create(pair.directory / "off", role="secondary", name="off", network=pair.primary.content.network)
    pair.primary.register_peer("off", "", 0)
    pair.primary.reload()
    Pair(pair.directory, pair.primary, off).seed()
    off = Instance.open(off.path)
    common = pair.last_seqno(pair.secondary)
    write(pair, pair.primary, 4)
    (late,) = carried(pair, pair.primary, "west", "off")
    become_primary(pair.secondary, timeout_s=PATIENCE_S)
    pair.secondary.reload()
    pair.secondary.register_peer("off", "", 0)
    pair.secondary.reload()
    take(pair.secondary, *carried(pair, off, "west", receipt=True))
    for _ in range(2):
        last = write(pair, pair.secondary, 2)
        take(off, *carried(pair, pair.secondary, "off"))
    assert last == common + 5
    write(pair, pair.secondary, 2)
    done = import_packets(off, [late, *carried(pair, pair.secondary, "off")], now_s=time.time(), remove=True)
    assert [type(one) for one in done.errors] == [DivergedError]
    assert len(done.applied) == 1
    assert late.exists()
    assert_equal(Pair(pair.directory, pair.secondary, off))


@pytest.mark.parametrize("wrote", [1, 3, 9])
def test_the_old_primary_is_told_how_far_to_go_back_whatever_the_numbers(pair: Pair, wrote: int) -> None:
    _, common = takes_over(pair, lost=4, wrote=wrote)
    pair.secondary.register_peer("east", "", 0)
    pair.secondary.reload()
    (path,) = carried(pair, pair.secondary, "east")
    with pytest.raises(PermissionRefusedError) as caught:
        take(pair.primary, path, remove=True)
    assert "replicate -i" in caught.value.do
    assert caught.value.do.endswith(" demote, then import it again")
    become_secondary(pair.primary, timeout_s=PATIENCE_S)
    pair.primary.reload()
    shown = said("-i", str(pair.primary.path), "packet", "show", str(path), "--transactions").splitlines()
    assert shown[-1] == f"{wrote} of {wrote} are not on east", "a record is no transaction"
    with pytest.raises(RollbackNeededError) as needed:
        take(pair.primary, path, remove=True)
    assert f"rollback --to {common}; then import again" in needed.value.do
    assert rollback(pair.primary, None).to == common, "what the packet said is kept"
    assert take(pair.primary, path).applied
    assert_equal(Pair(pair.directory, pair.secondary, pair.primary))


def test_a_receipt_of_the_one_that_took_over_sends_nobody_back_unseen(pair: Pair) -> None:
    """The words of one that took over, and of a copy that began a life of its own, are the same."""
    takes_over(pair, lost=1, wrote=3)
    with pytest.raises(RollbackNeededError) as caught:
        take(pair.primary, *carried(pair, pair.secondary, "east", receipt=True))
    assert caught.value.do.startswith("If west took over: ")


def follows(pair: Pair, name: str) -> Instance:
    """A third site that gets packets of the primary."""
    third = Instance.create(pair.directory / name, role="secondary", name=name, network=pair.primary.content.network)
    pair.primary.register_peer(name, "", 0)
    pair.primary.reload()
    Pair(pair.directory, pair.primary, third).seed()
    return Instance.open(third.path)


def test_a_third_site_that_is_ahead_goes_back_as_a_packet_says(pair: Pair) -> None:
    """And not before: until then it follows, and nobody has taken over for all that it knows."""
    off = follows(pair, "off")
    common = pair.last_seqno(pair.secondary)
    write(pair, pair.primary, 3)
    take(off, *carried(pair, pair.primary, "off"))
    with pytest.raises(PermissionRefusedError, match="off follows east, and nothing proves"):
        rollback(off, common)
    become_primary(pair.secondary, timeout_s=PATIENCE_S)
    pair.secondary.reload()
    pair.secondary.register_peer("off", "", 0)
    pair.secondary.reload()
    said("-i", str(pair.secondary.path), "epochs", "set", "off", str(common), "--yes")
    write(pair, pair.secondary, 5)
    (path,) = carried(pair, pair.secondary, "off")
    with pytest.raises(RollbackNeededError) as needed:
        import_packets(off, [path], now_s=time.time(), dry_run=True)
    with pytest.raises(PermissionRefusedError):  # a look leaves nothing behind
        rollback(off, common)
    with pytest.raises(RollbackNeededError) as needed:
        take(off, path)
    assert f"rollback --to {common}; then import again" in needed.value.do
    assert rollback(off, common).to == common
    assert take(off, path).applied
    assert_equal(Pair(pair.directory, pair.secondary, off))
