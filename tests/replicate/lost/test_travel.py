"""A lost file on its way: by pieces, killed anywhere, damaged, on a full disk; whole there, once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from replicate.errors import DamagedError, DiskFullError
from replicate.instance.instance import Instance
from replicate.lost.apply import apply_lost
from replicate.lost.files import look_at_lost
from replicate.lost.sent_mark import forget_sent, note_sent, sent_to
from replicate.lost.settled import Settled
from replicate.lost.travel import IncomingLost, Traveller, check_of, to_send
from replicate.lost.unsettled import look_at_unsettled
from replicate.roles.rollback import rollback
from tests.harness.sites import Sites
from tests.replicate.roles.test_source_refusal import part


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    """The old primary has gone back, and has one lost file of four transactions."""
    sites = Sites.level(tmp_path)
    common = part(sites)
    rollback(sites.secondary, common)
    sites.secondary = Instance.open(sites.secondary.path)
    return sites


def only(sites: Sites) -> Traveller:
    (file,) = to_send(sites.secondary)
    return file


def incoming(sites: Sites, file: Traveller) -> IncomingLost:
    return IncomingLost(sites.primary, "east", file.check, file.file_bytes, file.first_seqno, file.last_seqno)


def deliver(sites: Sites, file: Traveller, size: int = 100, upto: int | None = None) -> IncomingLost:
    """In pieces of `size` bytes, from where the other side has it."""
    coming, data = incoming(sites, file), file.path.read_bytes()
    while coming.offset < (len(data) if upto is None else upto):
        coming.write(data[coming.offset : coming.offset + size])
    return coming


def there(sites: Sites) -> list[Path]:
    return sorted(sites.directory.glob("west-lost-*.jsonl"))


def leavings(sites: Sites) -> list[Path]:
    return sorted(sites.directory.glob(".west-*"))


def test_it_waits_on_the_primary_and_is_applied_there(sites: Sites) -> None:
    file = only(sites)
    deliver(sites, file)
    (came,) = there(sites)
    assert came.read_bytes() == file.path.read_bytes()
    assert came.name == f"west-lost-east-{file.first_seqno}-{file.last_seqno}.jsonl"
    assert leavings(sites) == []
    assert [one.waiting for one in look_at_unsettled(sites.primary.path)] == [4]
    note_sent(file.path, "west")
    assert list(to_send(sites.secondary)) == []
    assert look_at_unsettled(sites.secondary.path) == []
    (seen,) = look_at_lost(sites.secondary)
    assert (seen.sent_to, seen.waiting, seen.transactions) == ("west", 0, 4)
    done = apply_lost(sites.primary, came, on_conflict="overwrite", timeout_s=30)
    assert len(done.applied) + len(done.overwritten) == 4
    assert look_at_unsettled(sites.primary.path) == []


@pytest.mark.parametrize("size", [1, 77, 10**6])
def test_what_has_come_stays_and_the_rest_follows(sites: Sites, size: int) -> None:
    file = only(sites)
    half = file.file_bytes // 2
    assert deliver(sites, file, size=min(size, half), upto=half).offset >= half
    assert there(sites) == []
    again = incoming(sites, file)
    assert again.offset >= half
    assert deliver(sites, file, size).is_whole
    assert len(there(sites)) == 1
    assert leavings(sites) == []


def test_offered_again_it_is_there_once(sites: Sites) -> None:
    file = only(sites)
    deliver(sites, file)
    for _ in range(2):
        assert incoming(sites, file).is_whole
    assert len(there(sites)) == 1


def test_killed_before_its_name_or_after_it_ends_the_same(sites: Sites) -> None:
    file = only(sites)
    aside = sites.directory / f".west-lost-{file.check:016x}.incoming"
    shutil.copy(file.path, aside)  # all of it has come, and it has no name yet
    assert incoming(sites, file).offset == 0
    assert deliver(sites, file).is_whole
    (came,) = there(sites)
    shutil.copy(came, aside)  # it has its name, and the other one, too
    assert incoming(sites, file).is_whole
    assert there(sites) == [came]
    assert leavings(sites) == []


def test_another_file_of_the_name_stays(sites: Sites) -> None:
    file = only(sites)
    other = sites.directory / f"west-lost-east-{file.first_seqno}-{file.last_seqno}.jsonl"
    other.write_text("mine\n")
    deliver(sites, file)
    assert other.read_text() == "mine\n"
    assert [path.name for path in there(sites)] == [f"{other.name[:-6]}-2.jsonl", other.name]


@pytest.mark.parametrize("changed", ["a byte", "no lost file"])
def test_what_is_not_what_was_offered_is_refused_and_nothing_is_left(sites: Sites, changed: str) -> None:
    file = only(sites)
    if changed == "no lost file":
        file.path.write_bytes(b"x" * file.file_bytes)
        file = Traveller(file.path, check_of(file.path), file.file_bytes, file.first_seqno, file.last_seqno)
    data = bytearray(file.path.read_bytes())
    if changed == "a byte":
        data[len(data) // 2] ^= 1
    coming = incoming(sites, file)
    with pytest.raises(DamagedError):
        coming.write(bytes(data))
    assert there(sites) == leavings(sites) == []
    assert not coming.is_whole


def test_a_disk_without_room_takes_none(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    file = only(sites)
    usage = shutil.disk_usage(sites.directory)._replace(free=file.file_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(DiskFullError, match="is offered"):
            incoming(sites, file)
    coming = incoming(sites, file)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr("replicate.lost.travel.write_all", full)
        with pytest.raises(DiskFullError):
            coming.write(file.path.read_bytes())
    assert deliver(sites, file).is_whole


def test_what_is_settled_or_unreadable_or_of_others_is_not_sent(sites: Sites) -> None:
    file = only(sites)
    path = file.path
    foreign = sites.directory / "east-lost-elsewhere.jsonl"
    lines = path.read_text().splitlines()
    head = json.loads(lines[0])
    foreign.write_text(json.dumps({**head, "uuid": "another"}) + "\n" + "\n".join(lines[1:]) + "\n")
    (sites.directory / "east-lost-half.jsonl").write_text(lines[0] + "\n")
    assert [one.path for one in to_send(sites.secondary)] == [path]
    settled = Settled.of(path, head["uuid"])
    settled.note_all()
    assert list(to_send(sites.secondary)) == []


def test_it_comes_back_to_where_it_came_from(sites: Sites) -> None:
    """Sent there and sent back: then it waits here again, and stays in view."""
    file = only(sites)
    note_sent(file.path, "west")
    sites.exchange()
    back = IncomingLost(sites.primary, "west", file.check, file.file_bytes, 1, 2)
    assert back.is_whole
    assert back.path == file.path
    assert sent_to(file.path) == ""
    forget_sent(file.path)  # there is nothing to forget
    assert [one.path for one in to_send(sites.primary)] == [file.path]
