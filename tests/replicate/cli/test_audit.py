"""`replicate audit`: each verb as an operator types it, and one clear error for each thing that cannot be."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyarrow.parquet import read_table

import replicate
from replicate.cli import main
from replicate.cli.root import root
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from tests.harness import instances
from tests.harness.journals import flip, frame_places


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """`alpha`: begun (1), region main added (2), rows 1 and 2 of t (3), row 1 becomes 10 (4), row 2 goes (5)."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = instances.make_primary(tmp_path / "alpha")
    monkeypatch.setenv("REPLICATE_INSTANCE", str(made.path))
    with closing(replicate.connect(str(made.path))) as connection:
        for text in (
            "INSERT INTO t VALUES (1, 'a'), (2, 'it''s')",
            "UPDATE t SET id = 10, v = 'b' WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        ):
            with connection:
                connection.execute(text)
    return made


def audit(*words: str) -> Any:
    result = CliRunner().invoke(root, ["audit", *words], standalone_mode=False)
    if isinstance(result.exception, ReplicateError):
        raise result.exception
    assert result.exception is None, result.exception
    return result


def lines(*words: str) -> list[str]:
    found: list[str] = audit(*words).stdout.splitlines()
    return found


def test_show_for_people(primary: Instance) -> None:
    told = [line for line in lines("show", "--from", "3") if line.startswith(" ")]
    assert told == [
        "    INSERT   main.t [1] (id=1, v='a')",
        '    INSERT   main.t [2] (id=2, v="it\'s")',
        "    UPDATE   main.t [10] id: 1 → 10, v: 'a' → 'b'",
        '    DELETE   main.t [2] (id=2, v="it\'s")',
    ]
    assert [line.split()[0] for line in lines("show", "--last", "2", "--newest-first") if line[0] != " "] == ["5", "4"]
    assert lines("show", "--key", "10", "--table", "t")[0].startswith("4  20")


def test_show_says_what_begins_and_where_there_is_nothing(primary: Instance, tmp_path: Path) -> None:
    (head, told) = lines("show", "--to", "1")
    assert head.startswith("1  20")
    assert told == "    HISTORY  alpha incarnation 1 begins: a new instance"
    found = audit("show", "--table", "t", "--key", "77")
    assert (found.stdout, found.stderr) == ("", "Note: the journal holds nothing of that.\n")
    out = tmp_path / "nothing.txt"
    assert audit("show", "--comment", "none", "--out", str(out)).stderr.startswith("Note: ")
    assert out.read_text() == ""


def test_show_for_programs(primary: Instance, tmp_path: Path) -> None:
    shown = [json.loads(line) for line in lines("show", "--format", "jsonl", "--op", "update")]
    assert [(one["seqno"], one["changes"][0]["after"]) for one in shown] == [(4, [10, "b"])]
    journal = CliRunner().invoke(root, ["--json", "journal", "show"]).stdout
    assert CliRunner().invoke(root, ["--json", "audit", "show"]).stdout == journal
    rows = list(csv.DictReader(io.StringIO(audit("show", "--format", "csv", "--table", "t", "--op", "insert").stdout)))
    assert [(row["seqno"], row["place"], row["key"], row["after"]) for row in rows] == [
        ("3", "0", "[1]", '{"id": 1, "v": "a"}'),
        ("3", "1", "[2]", '{"id": 2, "v": "it\'s"}'),
    ]
    assert lines("show", "--format", "csv", "--columns", "op,seqno", "--from", "5") == ["op,seqno", "delete,5"]
    out = tmp_path / "a.csv"
    assert lines("show", "--format", "csv", "--out", str(out), "--from", "5") == []
    assert out.read_text().startswith("seqno,place,time,")
    assert out.stat().st_mode & 0o777 == 0o600


def test_show_as_parquet(primary: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "a.parquet"
    assert lines("show", "--format", "parquet", "--out", str(out), "--table", "t", "--from", "3") == [
        f"{out}: 4 changes"
    ]
    assert read_table(out).column("op").to_pylist() == ["insert", "insert", "update", "delete"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ReplicateError, match="pyarrow, which writes Parquet"):
        audit("show", "--format", "parquet", "--out", str(out))


def test_count(primary: Instance, tmp_path: Path) -> None:
    assert lines("count", "--by", "op", "--from", "3") == [
        "op      transactions  changes",
        "delete             1        1",
        "insert             1        2",
        "update             1        1",
    ]
    (one,) = json.loads(audit("count", "--by", "table,origin", "--from", "3", "--json").stdout)
    assert one == {"table": "main.t", "origin": "alpha/1", "transactions": 3, "changes": 4}
    picture = tmp_path / "a.svg"
    assert lines("count", "--plot", str(picture), "--from", "3") == [f"{picture}: 4 changes"]
    assert picture.exists()


def test_row(primary: Instance) -> None:
    told = lines("row", "t", "10")
    assert [line.split()[0] for line in told] == ["4", "UPDATE", "3", "INSERT"]
    assert [json.loads(line)["op"] for line in lines("row", "t", "2", "--format", "jsonl")] == ["delete", "insert"]
    nothing = CliRunner().invoke(root, ["audit", "row", "t", "77"], standalone_mode=False)
    assert (nothing.return_value, nothing.stdout) == (1, "")
    assert "no change of t [id=77]" in nothing.stderr
    assert audit("row", "t", "10", "--journal", str(primary.path)).return_value == 0
    assert [line.split()[0] for line in lines("row", "t", "V=a")] == ["4", "UPDATE", "3", "INSERT"]
    assert lines("show", "--table", "t", "--key", "v=it's")[0].startswith("3  20")


def test_a_row_that_is_older_than_its_tables_name(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.execute("ALTER TABLE t RENAME TO renamed")
        connection.commit()
        connection.execute("UPDATE renamed SET v = 'c'")
        connection.commit()
    told = audit("row", "renamed", "10")
    assert told.stdout.split()[0] == "7"
    assert "older than transaction 6, with which renamed begins here" in told.stderr
    assert "ALTER TABLE t RENAME TO renamed" in audit("show", "--from", "6", "--to", "6").stdout


def test_undo_and_redo(primary: Instance, tmp_path: Path) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.executescript(audit("undo", "--from", "4").stdout)
        assert connection.execute("SELECT * FROM t ORDER BY id").fetchall() == [(1, "a"), (2, "it's")]
    out = tmp_path / "again.sql"
    audit("redo", "--from", "4", "--to", "5", "--out", str(out))
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.executescript(out.read_text())
        assert connection.execute("SELECT * FROM t").fetchall() == [(10, "b")]


def test_a_file_is_read_by_nobody_else_though_it_was_there(primary: Instance, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("before")
    out.chmod(0o644)
    for words in (["show"], ["undo", "--from", "3"], ["show", "--format", "parquet"]):
        audit(*words, "--out", str(out))
        assert out.stat().st_mode & 0o777 == 0o600
        out.chmod(0o644)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o644)
    reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    audit("show", "--from", "4", "--to", "4", "--out", str(pipe))
    assert b"UPDATE" in os.read(reads, 10_000)
    os.close(reads)
    assert pipe.stat().st_mode & 0o777 == 0o644, "what is no file is left as it is"


def test_a_hidden_rowid_stands_beside_a_column_of_that_name(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.execute("CREATE TABLE named (k, rowid)")
        connection.execute("INSERT INTO named VALUES ('a', 7)")
        connection.commit()
    told = audit("show", "--table", "named", "--op", "insert", "--format", "csv", "--columns", "after").stdout
    (row,) = csv.DictReader(io.StringIO(told))
    assert json.loads(row["after"]) == {"_rowid_": 1, "k": "a", "rowid": 7}
    for words in (["1"], ["rowid=7"], ["_rowid_=1"]):
        assert audit("row", "named", *words).return_value == 0, words


RED = "\x1b[31mred\x1b[0m"


def test_what_looks_like_a_colour_is_told_whole(primary: Instance) -> None:
    """A text, a name and a comment of an application are not those of a terminal."""
    table = f'"t{RED}\n"'
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, v)")
        connection.execute(f"INSERT INTO {table} VALUES (1, ?)", (RED,))
        connection.commit()
        connection.execute(f"DELETE FROM {table}")
        connection.log_comment(RED)
        connection.commit()
        last = str(connection.last_seqno)
        connection.executescript(audit("undo", "--from", last).stdout)
        assert connection.execute(f"SELECT * FROM {table}").fetchall() == [(1, RED)]
    rows = list(csv.DictReader(io.StringIO(audit("show", "--from", last, "--to", last, "--format", "csv").stdout)))
    assert [row["text"] for row in rows if row["op"] == "comment"] == [RED]
    assert [row["table"] for row in rows if row["op"] == "delete"] == [f"t{RED}\n"]
    shown = CliRunner().invoke(root, ["journal", "show"], standalone_mode=False)
    for text in (shown.stdout, audit("show").stdout):
        assert "\x1b" not in text
        assert "\\x1b[31mred" in text


def test_follow_ends_after_as_many_as_were_asked_for(primary: Instance) -> None:
    told = lines("follow", "--from", "3", "--count", "2", "--format", "jsonl")
    assert [json.loads(line)["seqno"] for line in told] == [3, 4]
    assert lines("follow", "--from", "5", "--count", "1", "--format", "csv")[1].startswith("5,0,")


def test_files_and_directories_without_an_instance(
    primary: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = lines("show")
    monkeypatch.delenv("REPLICATE_INSTANCE")
    (segment,) = Path(primary.journal_directory).glob("*.journal")
    shutil.copy(segment, tmp_path / "copy")
    for place in (segment, tmp_path / "copy", primary.journal_directory, primary.path):
        assert lines("show", "--journal", str(place)) == wanted, place


def test_what_stands_before_damage_is_told_first(primary: Instance) -> None:
    chain = Chain(primary.journal_directory)
    flip(Path(chain.path_of(1)), frame_places(chain, 1)[5] + 70)
    for words in (["show", "--from", "4"], ["count", "--by", "op", "--from", "4"]):
        result = CliRunner().invoke(root, ["audit", *words], standalone_mode=False)
        assert isinstance(result.exception, ReplicateError)
        assert result.exception.exit_code == 65
        assert "UPDATE" in result.stdout.upper()


def test_several_files_by_a_shells_star(primary: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    segment = str(next(primary.journal_directory.glob("*.journal")))
    assert main.run(["audit", "show", "--journal", segment, segment]) == 2
    assert "Say --journal before each of several files, or name their directory" in capsys.readouterr().err
    assert main.run(["audit", "show", "--form", segment, "more"]) == 2
    assert "--journal before" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "--table", "none"], "the journal knows no table 'none'"),
        (["show", "--key", "1"], "a key is one of a table's"),
        (["show", "--table", "t", "--key", "1,2"], "the key of t has 1 value, 2 were given"),
        (["show", "--origin", "west"], "the journal knows no origin 'west'"),
        (["show", "--op", "remove"], "there is no operation 'remove'"),
        (["show", "--since", "never"], "'never' is no time"),
        (["undo", "--since", ""], "'' is no time"),
        (["undo", "--until", ""], "'' is no time"),
        (["show", "--comment", "\udcff"], "is no text in UTF-8"),
        (["show", "--until", "2001-01-01"], "the journal tells of 20"),
        (["count", "--since", "2099-01-01"], "the journal tells of 20"),
        (["show", "--from", "99"], "the journal holds transactions 1 to 5"),
        (["show", "--format", "parquet"], "Parquet is a file"),
        (["show", "--format", "parquet", "--out", "."], "the file cannot be written"),
        (["show", "--columns", "op"], "--columns is for CSV and Parquet"),
        (["show", "--format", "csv", "--columns", "colour"], "there is no column 'colour'"),
        (["show", "--journal", "/nowhere"], "there is no such directory"),
        (["count", "--by", "colour"], "nothing is counted by 'colour'"),
        (["row", "t", "1", "2"], "the key of t has 1 value, 2 were given"),
        (["row", "t", "colour=red"], "the key of t, id, is a whole number, and 'colour=red' is none"),
        (["show", "--table", "t", "--key", "NULL"], "the key of t, id, is a whole number, and 'NULL' is none"),
        (["undo", "--from", "1", "--to", "2"], "transaction 2 changes the schema"),
        (["undo", "--key", "99", "--table", "t"], "no row is changed by what is asked for"),
        (["follow", "--to", "9"], "--to has no meaning"),
        (["show", "--out", "/nowhere/a"], "the file cannot be written"),
    ],
)
def test_one_clear_error(primary: Instance, words: list[str], told: str) -> None:
    with pytest.raises(ReplicateError) as caught:
        audit(*words)
    assert told in caught.value.what
    assert caught.value.do or caught.value.exit_code == 74
