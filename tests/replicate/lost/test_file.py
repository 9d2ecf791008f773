"""The file of lost transactions alone: whole and durable or not there, and never in another one's place."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from replicate.audit.show import ShownTransaction
from replicate.errors import JournalDamagedError, JournalIOError
from replicate.lost.file import LostHead, find_lost, write_lost
from tests.harness.journals import ToyJournal, show_chain

HEAD = LostHead("instance remove", "primary", "east", "u", "n", 1, 3, 7, (("west", 2),))


def transactions(directory: Path, count: int = 5, size: int = 10) -> list[ShownTransaction]:
    journal = ToyJournal(directory / "journal")
    try:
        journal.write(count, "ä" * size)
        return list(show_chain(journal.chain))
    finally:
        journal.close()
        shutil.rmtree(directory / "journal")


def write(path: Path, head: LostHead = HEAD, count: int = 5) -> Path:
    return write_lost(path, head, transactions(path.parent, count), list).path


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, done = transactions(tmp_path), list[tuple[str, str]]()
    fsync, link = os.fsync, os.link

    def synced(fd: int) -> None:
        done.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
        fsync(fd)

    def linked(source: Path, target: Path, **options: Any) -> None:
        assert len(source.read_bytes().splitlines()) == 7
        done.append(("link", target.name))
        link(source, target, **options)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    write_lost(tmp_path / "a.jsonl", HEAD, told, list)
    assert done == [("fsync", ".a.jsonl.part"), ("link", "a.jsonl"), ("fsync", tmp_path.name)]
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_one_that_is_there_stays(tmp_path: Path) -> None:
    names = [write(tmp_path / "a.jsonl", count=count).name for count in (1, 2, 3)]
    assert names == ["a.jsonl", "a-2.jsonl", "a-3.jsonl"]
    assert [len((tmp_path / name).read_text().splitlines()) for name in names] == [3, 4, 5]


def test_a_file_that_may_not_grow_is_not_there(tmp_path: Path) -> None:
    many = transactions(tmp_path, count=1000, size=1000)
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            write_lost(tmp_path / "a.jsonl", HEAD, many, list)
        except JournalIOError as error:
            os._exit(0 if "could not be written" in error.what else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.listdir(tmp_path) == []


def test_what_fails_while_it_is_read_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[ShownTransaction]:
        yield from transactions(tmp_path, 2)
        raise JournalDamagedError("bad")

    with pytest.raises(JournalDamagedError):
        write_lost(tmp_path / "a.jsonl", HEAD, failing(), list)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (HEAD, True),
        (replace(HEAD, cause="another", role="", peers=()), True),
        (replace(HEAD, from_seqno=4, known_seqno=6), True),
        (replace(HEAD, known_seqno=7, is_open=True), True),
        (replace(HEAD, from_seqno=2), False),
        (replace(HEAD, known_seqno=8), False),
        (replace(HEAD, uuid="v"), False),
        (replace(HEAD, network="m"), False),
        (replace(HEAD, incarnation=2), False),
    ],
)
def test_what_an_earlier_file_is_enough_for(tmp_path: Path, wanted: LostHead, found: bool) -> None:
    path = write(tmp_path / "a.jsonl")
    known = find_lost([path], wanted)
    assert (known is not None) is found
    if known is not None:
        assert (known.path, known.transaction_count, known.unreadable) == (path, 5, ())


def test_one_of_which_a_byte_is_not_as_it_was_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    data = path.read_bytes()
    origins = json.loads(data.splitlines()[-1])["origins"]
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        if find_lost([path], HEAD) is not None:
            last = json.loads(path.read_bytes().splitlines()[-1])  # its counts are for people, and for `status`
            assert (last["transactions"], last.get("data"), last.get("origins")) != (5, 5, origins)
    for end in range(0, len(data), 5):
        path.write_bytes(data[:end])
        assert find_lost([path], HEAD) is None
    path.unlink()
    path.symlink_to(write(tmp_path / "b.jsonl"))
    assert find_lost([path, tmp_path, tmp_path / "gone"], HEAD) is None
