"""`replicate schema run`, and what `subscription` and `compare` say of a secondary that has a schema of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicate.cli.root import root
from replicate.errors import ConflictError, UsageError
from tests.harness.pair import Pair


def said(*words: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(root, list(map(str, words)), standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert (done.return_value or 0) == code
    return done.output


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    made = Pair.create(tmp_path)
    for name in ("east", "west"):
        said("-i", name, "partition", "create", "definitions")
        said("-i", name, "partition", "element", "DEFINITION", "definitions")
    return made


def test_a_schema_of_its_own(pair: Pair, tmp_path: Path) -> None:
    listed = said("-i", "west", "subscription", "set", "DEFAULT")
    own = "without DEFINITION, STORAGE and SECTION: schema changes of that kind are its own"
    assert own in listed
    assert own in said("-i", "west", "subscription", "list")
    pair.seed()
    with pair.connect() as connection:
        connection.execute("ALTER TABLE account ADD COLUMN more INTEGER")
        connection.execute("CREATE UNIQUE INDEX once ON account (more)")
    with pytest.raises(ConflictError) as caught:
        pair.catch_up()
    assert 'it lacks "more" INTEGER' in str(caught.value)
    file = tmp_path / "change.sql"
    file.write_text("-- as on the primary\nALTER TABLE account ADD COLUMN more INTEGER;\n")
    assert said("-i", "west", "schema", "run", file).splitlines() == [
        "region main: 1 statement",
        "next: replicate -i west update start",
    ]
    pair.catch_up()
    told = json.loads(said("-i", "west", "--json", "compare", "--with", "east"))
    assert told["equal"]
    shown = said("-i", "west", "compare", "--with", "east")
    assert "west and east at seqno" in shown
    assert "index main.once: missing | CREATE UNIQUE INDEX once" in shown
    assert "(left out, its element is not in both)" in shown
    digests = [tmp_path / f"{name}.json" for name in ("west", "east")]
    for one in digests:
        one.write_text(said("-i", one.stem, "--json", "digest"))
    shown = said("compare", "--with-digest", digests[0], "--with-digest", digests[1])
    assert "equal, 2 tables" in shown
    assert "the schema of main: left out" in shown


def test_a_file_that_is_none(pair: Pair, tmp_path: Path) -> None:
    file = tmp_path / "change.sql"
    with pytest.raises(UsageError, match="cannot be read"):
        said("-i", "west", "schema", "run", file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        said("-i", "west", "schema", "run", file)
