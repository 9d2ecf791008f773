"""The command: one vector, two of them, and what another host has printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from replicate.errors import JournalIOError, NotFoundError, UsageError
from tests.harness.suppliers import Suppliers, shared
from tests.replicate.cli.test_partition import said


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    return Suppliers.create(tmp_path)


def test_both_vectors_the_least_of_them_and_the_decision_in_words(two: Suppliers) -> None:
    told = said("-i", "a", "ruv")
    assert told.startswith(f"a (supplier) at transaction {two.last_seqno('a')}\n")
    assert re.search(r"^b +3 +\d+ +0$", told, re.MULTILINE)
    file = two.directory / "b.json"
    file.write_text(said("-i", "b", "--json", "ruv"))
    two.write("a", 2)
    for words in (("--with", "b"), ("--with-ruv", str(file))):
        told = said("-i", "a", "ruv", *words)
        assert re.search(r"^origin +incarnation +a +b +both +b is$", told, re.MULTILINE)
        assert re.search(r"^a +2 +(\d+) +(\d+) +\2 +behind$", told, re.MULTILINE)
        assert told.endswith("a sends to b: 2 of a\nb has nothing to send to a\n")
    made = json.loads(said("-i", "a", "--json", "ruv", "--with", "b"))
    assert [one["is_well"] for one in made["directions"]] == [True, True]


def test_what_each_has_told(two: Suppliers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said("-i", "a", "ruv", "--told").endswith("no partition is shared: nobody tells what he has\n")
    directory = tmp_path / "shared"
    directory.mkdir()
    monkeypatch.setenv("REPLICATE_HOME", str(directory))
    made = shared(directory)
    made.write("a", 2, table="ta")
    told = said("-i", "a", "ruv", "--told")
    assert re.search(r"^supplier +a 1 +a 2 +b 3 +lacks$", told, re.MULTILINE), told
    found = {one["name"]: one for one in json.loads(said("-i", "a", "--json", "ruv", "--told"))}
    assert found["a"]["lacks"] == 0
    assert found["b"]["lacks"] >= 2


def test_wrong_words(two: Suppliers) -> None:
    with pytest.raises(UsageError, match="together make no sense"):
        said("-i", "a", "ruv", "--with", "b", "--with-ruv", "x")
    with pytest.raises(NotFoundError):
        said("-i", "a", "ruv", "--with", "nowhere")
    with pytest.raises(JournalIOError, match="cannot be read"):
        said("-i", "a", "ruv", "--with-ruv", "/nowhere")
