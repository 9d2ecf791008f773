"""`replicate subscription`: what it says, in words and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import ReplicateError
from tests.harness.pair import Pair
from tests.replicate.cli.test_partition import pair as pair
from tests.replicate.cli.test_partition import said, told


def test_a_secondary(pair: Pair) -> None:
    said("-i", "west", "partition", "create", "sales")
    assert said("-i", "west", "subscription", "list") == "all partitions\n"
    assert said("-i", "west", "subscription", "set", "sales").splitlines() == [
        "DEFAULT  number 1  not wanted",
        "sales    number 2  comes with the first copy",
    ]
    assert pair.secondary.content.partitions_here is None
    pair.secondary.reload()
    assert pair.secondary.content.partitions_here == {"sales": 0}
    pair.seed()
    assert pair.secondary.content.partitions_here == {"sales": 1}
    assert said("-i", "west", "subscription", "add", "1").splitlines() == [
        "DEFAULT  number 1  waits for its rows",
        "sales    number 2  here",
        "next: replicate -i west seed --partition DEFAULT",
    ]
    shown = told("-i", "west", "instance", "show")
    assert (shown["subscription"], shown["held"]) == ("DEFAULT, sales", "sales")
    assert told("-i", "west", "subscription", "remove", "default") == [
        {"name": "DEFAULT", "number": 1, "state": "not wanted"},
        {"name": "sales", "number": 2, "state": "here"},
    ]
    with pytest.raises(ReplicateError, match="a table is where its source has put it"):
        said("-i", "west", "partition", "assign", "sales", "account")


def test_what_was_removed_is_listed_without_a_name(pair: Pair) -> None:
    """Nobody has told what it is called: packets bring no names, and another number may have it here."""
    said("-i", "west", "subscription", "set", "1", "7")
    pair.seed()
    assert said("-i", "west", "subscription", "remove", "7").splitlines() == [
        "DEFAULT  number 1  here",
        "7        number 7  frozen, as it was",
    ]


def test_what_rows_refer_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    pair = Pair.create(
        tmp_path,
        "CREATE TABLE person (id INTEGER PRIMARY KEY);CREATE TABLE bill (id INTEGER PRIMARY KEY, of REFERENCES person)",
    )
    for site in ("east", "west"):
        said("-i", site, "partition", "create", "money", "--id", "2")
        said("-i", site, "partition", "create", "people", "--id", "3")
    said("-i", "east", "partition", "assign", "money", "bill")
    said("-i", "east", "partition", "assign", "people", "person")
    with pytest.raises(ReplicateError, match="has no tables yet"):
        said("-i", "west", "subscription", "set", "money", "--with-parents")
    said("-i", "west", "subscription", "set", "money")
    pair.seed()
    outside = "main.bill refers to person, which is in people and not wanted (--with-parents)"
    assert outside in said("-i", "west", "subscription", "set", "money")
    assert said("-i", "west", "subscription", "show", "money", "people").splitlines() == [
        "money, number 2: here",
        "  main.bill, refers to person, which is in people: not here",
        "people, number 3: not wanted",
        "  main.person",
    ]
    assert told("-i", "west", "subscription", "show", "3") == [
        {"name": "people", "number": 3, "state": "not wanted", "tables": ["main.person"]}
    ]
    words = said("-i", "west", "subscription", "add", "money", "--with-parents")
    assert "people   number 3  waits for its rows" in words
    assert outside not in words


def test_rows_of_a_table(pair: Pair) -> None:
    assert said("-i", "west", "subscription", "filter") == "all rows of every table\n"
    shown = said("-i", "west", "subscription", "filter", "account", "--where", "owner = 'x' OR id < 9")
    assert shown == "table account: the rows where owner = 'x' OR id < 9\n"
    pair.seed()
    assert said("-i", "west", "subscription", "list").splitlines() == [
        "all partitions",
        "table main.account: the rows where owner = 'x' OR id < 9",
    ]
    assert "main.account, the rows where owner = 'x' OR id < 9" in said("-i", "west", "subscription", "show", "1")
    assert said("-i", "west", "subscription", "filter", "account", "--where", "id > 9").splitlines() == [
        "table main.account: the rows where id > 9; here until they are copied: where owner = 'x' OR id < 9",
        "next: replicate -i west seed --restart",
    ]
    assert told("-i", "west", "subscription", "filter", "main.account", "--none") == [
        {"table": "main.account", "wanted": None, "held": "owner = 'x' OR id < 9", "in_force": False}
    ]
    assert "main.account: all rows; here until" in said("-i", "west", "subscription", "filter")
    for words, refused in (
        (("account",), "say a table with --where CONDITION, with --columns"),
        (("account", "--where", "id = 1", "--none"), "say a table with --where"),
        (("--none",), "say a table with --where"),
        (("account", "--where", "weight > 9"), "table account has no column weight"),
        (("account", "--columns", "id,weight"), "table account has no column weight"),
        (("account", "--columns", "id,"), "the columns cannot be read"),
        (("account", "--columns", "id", "--none"), "say a table with --where"),
        (("account", "--columns", "id", "--where", " "), "the condition is empty"),
        (("account", "--where", "id >"), "the condition cannot be read: a literal"),
        (("nowhere", "--where", "id = 9"), "there is no table nowhere"),
        (("nowhere", "--none"), "no rows or columns of table nowhere are chosen"),
    ):
        with pytest.raises(ReplicateError, match=refused):
            said("-i", "west", "subscription", "filter", *words)
    with pytest.raises(ReplicateError, match="instance east is primary"):
        said("-i", "east", "subscription", "filter", "account", "--where", "id = 1")


def test_a_partition_of_an_element_has_no_rows_that_were_frozen(pair: Pair) -> None:
    for site in ("east", "west"):
        said("-i", site, "partition", "create", "plans", "--id", "5")
        said("-i", site, "partition", "element", "DEFINITION", "plans")
    said("-i", "west", "subscription", "set", "1", "5")
    pair.seed()
    words = said("-i", "west", "subscription", "remove", "plans").splitlines()
    assert words[:2] == [
        "DEFAULT  number 1  here",
        "plans    number 5  not wanted: what this site has of DEFINITION, STORAGE, SECTION is its own",
    ]
    words = said("-i", "west", "subscription", "add", "plans").splitlines()
    assert words[1] == "plans    number 5  waits for the next seed, for DEFINITION, STORAGE, SECTION"
    assert "next: replicate -i west seed --restart" in words
