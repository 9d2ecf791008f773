"""`replicate partition`: what it says, in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from replicate.cli.root import root
from replicate.errors import AlreadyExistsError, UsageError
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    return Pair.create(tmp_path)


def said(*words: str) -> str:
    done = CliRunner().invoke(root, list(words), standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def told(*words: str) -> Any:
    return json.loads(said("--json", *words))


def test_a_primary(pair: Pair) -> None:
    assert "partition sales, number 2" in said("-i", "east", "partition", "create", "sales")
    assert told("-i", "east", "partition", "create", "stock", "--id", "40") == {"name": "stock", "number": 40}
    pair.write(1)
    words = said("-i", "east", "partition", "assign", "sales", "account", "entry")
    assert "main.account  DEFAULT to sales" in words
    assert "account has rows, or had: a secondary that has sales, and not DEFAULT, stops there" in words
    assert "entry has rows" not in words
    assert said("-i", "east", "partition", "assign", "sales", "account") == "nothing was to be moved\n"
    assert "comments belong to partition stock" in said("-i", "east", "partition", "comments", "stock")
    assert "belong to partition NONE" in said("-i", "east", "partition", "default", "none")
    assert "at most 20 partitions" in said("-i", "east", "partition", "limit", "20")
    assert said("-i", "east", "partition", "list", "--tables").splitlines() == [
        "DEFAULT  number 1   0 tables",
        "sales    number 2   2 tables",
        "  main.account",
        "  main.entry",
        "stock    number 40  0 tables  comments",
        "NONE     no number  0 tables  new tables",
        "at most 20",
    ]
    listed = told("-i", "east", "partition", "list")
    assert [one["tables"] for one in listed] == [[], ["main.account", "main.entry"], [], []]
    assert said("-i", "east", "partition", "element", "storage", "stock").splitlines() == [
        "STORAGE belongs to partition stock",
        "a secondary with some partitions gets it no more, unless it subscribes to that one, too",
    ]
    assert "DEFINITION belongs to partition sales\n" in said(
        "-i", "east", "partition", "element", "DEFINITION", "sales"
    )
    listed_lines = said("-i", "east", "partition", "list").splitlines()
    assert "sales    number 2   2 tables  DEFINITION, SECTION" in listed_lines
    assert "stock    number 40  0 tables  comments, STORAGE" in listed_lines
    assert [one["elements"] for one in told("-i", "east", "partition", "list")][1:3] == [
        ["DEFINITION", "SECTION"], ["STORAGE"],
    ]  # fmt: skip
    assert said("-i", "east", "partition", "element", "DEFINITION", "all") == "DEFINITION goes to everybody\n"
    assert told("-i", "east", "partition", "element", "STORAGE", "ALL")["names"]["40"] == "stock"
    assert "comments go to everybody" in said("-i", "east", "partition", "comments", "ALL")
    said("-i", "east", "peer", "add", "west", "127.0.0.1:7430", "--partitions", "stock,2", "--replace")
    assert said("-i", "east", "peer", "list").endswith("sales, stock at most\n")
    assert "registered" in said("-i", "east", "peer", "add", "north", "127.0.0.1:7431", "--partitions", "sales")
    assert "registered already" in said("-i", "east", "peer", "add", "north", "127.0.0.1:7431")
    with pytest.raises(AlreadyExistsError, match="with other partitions"):
        said("-i", "east", "peer", "add", "north", "127.0.0.1:7431", "--partitions", "stock")
    said("-i", "east", "peer", "add", "north", "127.0.0.1:7431", "--partitions", "ALL", "--replace")
    assert "north  127.0.0.1:7431  durable up to 0\n" in said("-i", "east", "peer", "list")
    counted = told("-i", "east", "audit", "count", "--by", "partition")
    assert [one["partition"] for one in counted] == ["", "DEFAULT", "sales"]
    assert told("-i", "east", "instance", "show")["partitions"] == "DEFAULT, sales, stock"
    with pytest.raises(UsageError, match="peer west may have partition stock"):
        said("-i", "east", "partition", "drop", "stock")
    said("-i", "east", "peer", "add", "west", "127.0.0.1:7430", "--partitions", "sales", "--replace")
    assert "partition stock, number 40, dropped" in said("-i", "east", "partition", "drop", "stock")
    assert said("-i", "east", "subscription", "list") == "all partitions\n"
