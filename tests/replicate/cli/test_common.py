"""What verbs share: the time span that they are given, and what another host has printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.cli.common import csns_between, read_printed
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
