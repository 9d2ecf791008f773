"""`replicate epochs`: the matrix, and a row that an operator sets."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from replicate.cli.root import root
from replicate.errors import UsageError
from tests.harness.pair import Pair
from tests.replicate.cli.test_packet import pair
from tests.replicate.cli.test_partition import said, told

__all__ = ["pair"]


def test_estimates_are_marked_and_ages_told(pair: Pair) -> None:
    last = pair.write(3)
    said("-i", "east", "packet", "export")
    lines = said("-i", "east", "epochs").splitlines()
    assert lines[0].split() == ["replica", "east", "transaction", "heard"]
    assert lines[1].split() == ["east", "own", str(last - 1), str(last), "now"]
    assert lines[2].split() == ["west", "estimated", f"~{last - 1}", f"~{last}", "never"]
    assert "east/1" in said("-i", "east", "epochs", "--origins").splitlines()[0]
    found = told("-i", "east", "epochs")
    assert found["origins"] == ["east"]
    assert [(one["replica"], one["kind"], one["epochs"]) for one in found["replicas"]] == [
        ("east", "own", {"east": last - 1}),
        ("west", "estimated", {"east": last - 1}),
    ]


def test_one_that_does_not_confirm_ends_it_with_1(pair: Pair) -> None:
    pair.write(1)
    said("-i", "east", "packet", "export")
    said("-i", "east", "config", "set", "packets.confirm_within_s", "0.001")
    done = CliRunner().invoke(root, ["-i", "east", "epochs"])
    assert done.exit_code == 1
    assert "west has confirmed nothing for longer than packets.confirm_within_s" in done.output


def test_a_row_is_set(pair: Pair) -> None:
    last = pair.write(3)
    words = said("-i", "east", "epochs", "set", "west", str(last - 1), "--yes")
    assert words == f"the next packet for west begins after transaction {last - 1}\n"
    assert f"transactions {last} to {last}" in said("-i", "east", "packet", "export")


def test_what_may_not_be_is_refused_before_it_is_asked(pair: Pair) -> None:
    last = pair.write(3)
    with pytest.raises(UsageError, match=f"ends with transaction {last}; {last + 1} is beyond that"):
        said("-i", "east", "epochs", "set", "west", str(last + 1))
    said("-i", "west", "packet", "export", "--to", "east", "--receipt", "--file", "back.packet")
    said("-i", "east", "packet", "import", "back.packet")
    said("-i", "east", "packet", "export")
    with pytest.raises(UsageError, match="has said that it has transaction 2; 1 is less"):
        said("-i", "east", "epochs", "set", "west", "1")


def test_it_is_asked_what_becomes_of_it(pair: Pair) -> None:
    last = pair.write(3)
    begins = r"begins after transaction"
    with pytest.raises(UsageError, match=rf"{begins} {last}, and not after 2; what it lacks up to there") as caught:
        said("-i", "east", "epochs", "set", "west", str(last))
    assert "--yes" in caught.value.do
    with pytest.raises(UsageError, match=f"{begins} 2, as it did"):
        said("-i", "east", "epochs", "set", "west", "2")
    said("-i", "east", "packet", "export")
    with pytest.raises(UsageError, match=rf"{begins} 3, and not after {last}; what it has already is passed over"):
        said("-i", "east", "epochs", "set", "west", "3")
    assert told("-i", "east", "epochs")["replicas"][1]["seqno"] == last, "nothing has changed"
