"""How a report is written for a terminal: what is broken into lines, and how numbers are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.limits import MIB
from replicate.status.report import SupplierReport
from replicate.status.text import COMMAND, WIDTH_LEAST, lines, seconds, size, wrapped
from tests.replicate.seeing.test_history import SECONDARY

WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30)
COMMANDS = st.sampled_from(
    [
        "replicate -i west update start",
        "replicate -i 'my site' seed --restart",
        "replicate -i east peer add west HOST:7430 --partitions sales,stock --replace",
        "kill -9 4711",
        "chmod 600 /srv/x",
    ]
)


@given(parts=st.lists(WORDS | COMMANDS, min_size=1, max_size=20), indent=st.integers(0, 6), width=st.integers(0, 200))
def test_no_line_is_longer_than_it_must_be_and_nothing_is_lost(parts: list[str], indent: int, width: int) -> None:
    text = " ".join(parts)
    broken = wrapped(text, indent, width)
    assert " ".join(" ".join(broken).split()) == text
    assert broken[0].startswith(" " * indent)
    assert all(line.startswith(" " * (indent + 2)) for line in broken[1:])
    for line in broken:
        body = line.strip()
        if len(line) > max(width, WIDTH_LEAST):
            is_one = " " not in COMMAND.sub(lambda found: found[0].replace(" ", "_"), body)
            assert is_one, "only what must stay whole is longer"


@given(before=st.lists(st.sampled_from(["look:", "then", "x" * 25]), max_size=8), command=COMMANDS)
def test_a_command_stands_on_one_line(before: list[str], command: str) -> None:
    broken = wrapped(f"{' '.join(before)} {command}", 4, 60)
    assert any(command in line for line in broken)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0.0, "0.0 s"),
        (0.04, "0.1 s"),
        (12.0, "12.0 s"),
        (0.001, "0.1 s"),
        (600, "10 min"),
        (9000, "2.5 h"),
    ],
)
def test_durations(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3 * MIB, "3.0 MiB"), (2**50, "1024.0 TiB")]
)
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text


@given(value=st.floats(0.001, 1e9))
def test_a_duration_is_never_told_as_none(value: float) -> None:
    assert not seconds(value).startswith(("0 ", "0.0 "))


def test_of_several_sources_each_says_what_is_with_it() -> None:
    sources = (
        SupplierReport("north", True, 9, 8, 7, was_level=True, is_paused=True),
        SupplierReport("south", True, 5, 5, 5, was_level=True),
        SupplierReport("west", False, 3, 3, 3, was_level=True),
    )
    told = [line.strip() for line in lines(replace(SECONDARY, suppliers=sources)) if line.strip().startswith("from ")]
    assert told == [
        "from north: written 9; received 8, applied 7, paused (XOFF)",
        "from south: written 5; received 5, applied 5",
        "from west: written 3; received 3, applied 3, not connected",
    ]
