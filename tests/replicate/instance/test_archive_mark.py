"""instance/archive_mark.py: what the configured archive has reached counts; what cannot be read is no number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicate.errors import DamagedError, FormatUnknownError
from replicate.instance.archive_mark import NAME, archived_seqno, look_at_archive, note_archived
from replicate.instance.instance import Instance
from replicate.journal.segment import segment_name
from tests.harness.instances import make_primary, with_settings

pytestmark = pytest.mark.usefixtures("shared_memory")


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return make_primary(tmp_path / "alpha")


def archiving(instance: Instance, uri: str) -> Instance:
    return with_settings(instance, f'[journal]\narchive = "{uri}"\n')


def test_without_an_archive_nothing_is_known(instance: Instance) -> None:
    assert (archived_seqno(instance), look_at_archive(instance)) == (None, None)


def test_a_number_counts_for_the_archive_that_reached_it(instance: Instance) -> None:
    one = archiving(instance, "/archive")
    assert archived_seqno(one) == 0
    note_archived(one, 41)
    assert archived_seqno(Instance.open(one.path)) == 41
    assert archived_seqno(archiving(one, "/another")) == 0, "of that one nothing is known"
    assert archived_seqno(archiving(one, "/archive")) == 41


@pytest.mark.parametrize("text", ["{", "7", "[]", '{"format": 1}', '{"format": 1, "uri": "/archive", "seqno": "x"}'])
def test_what_makes_no_sense_is_damage_and_a_newer_one_is_named(instance: Instance, text: str) -> None:
    one = archiving(instance, "/archive")
    (one.consumers_directory / NAME).write_text(text)
    (one.consumers_directory / NAME).chmod(0o600)
    with pytest.raises(DamagedError, match="how far the archive reaches"):
        archived_seqno(one)
    (one.consumers_directory / NAME).write_text(json.dumps({"format": 2, "uri": "/archive", "seqno": 4}))
    with pytest.raises(FormatUnknownError, match="format 2"):
        archived_seqno(one)


def test_sealed_segments_that_it_has_not_are_waiting(instance: Instance) -> None:
    one = archiving(instance, "/archive")
    for path in one.journal_directory.glob("*.journal"):
        path.unlink()
    for first in (1, 11, 21, 31):
        (one.journal_directory / segment_name(first)).write_bytes(b"x" * 4096)
    blocks = (one.journal_directory / segment_name(11)).stat().st_blocks * 512
    for reached, sealed in ((0, 3), (10, 2), (20, 1), (30, 0)):
        note_archived(one, reached)
        found = look_at_archive(one)
        assert found is not None
        assert (found.uri, found.last_seqno, found.waiting_bytes) == ("/archive", reached, sealed * blocks)
