"""`replicate journal show`: what is asked for, what is told, and that nothing is read for a reader that has gone."""

from __future__ import annotations

import json
import re
import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

import replicate
from replicate.cli import common
from replicate.cli.root import root
from replicate.errors import JournalDamagedError, NotFoundError, ReplicateError, UsageError, WrongInstanceError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from tests.harness import instances
from tests.harness.journals import flip, frame_places


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """`alpha`: begun (1), its region main added (2), and five rows of t (3 to 7)."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = instances.make_primary(tmp_path / "alpha")
    monkeypatch.setenv("REPLICATE_INSTANCE", str(made.path))
    with closing(replicate.connect(str(made.path))) as connection:
        for row in range(5):
            with connection:
                connection.execute("INSERT INTO t VALUES (?, 'x')", (row,))
    return made


def show(*words: str) -> str:
    result = CliRunner().invoke(root, ["journal", "show", *words], standalone_mode=False)
    if isinstance(result.exception, ReplicateError):
        raise result.exception
    assert result.exception is None, result.exception
    return result.stdout


def numbers(*words: str) -> list[int]:
    return [json.loads(line)["seqno"] for line in show("--json", *words).splitlines()]


def test_a_time_and_the_name_of_the_origin(primary: Instance) -> None:
    before_ns = time.time_ns()
    (told,) = map(json.loads, show("--json", "--last", "1").splitlines())
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", told["wall"])
    assert 0 <= before_ns - told["wall_ns"] < 3600e9
    assert told["wall_ns"] % 1000 == 0
    assert (told["origin_name"], told["origin_incarnation"]) == ("alpha", 1)
    text = show("--last", "1").splitlines()[0]
    assert f"{told['wall'].replace('T', ' ').removesuffix('Z')} UTC  origin alpha/{told['origin_seqno']}  " in text
    assert not re.search(r"\d{17}(?![0-9a-f])", text.replace(told["chain"], ""))  # no raw nanoseconds


def test_by_time_by_table_and_the_last_ones(primary: Instance) -> None:
    every = numbers()
    assert every == list(range(1, 8))
    assert numbers("--since", "-15m") == numbers("--since", "2h", "--until", "-0s") == every
    assert numbers("--since", "-0s") == []
    at = json.loads(show("--json", "--from", "5", "--to", "5"))["wall"]
    assert numbers("--since", at) == [5, 6, 7]
    assert numbers("--since", at, "--until", at.replace("T", " ").replace("Z", " UTC")) == [5]
    assert (
        numbers("--last", "2", "--table", "t") == numbers("--table", "main.T", "--last", "2", "--from", "2") == [6, 7]
    )
    assert numbers("--last", "1", "--table", "t", "--until", at) == [5]


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        ("--since yesterday", UsageError, "'yesterday' is no time [--since]. Give one such as 2030-01-31T12:00:00Z"),
        ("--until 2030-99-01", UsageError, "'2030-99-01' is no time [--until]"),
        ("--until -15m", UsageError, "the journal tells of 20"),
        ("--since 2099-01-01", UsageError, "the journal tells of 20"),
        ("--since -1h --until -2h", UsageError, "--since is later than --until"),
        ("--table u", NotFoundError, "the journal knows no table 'u'. There is main.t"),
        ("--from 99", UsageError, "the journal holds transactions 1 to 7"),
    ],
)
def test_what_cannot_be_asked_for(primary: Instance, words: str, kind: type[ReplicateError], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        show(*words.split())


def test_what_differs_in_an_update_is_marked(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.execute("UPDATE t SET v = 'y' WHERE id = 3")
        connection.commit()
    assert "    UPDATE    main.main.t  (id=3, *v='x' -> 'y')" in show("--last", "1")


def test_nothing_is_read_for_a_reader_who_has_gone(primary: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """`| head -1` of a journal of twenty million."""
    lines: list[str] = []

    def echo(line: str) -> bool:
        lines.append(line)
        return False

    monkeypatch.setattr(common, "_echo", echo)
    show()
    show("--json")
    assert len(lines) == 2


def test_verify_names_every_bad_place(primary: Instance) -> None:
    (segment,) = primary.journal_directory.glob("*.journal")
    places = frame_places(Chain(primary.journal_directory), 1)
    wanted = [(seqno, places[seqno]) for seqno in (4, 6)]
    for _, offset in wanted:
        flip(segment, offset + 70)
    result = CliRunner().invoke(root, ["--json", "journal", "verify"], standalone_mode=False)
    found = json.loads(result.stdout)["findings"]
    assert [(one["seqno"], one["offset"]) for one in found] == wanted
    assert {one["segment"] for one in found} == {segment.name}
    assert result.return_value == 65
    text = CliRunner().invoke(root, ["journal", "verify"], standalone_mode=False).stdout
    assert [f"offset {offset}, seqno {seqno}: " in text for seqno, offset in wanted] == [True, True]


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), [1, 2, 3]),
        (("--last", "1"), [3]),
        (("--since", "-5m", "--last", "2"), [2, 3]),
        (("--from", "4"), []),
        (("--from", "5"), [5, 6, 7]),
        (("--from", "6"), [6, 7]),
        (("--from", "5", "--to", "6"), [5, 6]),
        (("--from", "5", "--last", "1"), [7]),
        (("--from", "8"), []),
        (("--from", "2", "--to", "5"), [2, 3]),
        (("--to", "9"), [1, 2, 3]),
        (("--until", "2199-01-01"), [1, 2, 3]),
    ],
)
def test_an_end_that_is_damage_is_no_end(primary: Instance, words: tuple[str, ...], told: list[int]) -> None:
    (segment,) = primary.journal_directory.glob("*.journal")
    places = frame_places(Chain(primary.journal_directory), 1)
    flip(segment, places[4] + 70)
    result = CliRunner().invoke(root, ["--json", "journal", "show", *words], standalone_mode=False)
    assert [json.loads(line)["seqno"] for line in result.stdout.splitlines()] == told
    error = result.exception
    assert isinstance(error, JournalDamagedError)
    assert (error.code, error.exit_code) == ("JOURNAL_DAMAGED", 65)
    assert error.what.startswith("the journal can be read up to transaction 3: ")
    assert error.what.endswith(f"; transaction 4 cannot be read, 5 stands at offset {places[5]}")
    assert error.where == f"{segment}, offset {places[4]}"
    assert "journal verify" in error.do
    assert (error.facts["seqno"], error.facts["offset"]) == (4, places[4])


def test_what_lies_before_damage_is_the_whole_answer(primary: Instance) -> None:
    (segment,) = primary.journal_directory.glob("*.journal")
    last_but_one = json.loads(show("--json", "--from", "2", "--to", "2"))["wall"]
    flip(segment, frame_places(Chain(primary.journal_directory), 1)[4] + 70)
    assert numbers("--to", "3") == [1, 2, 3]
    assert numbers("--until", last_but_one) == [1, 2]
    with pytest.raises(UsageError, match="--from 5 comes after --to 4"):
        show("--from", "5", "--to", "4")


def test_a_torn_tail_is_the_end(primary: Instance) -> None:
    with Chain(primary.journal_directory).open(1, writable=True) as opened:
        found = opened.scan()
        opened.append(found.end_offset, opened.read_frame(found.definition_frames[0])[:60])
    assert numbers("--last", "1") == [7]


def test_a_copy_beside_its_original_can_be_shown_and_verified(primary: Instance, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(primary.path, copy, ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
    (segment,) = (copy / "journal").glob("*.journal")
    flip(segment, frame_places(Chain(primary.journal_directory), 1)[4] + 70)
    for words, told in ((("show", "--to", "3"), "INSERT    main.main.t  (id=0"), (("verify",), "1 finding")):
        result = CliRunner().invoke(root, ["-i", str(copy), "journal", *words], standalone_mode=False)
        assert told in result.stdout
        assert result.return_value == (65 if words == ("verify",) else None)
    assert "no finding" in CliRunner().invoke(root, ["journal", "verify"], standalone_mode=False).stdout
    # What may write, or asks more than the directory, is still refused.
    for words in (("journal", "prune"), ("status",)):
        refused = CliRunner().invoke(root, ["-i", str(copy), *words], standalone_mode=False).exception
        assert isinstance(refused, WrongInstanceError)
        assert "`journal verify`" in refused.do
