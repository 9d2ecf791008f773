"""The quick look at lost files: it says what `lost list` says, from the ends of the files alone, and never raises."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from replicate.lost.apply import apply_lost
from replicate.lost.file import LAST_LINE_BYTES_MAX, last_line
from replicate.lost.files import look_at_lost
from replicate.lost.settled import Settled, count_settled
from replicate.lost.unsettled import Unsettled, look_at_unsettled
from replicate.roles.change_of_role import become_secondary
from replicate.roles.rollback import rollback
from tests.harness.sites import Sites


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    """Roles were changed, and a lost file of three transactions and a history record lies beside `secondary`."""
    made = Sites.level(tmp_path)
    common = made.last_seqno()
    become_secondary(made.primary)
    made.exchange()
    made.take_over()  # the same one again: its new incarnation begins with a record that is nobody's data
    made.write(3)
    become_secondary(made.primary)
    rollback(made.primary, common)
    made.take_over()
    return made


def test_it_says_what_the_whole_look_says_while_they_are_settled_one_by_one(sites: Sites) -> None:
    (whole,) = look_at_lost(sites.secondary)
    file = whole.path
    assert (whole.transactions, whole.waiting) == (3, 3)
    assert json.loads(file.read_bytes().splitlines()[-1])["transactions"] == 4
    assert look_at_unsettled(sites.secondary.path) == [Unsettled(file, 3)]
    first = whole.first_seqno + 1
    apply_lost(sites.primary, file, only=[first], timeout_s=30)
    assert look_at_unsettled(sites.secondary.path) == [Unsettled(file, 2)]
    with file.with_name(file.name + ".settled").open("ab") as lines:
        lines.write(b'{"seqno": 99')  # a kill has cut it off
    assert look_at_unsettled(sites.secondary.path) == [Unsettled(file, 2)]
    apply_lost(sites.primary, file, timeout_s=30)
    assert look_at_unsettled(sites.secondary.path) == []
    assert [one.waiting for one in look_at_lost(sites.secondary)] == [0]


def test_given_up_is_settled(sites: Sites) -> None:
    (one,) = look_at_unsettled(sites.secondary.path)
    settled = Settled.of(one.path)
    settled.instance = "x"
    settled.note_all()
    assert count_settled(one.path) is None
    assert look_at_unsettled(sites.secondary.path) == []


def test_only_the_ends_of_a_file_are_read(sites: Sites) -> None:
    """What stands between was verified when it was written, and is again before anything is applied."""
    (one,) = look_at_unsettled(sites.secondary.path)
    lines = one.path.read_bytes().splitlines(keepends=True)
    one.path.write_bytes(lines[0] + os.urandom(1000) + b"\n" + lines[-1])
    assert look_at_unsettled(sites.secondary.path) == [one]


def test_a_last_line_that_was_changed_is_told(sites: Sites) -> None:
    """What it counts stands in no other place that the quick look reads."""
    (one,) = look_at_unsettled(sites.secondary.path)
    lines = one.path.read_bytes().splitlines(keepends=True)
    assert b'"data": 3' in lines[-1]
    one.path.write_bytes(b"".join(lines[:-1]) + lines[-1].replace(b'"data": 3', b'"data": 0'))
    (told,) = look_at_unsettled(sites.secondary.path)
    assert told.error == "it is not whole, or was changed by hand"


def test_a_file_of_an_older_release_counts_its_records(sites: Sites) -> None:
    (one,) = look_at_unsettled(sites.secondary.path)
    lines = one.path.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    del last["data"], last["check"]
    one.path.write_bytes(b"".join(lines[:-1]) + json.dumps(last).encode() + b"\n")
    assert look_at_unsettled(sites.secondary.path) == [Unsettled(one.path, 4)]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not whole"),
        (b"[]\n", "not whole"),
        (b'{"format": 1}\n{"half', "not whole"),
        (b'{"format": 1}\n{"data": "x"}\n', "not whole"),
        (b'{"format": 2}\n{}\n', "format 2"),
        (b"[" * 100_000 + b"\n", "not whole"),
    ],
)
def test_what_is_no_file_of_ours_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "east-lost-1-2.jsonl").write_bytes(content)
    (found,) = look_at_unsettled(tmp_path / "east")
    assert told in found.error
    assert found.waiting == 0


def test_what_cannot_be_opened_is_told_and_nothing_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "east-lost-1-2.jsonl")
    (tmp_path / "east-lost-3-4.jsonl").symlink_to("/etc/hostname")
    (tmp_path / "east-lost-5-6.jsonl").mkdir()
    (tmp_path / "east-lost-7-8.jsonl.settled").write_bytes(b"")
    (tmp_path / "west-lost-1-2.jsonl").write_bytes(b"")
    found = look_at_unsettled(tmp_path / "east")
    assert [one.path.name[-9:-6] for one in found] == ["1-2", "3-4", "5-6"]
    assert all(one.error for one in found)
    assert look_at_unsettled(tmp_path / "nowhere" / "east") == []


@pytest.mark.parametrize("length", [10, 100_000, LAST_LINE_BYTES_MAX + 10])
def test_the_last_line_however_long_it_is(tmp_path: Path, length: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"first\n" + b"x" * length + b"\n")
    with path.open("rb") as file:
        line, at = last_line(file)
    if length < LAST_LINE_BYTES_MAX:
        assert (line, at) == (b"x" * length + b"\n", 6)
    else:
        assert len(line) == LAST_LINE_BYTES_MAX
