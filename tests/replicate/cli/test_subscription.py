"""`replicate subscription`: what it says, in words and as JSON."""

from __future__ import annotations

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
        "sales    number 2  here",
    ]
    pair.seed()
    assert said("-i", "west", "subscription", "add", "1").splitlines() == [
        "DEFAULT  number 1  waits for a seed",
        "sales    number 2  here",
        "next: replicate -i west seed --restart",
    ]
    shown = told("-i", "west", "instance", "show")
    assert (shown["subscription"], shown["held"]) == ("DEFAULT, sales", "sales")
    assert told("-i", "west", "subscription", "remove", "default") == [
        {"name": "DEFAULT", "number": 1, "state": "not wanted"},
        {"name": "sales", "number": 2, "state": "here"},
    ]
    with pytest.raises(ReplicateError, match="a table is where its source has put it"):
        said("-i", "west", "partition", "assign", "sales", "account")
