"""Instances on disk, their file, and what consumers have acknowledged."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
import xxhash
from msgspec.structs import replace

from replicate.errors import (
    AlreadyExistsError,
    ConfigurationError,
    DamagedError,
    DiskFullError,
    FormatUnknownError,
    JournalIOError,
    NotFoundError,
    PermissionRefusedError,
    ReplicateError,
    UsageError,
    WrongInstanceError,
)
from replicate.instance.consumers import Consumer, needed_seqno, read_consumer, remove_consumer, write_consumer
from replicate.instance.file import PeerEntry, decode, encode, read_file
from replicate.instance.instance import FILE_NAME, Instance
from replicate.limits import REGIONS_MAX
from replicate.system.files import replace_file


def test_created_then_opened(tmp_path: Path) -> None:
    made = Instance.create(tmp_path / "deep" / "alpha", role="primary")
    assert made.name == "alpha"
    assert made.path.stat().st_mode & 0o777 == 0o700
    opened = Instance.open(made.path)
    assert opened.content == made.content
    assert not opened.was_copied
    with pytest.raises(AlreadyExistsError):
        Instance.create(made.path, role="primary")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(AlreadyExistsError, match="not empty"):
        Instance.create(tmp_path / "full", role="primary")
    with pytest.raises(ReplicateError):
        Instance.create(tmp_path / "full" / "x", role="primary")
    with pytest.raises(ConfigurationError):
        Instance.create(tmp_path / "beta", role="secondary")
    joined = Instance.create(tmp_path / "beta", role="secondary", network=made.content.network)
    assert joined.content.network == made.content.network


def test_what_one_that_was_killed_has_left_is_taken(tmp_path: Path) -> None:
    directory = tmp_path / "alpha"
    made = Instance.create(directory, role="primary")
    (directory / FILE_NAME).rename(directory / f".{FILE_NAME}.7.abc")
    (directory / "log").rmdir()
    again = Instance.create(directory, role="primary")
    assert again.content.uuid != made.content.uuid
    (directory / FILE_NAME).unlink()
    (directory / "journal" / "1.segment").touch()
    with pytest.raises(AlreadyExistsError, match="not empty"):
        Instance.create(directory, role="primary")
    (directory / "journal" / "1.segment").unlink()
    (directory / "replicate.toml").write_text("# somebody's\n")
    with pytest.raises(AlreadyExistsError, match="not empty"):
        Instance.create(directory, role="primary")


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("file", ["replicate.toml", FILE_NAME])
def test_one_that_could_not_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool, file: str
) -> None:
    """Else "free space, then try again" would end in "the directory is not empty"."""
    directory = tmp_path / "alpha"
    if there:
        directory.mkdir()

    def full(path: Path, data: bytes) -> None:
        if path.name == file:
            raise DiskFullError("no space left", where=str(path), do="Free space, then try again")
        replace_file(path, data)

    with monkeypatch.context() as patched:
        patched.setattr("replicate.instance.instance.replace_file", full)
        with pytest.raises(DiskFullError):
            Instance.create(directory, role="primary")
    assert list(tmp_path.rglob("*")) == ([directory] if there else [])
    assert Instance.create(directory, role="primary").name == "alpha"
    with pytest.raises(AlreadyExistsError):
        Instance.create(directory, role="primary")
    assert Instance.open(directory).name == "alpha"


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        Instance.open(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(NotFoundError, match=r"replicate\.connect\(INSTANCE, REGION\)"):
        Instance.open(tmp_path / "file")  # what people who know sqlite3 try first: the database's path
    instance = Instance.create(tmp_path / "alpha", role="primary")
    with pytest.raises(AlreadyExistsError, match="instance remove"):
        Instance.create(tmp_path / "alpha", role="primary")
    instance.path.chmod(0o777)
    with pytest.raises(PermissionRefusedError):
        Instance.open(instance.path)
    instance.path.chmod(0o700)
    instance.log_directory.rmdir()
    with pytest.raises(NotFoundError, match="log"):
        Instance.open(instance.path)


def test_regions_and_peers(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "alpha", role="primary")
    one = instance.register_region("one", b"1" * 16, tmp_path / "1.db")
    two = instance.register_region("two", b"2" * 16, tmp_path / "2.db")
    assert (one.region_id, two.region_id) == (0, 1)
    with pytest.raises(AlreadyExistsError):
        instance.register_region("two", b"3" * 16, tmp_path / "3.db")
    instance.unregister_region("one")
    assert instance.register_region("three", b"3" * 16, tmp_path / "3.db").region_id == 2  # ids are not used again
    assert [r.name for r in Instance.open(instance.path).regions] == ["two", "three"]
    with pytest.raises(NotFoundError, match="two, three"):
        instance.region("one")
    instance.register_peer("beta", "127.0.0.1", 7430)
    instance.register_peer("beta", "127.0.0.1", 7430)
    with pytest.raises(AlreadyExistsError, match=r"already, at 127\.0\.0\.1:7430.*--replace"):
        instance.register_peer("beta", "127.0.0.1", 7431)
    assert [peer.port for peer in Instance.open(instance.path).peers] == [7430]
    instance.register_peer("beta", "127.0.0.1", 7431, replace_address=True)
    assert instance.peers == (PeerEntry("beta", "127.0.0.1", 7431),)
    with pytest.raises(ConfigurationError):
        instance.register_peer("alpha", "127.0.0.1", 7430)
    instance.unregister_peer("beta")
    with pytest.raises(NotFoundError):
        instance.unregister_peer("beta")
    instance.raise_incarnation()
    assert Instance.open(instance.path).content.incarnation == 2


def test_a_peers_directories_of_packets_stay_until_others_are_named(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "alpha", role="primary")
    instance.register_peer("beta", "", 0)
    plain = (instance.path / FILE_NAME).read_bytes()
    assert b"outbox" not in plain
    assert b"inbox" not in plain
    made = instance.register_peer("beta", "", 0, replace_address=True, boxes=("/out", "/in"))
    assert (made.outbox, made.inbox) == ("/out", "/in")
    assert Instance.open(instance.path).peers == (made,)
    assert instance.register_peer("beta", "127.0.0.1", 7431, replace_address=True).outbox == "/out"
    with pytest.raises(AlreadyExistsError, match="with other directories"):
        instance.register_peer("beta", "127.0.0.1", 7431, boxes=("/other", "/in"))
    instance.register_peer("beta", "", 0, replace_address=True, boxes=("", ""))
    assert (instance.path / FILE_NAME).read_bytes() == plain


def test_at_most_64_regions_and_many_threads(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "alpha", role="primary")

    def work(first: int) -> None:
        own = Instance.open(instance.path)
        for number in range(first, first + 16):
            own.register_region(f"r{number}", bytes([number]) * 16, tmp_path / f"{number}.db")

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 16, 32, 48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    instance.reload()
    assert sorted(r.region_id for r in instance.regions) == list(range(64))
    with pytest.raises(ConfigurationError, match="64"):
        instance.register_region("more", b"m" * 16, tmp_path / "m.db")


def test_a_damaged_or_newer_file_is_refused_by_name(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "alpha", role="primary")
    path = instance.path / FILE_NAME
    raw = path.read_bytes()
    assert decode(raw, "x") == instance.content
    for at in range(0, len(raw), 7):
        spoilt = bytearray(raw)
        spoilt[at] ^= 0x04
        try:
            assert decode(bytes(spoilt), "x") == instance.content
        except (DamagedError, FormatUnknownError):
            pass
    for bad in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000):
        with pytest.raises(DamagedError):
            decode(bad, "x")
    newer = json.loads(raw) | {"format": 99}
    with pytest.raises(FormatUnknownError, match="99"):
        decode(json.dumps(newer).encode(), "x")
    with pytest.raises(DamagedError, match="sense"):
        decode(encode(replace(instance.content, incarnation=0)), "x")
    path.unlink()
    with pytest.raises(NotFoundError):
        read_file(path)


def test_regions_that_wait_are_kept_in_a_format_of_their_own_and_only_while_there_are_some(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "a", role="primary")
    path = instance.path / FILE_NAME
    before = path.read_bytes()
    instance.note_waiting("two")
    instance.note_waiting("two")
    found = Instance.open(instance.path)
    assert (found.waiting, json.loads(path.read_bytes())["format"]) == (("two",), 2)
    with pytest.raises(UsageError):
        instance.note_waiting("../two")
    for number in range(REGIONS_MAX - 1):
        instance.note_waiting(f"r{number}")
    with pytest.raises(ConfigurationError, match="at most 64"):
        instance.note_waiting("one_more")
    instance.forget_waiting()
    assert path.read_bytes() == before
    instance.note_waiting("two")
    instance.note_waiting("three")
    instance.register_region("two", b"u" * 16, tmp_path / "two.db")
    assert Instance.open(instance.path).waiting == ("three",)


def test_rows_are_kept_in_a_format_of_their_own_and_only_while_there_are_some(tmp_path: Path) -> None:
    content = Instance.create(tmp_path / "i", role="secondary", name="i", network=b"n" * 16).content
    plain = json.loads(encode(content))
    rows = {("main", "t"): "a = 'é'", ("", "u"): "b > 3"}
    for some in (replace(content, rows=rows), replace(content, held_rows=rows), replace(content, rows=rows, held=(1,))):
        assert json.loads(encode(some))["format"] == 10
        assert decode(encode(some), "x") == some
    for some in (
        replace(content, rows={("main", "t"): "COLUMNS (a)"}),
        replace(content, held_rows={**rows, ("", "v"): "COLUMNS (a)"}),
    ):
        assert json.loads(encode(some))["format"] == 11
        assert decode(encode(some), "x") == some
    wanted = content.choosing(content.choice.filtering(("main", "t"), "a = 1"))
    assert (wanted.told_held, wanted.getting_all) == ("", [])
    some = wanted.choosing(wanted.choice.seeded())
    assert some.told_held == "has of table main.t where a = 1, no other rows"
    assert some.getting_all == ["subscription filter main.t --none"]
    assert replace(some, held=(1,)).told_held == (
        "has the rows of DEFAULT only; it has of table main.t where a = 1, no other rows"
    )
    assert (some.told_partitions(None), some.told_partitions(())) == ({}, {})
    assert replace(some, held=()).told_partitions(()) == {"partitions": []}
    assert some.told_partitions((0, 1, 7)) == {"partitions": ["DEFAULT", "7"]}
    assert json.loads(encode(some.choosing(some.choice.filtering(("main", "t"), None).seeded()))) == plain
    for nonsense in ([["main", "t"]], [["main", "t", 5]], 7, [["main", ["t"], "a = 1"]]):
        facts = {**plain, "format": 10, "rows": nonsense}
        facts.pop("check")
        facts["check"] = xxhash.xxh3_64_hexdigest(json.dumps(facts, sort_keys=True).encode())
        with pytest.raises(DamagedError, match="makes no sense"):
            decode(json.dumps(facts).encode(), "x")


def test_the_name_in_a_peers_certificate_stays_until_another_is_named(tmp_path: Path) -> None:
    """`peer add … --partitions … --replace`, which messages advise, says nothing of it."""
    instance = Instance.create(tmp_path / "alpha", role="primary")
    instance.register_peer("west", "127.0.0.1", 7001, certificate="w.example")
    again = instance.register_peer("west", "127.0.0.1", 7001, partitions=(2,), replace_address=True)
    assert (again.certificate, again.partitions) == ("w.example", (2,))
    assert instance.register_peer("west", "127.0.0.1", 7001, certificate="west", replace_address=True).certificate == ""


def test_a_mode_is_a_fact_of_a_peer_and_changes_nothing_else(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "a", role="primary")
    instance.register_peer("west", "127.0.0.1", 7001, certificate="w")
    path = instance.path / "instance.json"
    before = path.read_bytes()
    assert instance.set_mode("west", passive=False).mode == "active"
    assert path.read_bytes() == before
    assert instance.set_mode("west", passive=True, address=("127.0.0.1", 7002)).port == 7002
    assert json.loads(path.read_bytes())["format"] == 2
    found = Instance.open(instance.path)
    assert (found.peer("west").mode, found.peer("west").certificate) == ("passive", "w")
    assert found.consumers == found.peers  # a primary keeps the journal for it
    found.note_waiting("two")
    found.register_peer("west", "127.0.0.1", 7001, certificate="w", replace_address=True)
    assert Instance.open(instance.path).peer("west").mode == "passive"
    found.forget_waiting()
    found.set_mode("west", passive=False)
    assert path.read_bytes() == before
    with pytest.raises(NotFoundError, match="there are: west"):
        instance.set_mode("east", passive=True)


def test_fault_37_a_failed_replacement_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    replace_file(path, b"old")
    for name, number, error in (
        ("fsync", 5, JournalIOError),
        ("pwrite", 28, DiskFullError),
        ("rename", 13, PermissionRefusedError),
    ):
        with monkeypatch.context() as patch:

            def refuse(*_: object, number: int = number) -> None:
                raise OSError(number, os.strerror(number))

            patch.setattr(os, name, refuse)
            with pytest.raises(error):
                replace_file(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["f"]


def test_a_lock_that_a_full_disk_has_no_room_for_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a simulated world: it ended a recovery as INTERNAL."""
    instance = Instance.create(tmp_path / "alpha", role="primary", name="alpha")
    real = os.open

    def full(path: str | Path, *words: int) -> int:
        if str(path).endswith("instance.lock"):
            raise OSError(28, os.strerror(28))
        return real(path, *words)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(DiskFullError, match="the instance's lock cannot be opened"):
            instance.raise_incarnation()
    assert Instance.open(instance.path).content == instance.content


def test_consumers(tmp_path: Path) -> None:
    assert needed_seqno(tmp_path, Consumer("beta")) == 0
    write_consumer(tmp_path, Consumer("beta", 7, "ab", 12))
    assert read_consumer(tmp_path, "beta") == Consumer("beta", 7, "ab", 12)
    write_consumer(tmp_path, Consumer("gamma", 3, needs_seed=True))
    assert needed_seqno(tmp_path, Consumer("beta", 7, "ab", 12)) == 7
    assert needed_seqno(tmp_path, Consumer("gamma", 3, needs_seed=True)) is None
    (tmp_path / "beta.json").write_text("{")
    with pytest.raises(DamagedError):
        read_consumer(tmp_path, "beta")
    (tmp_path / "beta.json").write_text("[1]")
    with pytest.raises(DamagedError):
        read_consumer(tmp_path, "beta")
    remove_consumer(tmp_path, "beta")
    remove_consumer(tmp_path, "beta")
    assert read_consumer(tmp_path, "beta") is None
    with pytest.raises(UsageError):
        read_consumer(tmp_path, "../x")


def test_a_copy_beside_its_original_is_refused_and_a_moved_instance_finds_its_regions(tmp_path: Path) -> None:
    """Both would write the same regions (fault 43); a directory that was moved is no copy."""
    home = tmp_path / "home"
    made = Instance.create(home, role="primary", name="alpha")
    made.register_region("inner", b"i" * 16, home / "regions" / "inner.db")
    made.register_region("outer", b"o" * 16, tmp_path / "outer.db")
    shutil.copytree(home, tmp_path / "copy", copy_function=shutil.copy2)
    (tmp_path / "copy").chmod(0o700)
    with pytest.raises(WrongInstanceError, match="this is a copy of the instance in"):
        Instance.open(tmp_path / "copy")
    home.rename(tmp_path / "moved")
    moved = Instance.open(tmp_path / "moved")
    assert moved.region("inner").path == tmp_path / "moved" / "regions" / "inner.db"
    assert moved.region("outer").path == tmp_path / "outer.db"
    moved.register_peer("west", "127.0.0.1", 7430)
    assert Instance.open(tmp_path / "moved").region("inner").path == tmp_path / "moved" / "regions" / "inner.db"
    # What the copy was made of has left that place: nothing says any more that two would write the same regions.
    assert Instance.open(tmp_path / "copy").name == "alpha"


def test_a_lost_instance_file_names_a_way_out(tmp_path: Path) -> None:
    """No command but one does without it, so the error must say which."""
    made = Instance.create(tmp_path / "east", role="primary")
    raw = (made.path / FILE_NAME).read_bytes()
    for spoilt in (raw[:100], raw.replace(b"east", b"west")):
        (made.path / FILE_NAME).write_bytes(spoilt)
        with pytest.raises(DamagedError, match=r"or begin again: .* replicate region plain FILE"):
            Instance.open(made.path)
