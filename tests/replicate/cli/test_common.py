"""What verbs share: the time span that they are given, what another host has printed, and how many lines are held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.cli.common import columns, csns_between, emit_lines, read_printed
from replicate.errors import JournalIOError, ReplicateError
from replicate.model.moment import first_csn, last_csn
from replicate.model.vector import U64_MAX

TOLD_US = 1_893_456_000_000_000
TOLD = "2030-01-01T00:00:00Z"


def test_a_span_reaches_from_its_first_csn_to_its_last() -> None:
    assert csns_between(None, None) == (0, U64_MAX)
    assert csns_between(TOLD, None) == (first_csn(TOLD_US), U64_MAX)
    assert csns_between(None, TOLD) == (0, last_csn(TOLD_US))
    assert csns_between(TOLD, TOLD) == (first_csn(TOLD_US), last_csn(TOLD_US))


@pytest.mark.parametrize(("given", "option"), [(("soon", None), "--since"), ((None, "soon"), "--until")])
def test_what_is_no_time_is_told_by_its_option(given: tuple[str | None, str | None], option: str) -> None:
    with pytest.raises(ReplicateError, match="soon") as caught:
        csns_between(*given)
    assert option in str(caught.value)


def test_what_another_host_printed_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "printed"
    path.write_bytes('{"name": "öre"}\xff'.encode("latin-1"))
    assert read_printed(str(path), "ruv").startswith('{"name": "')
    with pytest.raises(JournalIOError, match="cannot be read") as caught:
        read_printed(str(tmp_path / "none"), "ruv")
    assert "replicate -i OTHER --json ruv >FILE" in str(caught.value)


def test_long_lines_are_printed_before_more_of_them_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []

    def lines() -> Iterator[str]:
        for _ in range(5):
            yield "x" * 1_000_000
            printed.append(len(capsys.readouterr().out))

    assert emit_lines(lines())
    assert printed == [1_000_001] * 5
    assert emit_lines(str(number) for number in range(1000))
    assert capsys.readouterr().out.split() == list(map(str, range(1000)))


def test_a_table_is_aligned() -> None:
    rows = [("table", "n"), ("a", 1), ("long", 100)]
    assert columns(rows) == ["table  n", "a      1", "long   100"]
    assert columns(rows, numbers={1}) == ["table    n", "a        1", "long   100"]
    assert columns(rows[:1], numbers={1}) == ["table  n"]
    assert columns([]) == []
