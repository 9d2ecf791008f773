"""lost/settled.py: a line counts once it is whole; a run that was killed is told from one that ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import DamagedError, FormatUnknownError, WrongInstanceError
from replicate.lost.settled import APPLIED, OVERWRITTEN, SKIPPED, SUFFIX, Settled, count_settled

HERE = "00" * 16


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "west-lost-7-9.jsonl"


def beside(file: Path) -> Path:
    return file.with_name(file.name + SUFFIX)


def test_a_run_is_read_again_as_it_was_noted(file: Path) -> None:
    assert (count_settled(file), Settled.of(file).how) == (0, {})
    run = Settled.of(file, HERE)
    run.begin(20)
    run.note(7, APPLIED, (21,))
    run.note(8, OVERWRITTEN, (22, 23))
    killed = Settled.of(file, HERE)
    assert (killed.how, killed.search_from, killed.is_ended) == ({7: APPLIED, 8: OVERWRITTEN}, 21, False)
    run.end()
    run.begin(30)  # another run
    run.note(9, SKIPPED)
    run.end()
    found = Settled.of(file)
    assert (found.how, found.search_from, found.is_ended) == ({7: APPLIED, 8: OVERWRITTEN, 9: SKIPPED}, 31, True)
    assert (found.instance, found.is_all, count_settled(file)) == (HERE, False, 3)
    run.note_all()
    assert (Settled.of(file).is_all, count_settled(file)) == (True, None)


def test_a_line_that_a_kill_cut_off_is_not_there_and_is_written_over(file: Path) -> None:
    run = Settled.of(file, HERE)
    run.begin(20)
    run.note(7, APPLIED, (21,))
    whole = beside(file).read_bytes()
    run.note(8, APPLIED, (22,))
    for cut in range(len(whole), beside(file).stat().st_size):
        beside(file).write_bytes((whole + b'{"seqno": 8, "how": "applied", "as": [22]}')[:cut])
        assert (Settled.of(file).how, count_settled(file)) == ({7: APPLIED}, 1), cut
    Settled.of(file, HERE).note(9, SKIPPED)
    assert Settled.of(file).how == {7: APPLIED, 9: SKIPPED}


def test_it_goes_on_where_it_was_begun_only(file: Path) -> None:
    Settled.of(file, HERE).begin(20)
    with pytest.raises(WrongInstanceError, match=HERE):
        Settled.of(file, "11" * 16)


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"how": "applied"}', '{"seqno": 1}'])
def test_what_makes_no_sense_is_damage(file: Path, text: str) -> None:
    beside(file).write_text(text + "\n")
    with pytest.raises(DamagedError, match="not readable"):
        Settled.of(file)


def test_a_newer_format_is_named(file: Path) -> None:
    beside(file).write_text('{"format": 2, "instance": ""}\n')
    with pytest.raises(FormatUnknownError, match="format 2"):
        Settled.of(file)
