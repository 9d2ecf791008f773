"""What no peer has is neither released nor removed without a word: refused with numbers, or written to a file first."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner
from xxhash import xxh3_64_hexdigest

import replicate.lost.file
from replicate import connect
from replicate.cli.root import root
from replicate.errors import AlreadyExistsError, DiskFullError, JournalDamagedError, NotFoundError, UndeliveredError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.record import read_head
from replicate.journal.spool_format import part_offset
from replicate.lost.peers_lack import Owner, look
from replicate.pool.shared_memory import PoolKind, retire
from tests.harness.journals import flip, frame_places
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return make_pair(tmp_path)


def call(*words: str | Path) -> str:
    result = CliRunner().invoke(root, [str(word) for word in words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def release(instance: Instance, *options: str) -> str:
    return call("-i", instance.path, "region", "release", "main", *options)


def remove(instance: Instance, *options: str) -> str:
    return call("instance", "remove", instance.path, *options)


def lost_files(pair: Pair) -> list[str]:
    return sorted(name for name in os.listdir(pair.directory) if "lost" in name)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a lost file, its hash verified."""
    data = path.read_bytes()
    last_at = data[:-1].rfind(b"\n") + 1
    lines = [json.loads(line) for line in data.splitlines()]
    assert lines[-1]["xxh3"] == xxh3_64_hexdigest(data[:last_at])
    assert path.stat().st_mode & 0o777 == 0o600
    return lines


def shown(instance: Instance, first: int) -> list[dict[str, Any]]:
    """What `journal show --json` prints."""
    told = call("-i", instance.path, "--json", "journal", "show", "--from", str(first))
    return [json.loads(line) for line in told.splitlines()]


def test_refused_with_how_many_which_and_the_command_that_shows_them(pair: Pair) -> None:
    last = pair.last_seqno()
    named = pair.primary.named
    for refused in (release, remove):
        with pytest.raises(AlreadyExistsError) as caught:
            refused(pair.primary)
        if refused is release:
            error = caught.value
            assert isinstance(error, UndeliveredError)
            assert (
                error.what == f"5 transactions ({last - 4} to {last}) are on no peer; west has those up to {last - 5}"
            )
            for command in (
                f"replicate -i {named} journal show --from {last - 4}",
                f"replicate -i {named} source start --peer west",
                f"replicate -i {named} peer remove west",
                f"replicate -i {named} region release main --force",
            ):
                assert command in error.do
    assert Instance.open(pair.primary.path).regions
    assert lost_files(pair) == []
    pair.write(1)  # everything is as it was


def test_force_writes_them_and_the_instance_goes_with_nothing_lost(pair: Pair) -> None:
    last = pair.last_seqno()
    expected = shown(pair.primary, last - 4)
    told = release(pair.primary, "--force")
    file = pair.directory / f"east-lost-{last - 4}-{last}.jsonl"
    assert told.startswith(f"5 transactions that would be lost (from {last - 4} to {last}): in {file}\n")
    first, *lines, end = lines_of(file)
    assert lines == expected
    assert [line["seqno"] for line in lines] == list(range(last - 4, last + 1))
    content = pair.primary.content
    assert {key: first[key] for key in ("format", "cause", "role", "instance", "from", "to", "peers")} == {
        "format": 1,
        "cause": "region release main",
        "role": "primary",
        "instance": "east",
        "from": last - 4,
        "to": last,
        "peers": [{"name": "west", "acknowledged_seqno": last - 5}],
    }
    assert (first["uuid"].replace("-", ""), first["network"].replace("-", "")) == (
        content.uuid.hex(),
        content.network.hex(),
    )
    assert (end["transactions"], end["unreadable"]) == (5, [])
    before = file.read_bytes()
    # What is written down already is not asked for again, nor written twice.
    assert str(file) in remove(pair.primary)
    assert not pair.primary.path.exists()
    assert file.read_bytes() == before
    assert lost_files(pair) == [file.name]


def test_what_a_peer_that_is_removed_lacked_is_said(pair: Pair) -> None:
    last = pair.last_seqno()
    pair.primary.register_peer("third", "127.0.0.1", 7431)
    pair.acknowledge(last)
    pair.acknowledge(last - 2, "third")
    assert call("-i", pair.primary.path, "peer", "remove", "third") == (
        f"peer third removed\nthird is not known to have 2 transactions, {last - 1} to {last}; until the journal is "
        f"pruned, this shows them: replicate -i {pair.primary.path} journal show --from {last - 1} --to {last}\n"
    )
    assert call("-i", pair.primary.path, "peer", "remove", "west") == "peer west removed\n"


def test_what_is_committed_while_it_looks_is_no_damage(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that is written goes on after the end that was found."""
    scan_last = Chain.scan_last

    def scan(chain: Chain) -> Any:
        found = scan_last(chain)
        pair.write(3)
        return found

    monkeypatch.setattr(Chain, "scan_last", scan)
    assert look(Owner.of(pair.primary)).damage == ""


def test_an_instance_without_a_peer_loses_nothing(pair: Pair) -> None:
    call("-i", pair.primary.path, "peer", "remove", "west")
    assert "plain SQLite again" in release(pair.primary)
    assert "removed" in remove(pair.primary)
    assert lost_files(pair) == []


def test_a_peer_that_has_all_but_records_of_ours_has_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)  # the history record, and the announcement of the region
    assert made.last_seqno() == 2
    release(made.primary)
    assert lost_files(made) == []


def test_of_several_peers_each_is_told_of(pair: Pair) -> None:
    last = pair.last_seqno()
    pair.primary.register_peer("third", "127.0.0.1", 7431)
    pair.acknowledge(last)
    pair.acknowledge(last - 2, "third")
    told = rf"^UNDELIVERED: third has not got {last - 1} to {last}; west has those up to {last} .*--peer third"
    with pytest.raises(UndeliveredError, match=told) as caught:
        release(pair.primary)
    assert "which writes" not in caught.value.do
    assert "--peer west" not in caught.value.do
    assert "lost" not in release(pair.primary, "--force")
    assert lost_files(pair) == []


def test_the_release_of_one_of_several_regions_ends_no_stream(pair: Pair) -> None:
    """What was committed in it and not sent stays in the journal, and is sent as before."""
    with apsw.Connection(str(pair.directory / "two.db")) as database:
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY)")
    database.close()
    call("-i", pair.primary.path, "region", "add", pair.directory / "two.db", "--name", "two")
    pair.primary.reload()
    pair.seed()
    connection = connect(pair.primary.path, "two")
    connection.execute("INSERT INTO item VALUES (7)")
    connection.commit()
    connection.close()
    assert "plain SQLite" in call("-i", pair.primary.path, "region", "release", "two")
    with pytest.raises(UndeliveredError):
        release(pair.primary)
    pair.catch_up()
    with apsw.Connection(str(pair.secondary.region("two").path)) as database:
        assert database.execute("SELECT id FROM item").fetchall() == [(7,)]
    database.close()


def test_a_large_transaction_is_in_it_whole(pair: Pair) -> None:
    with pair.connect() as connection:
        connection.executemany("INSERT INTO entry VALUES (?, 1.5, ?)", [(str(n), b"x" * 1000) for n in range(1500)])
    connection.close()
    last = pair.last_seqno()
    expected = shown(pair.primary, last - 5)
    release(pair.primary, "--force")
    lines = lines_of(pair.directory / f"east-lost-{last - 5}-{last}.jsonl")
    assert lines[1:-1] == expected
    assert lines[-1]["transactions"] == 6
    rows = [change["after"] for line in lines[1:-1] if line["kind"] == "PART" for change in line["changes"]]
    assert len(rows) == 1500
    assert rows[1499] == [1500, "1499", 1.5, {"blob": "78" * 1000}]


def test_a_disk_that_is_full_removes_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(replicate.lost.file.os, "fsync", full)
    with pytest.raises(DiskFullError, match="the file of lost transactions could not be written: no space left"):
        release(pair.primary, "--force")
    monkeypatch.undo()
    os.environ["REPLICATE_SHM_DIR"] = str(pair.directory / "shm")
    assert [name for name in os.listdir(pair.directory) if "lost" in name] == []
    assert Instance.open(pair.primary.path).regions
    assert pair.write(1) == 11
    assert "lost" in release(pair.primary, "--force")


def test_a_file_that_is_there_is_never_replaced(pair: Pair) -> None:
    last = pair.last_seqno()
    name = f"east-lost-{last - 4}-{last}"
    other = pair.directory / f"{name}.jsonl"
    other.write_text("mine\n")
    release(pair.primary, "--force")
    assert other.read_text() == "mine\n"
    written = pair.directory / f"{name}-2.jsonl"
    assert len(lines_of(written)) == 7
    # A file that was cut or changed is no record.
    written.write_bytes(written.read_bytes().replace(b"xxxx", b"xyxx", 1))
    with pytest.raises(UndeliveredError):
        remove(pair.primary)
    remove(pair.primary, "--force")
    assert lost_files(pair) == [f"{name}-2.jsonl", f"{name}-3.jsonl", f"{name}.jsonl"]


def make_pair(directory: Path) -> Pair:
    """The peer has everything but the last five transactions of the primary."""
    directory.mkdir(exist_ok=True)
    made = Pair.create(directory)
    made.acknowledge(made.write(3))
    made.write(5)
    return made


def purge_ready(pair: Pair) -> None:
    inside = pair.primary.path / "regions" / "app.db"
    shutil.move(pair.directory / "app.db", inside)
    call("-i", pair.primary.path, "region", "move", "main", inside)


def flip_frame(instance: Instance, seqno: int) -> None:
    """Damage in the content of that transaction, as a disk may do; the pool, which might know better, is gone."""
    retire(PoolKind.JOURNAL, instance.content.uuid)
    chain = Chain(instance.journal_directory)
    segment = chain.find(seqno)
    with chain.open(segment.first_seqno) as opened:
        offset = opened.read_catalogue()[1]
        while (head := read_head(opened.read_some(FRAME_HEAD_BYTES, offset))).seqno != seqno:
            offset += head.frame_bytes
    flip(Path(segment.path), offset + head.frame_bytes - 2)


def test_of_a_damaged_journal_the_readable_part_is_written_and_the_rest_is_named(pair: Pair) -> None:
    last = pair.last_seqno()
    expected = [one for one in shown(pair.primary, last - 4) if one["seqno"] not in (last - 3, last - 1)]
    flip_frame(pair.primary, last - 1)
    flip_frame(pair.primary, last - 3)
    with pytest.raises(JournalDamagedError, match=rf"replicate -i {pair.primary.named} region release main --force"):
        release(pair.primary)
    told = release(pair.primary, "--force")
    (name,) = lost_files(pair)
    assert name == f"east-lost-{last - 4}-{last}.jsonl"  # the region itself tells how far it went
    _, *lines, end = lines_of(pair.directory / name)
    assert lines == expected
    assert end["transactions"] == 3
    assert [(one["from"], one["to"]) for one in end["unreadable"]] == [(last - 3, last - 3), (last - 1, last - 1)]
    assert all("check does not match its content" in one["why"] for one in end["unreadable"])
    assert f"not in it, since it cannot be read: {last - 3} to {last - 3} (" in told
    assert name in remove(pair.primary)
    assert lost_files(pair) == [name]


def test_reading_goes_on_within_a_segment_and_after_it(pair: Pair) -> None:
    for _ in range(2):
        with pair.connect() as connection:
            connection.executemany("INSERT INTO entry VALUES ('at', 1.5, ?)", [(b"x" * 1000,)] * 1500)
        connection.close()
        last = pair.write(3)
    expected = [one for one in shown(pair.primary, last - 12) if one["seqno"] != last - 10]
    flip_frame(pair.primary, last - 10)
    release(pair.primary, "--force")
    (name,) = lost_files(pair)
    _, *lines, end = lines_of(pair.directory / name)
    assert lines == expected
    assert [(one["from"], one["to"]) for one in end["unreadable"]] == [(last - 10, last - 10)]


def test_after_a_bad_part_of_a_large_transaction_nothing_else_is_left_out(pair: Pair) -> None:
    for _ in range(2):
        with pair.connect() as connection:
            connection.executemany("INSERT INTO entry VALUES ('at', 1.5, ?)", [(b"x" * 1000,)] * 1500)
        connection.close()
    last = pair.write(2)
    expected = [one for one in shown(pair.primary, last - 8) if one["seqno"] != last - 3]
    flip(Path(Chain(pair.primary.journal_directory).path_of(last - 3)), part_offset(0) + 200)
    release(pair.primary, "--force")
    (name,) = lost_files(pair)
    _, *lines, end = lines_of(pair.directory / name)
    assert [one for one in lines if one["seqno"] != last - 3] == expected
    assert [(one["from"], one["to"]) for one in end["unreadable"]] == [(last - 3, last - 3)]


def test_each_place_that_cannot_be_read_has_its_own_reason(pair: Pair) -> None:
    last = pair.last_seqno()
    (segment,) = pair.primary.journal_directory.glob("*.journal")
    places = frame_places(Chain(pair.primary.journal_directory), 1)
    flip_frame(pair.primary, last)
    flip_frame(pair.primary, last - 4)
    release(pair.primary, "--force")
    (name,) = lost_files(pair)
    _, *lines, end = lines_of(pair.directory / name)
    assert [one["seqno"] for one in lines] == [last - 3, last - 2, last - 1]
    (first, second) = end["unreadable"]
    assert (first["from"], first["to"], second["from"], second["to"]) == (last - 4, last - 4, last, last)
    for one, seqno in ((first, last - 4), (second, last)):
        assert f"[{segment}, offset {places[seqno]}]" in one["why"]


def test_removed_without_its_region_what_stands_after_damage_is_kept_too(pair: Pair) -> None:
    last = pair.last_seqno()
    expected = [one for one in shown(pair.primary, last - 4) if one["seqno"] != last - 2]
    flip_frame(pair.primary, last - 2)
    (pair.primary.path / "instance.json").write_text("{}")
    call("region", "plain", pair.directory / "app.db")
    assert look(Owner.of_directory(pair.primary.path, pair.primary.named)).last_seqno == last
    remove(pair.primary, "--force")
    (name,) = lost_files(pair)
    _, *lines, end = lines_of(pair.directory / name)
    assert lines == expected
    # Without the region nobody knows whether more had been committed.
    assert [(one["from"], one["to"]) for one in end["unreadable"]] == [(last - 2, last - 2), (last + 1, None)]


def test_where_all_was_delivered_damage_is_no_loss_as_long_as_the_region_tells(pair: Pair) -> None:
    last = pair.last_seqno()
    pair.acknowledge()
    flip_frame(pair.primary, last - 2)
    assert "plain SQLite" in release(pair.primary, "--force")
    assert lost_files(pair) == []
    # Without the region nobody knows what stood there.
    with pytest.raises(UndeliveredError, match="nothing tells how much stands after that") as caught:
        remove(pair.primary)
    assert f"To go on without: replicate instance remove {pair.primary.named} --force" in caught.value.do
    remove(pair.primary, "--force")
    assert lost_files(pair) == [f"east-lost-{last + 1}.jsonl"]
    _, end = lines_of(pair.directory / f"east-lost-{last + 1}.jsonl")
    assert [(one["from"], one["to"]) for one in end["unreadable"]] == [(last + 1, None)]


def test_a_damaged_instance_file_is_removed_with_nothing_lost(pair: Pair) -> None:
    last = pair.last_seqno()
    expected = shown(pair.primary, last - 4)
    (pair.primary.path / "instance.json").write_text("{}")
    call("region", "plain", pair.directory / "app.db")
    told = remove(pair.primary, "--force")
    (name,) = lost_files(pair)
    assert name == f"east-lost-{last - 4}-{last}.jsonl"
    assert str(pair.directory / name) in told
    first, *lines, _ = lines_of(pair.directory / name)
    assert lines == expected
    assert (first["role"], first["uuid"].replace("-", "")) == ("", pair.primary.content.uuid.hex())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepare", "run"),
    [
        (None, lambda pair: release(pair.primary, "--force")),
        (purge_ready, lambda pair: remove(pair.primary, "--force", "--purge", "--yes")),
    ],
)
def test_killed_at_each_step_and_repeated_it_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Pair], None] | None, run: Callable[[Pair], str]
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    left_behind, number = set(), 0
    while True:
        number += 1
        pair = make_pair(tmp_path / str(number))
        if prepare is not None:
            prepare(pair)
        before = Instance.open(pair.primary.path).regions
        is_killed = _killed_at(number, lambda pair=pair: run(pair))
        (part, file) = (any(name.startswith(".") is kind for name in lost_files(pair)) for kind in (True, False))
        left_behind.add((part, file))
        is_there = pair.primary.path.exists()
        if not is_there or Instance.open(pair.primary.path).regions != before:
            assert file, "something went before the file was there"
        if is_killed:
            try:
                run(pair)
            except NotFoundError:  # it was done
                assert prepare is None
        (name,) = lost_files(pair)
        assert lines_of(pair.directory / name)[-1]["transactions"] == 5
        if prepare is not None:
            assert [one for one in os.listdir(pair.directory) if "east" in one] == [name]
        else:
            assert not Instance.open(pair.primary.path).regions
        if not is_killed:
            break
    assert left_behind >= {(True, False), (True, True), (False, True)}  # half of it; its name; its name alone


CALLS = ("fsync", "rename", "link", "unlink", "rmdir")


def _killed_at(number: int, run: Callable[[], None]) -> bool:
    """Run it in a child that ends without another word before its n-th change of a name, or sync."""
    child = os.fork()
    if child == 0:
        left, in_tree = [number], []

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def instead(*arguments: Any, **named: Any) -> Any:
                if "dir_fd" in named:  # the tree that goes: one file is as the other
                    in_tree.append(arguments)
                left[0] -= len(in_tree) < 3
                if not left[0]:
                    os._exit(9)
                return call(*arguments, **named)

            return instead

        try:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            run()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9
