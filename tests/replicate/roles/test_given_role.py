"""That a role was given in a switchover is known in that incarnation, and by a file that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.given_role import NAME, note_given, was_given
from tests.harness.sites import Sites


def test_it_counts_in_its_incarnation_only(tmp_path: Path) -> None:
    sites = Sites.level(tmp_path)
    assert not was_given(sites.primary)
    sites.switch()
    note_given(sites.primary)
    assert was_given(sites.primary)
    assert not was_given(sites.secondary)
    become_secondary(sites.primary)
    assert not was_given(sites.primary)
    become_primary(sites.primary)
    assert not was_given(sites.primary)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"format": 2}', '{"format": 1, "incarnation": "1"}'])
def test_what_cannot_be_read_is_no_proof(tmp_path: Path, text: str) -> None:
    sites = Sites.level(tmp_path)
    (sites.primary.run_directory / NAME).write_text(text)
    assert not was_given(sites.primary)
