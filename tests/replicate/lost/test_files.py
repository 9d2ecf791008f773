"""The whole look at lost files: each is told, with the reason where it cannot be read, and none hides another one."""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path

import pytest

from replicate.instance.instance import Instance
from replicate.lost.files import look_at_file, look_at_lost
from replicate.lost.unsettled import look_at_unsettled
from replicate.roles.change_of_role import become_secondary
from replicate.roles.rollback import rollback
from tests.harness.descriptors import open_descriptors
from tests.harness.sites import Sites


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Instance, Path, bytes]:
    """An instance, a lost file of three transactions beside it, and what stands in that."""
    made = Sites.level(tmp_path_factory.mktemp("lost"))
    common = made.last_seqno()
    become_secondary(made.primary)
    made.exchange()
    made.take_over()
    made.write(3)
    become_secondary(made.primary)
    rollback(made.primary, common)
    made.take_over()
    (seen,) = look_at_lost(made.secondary)
    return made.secondary, seen.path, seen.path.read_bytes()


def test_what_waits_is_counted_and_its_facts_are_told(whole: tuple[Instance, Path, bytes]) -> None:
    instance, path, _ = whole
    (seen,) = look_at_lost(instance)
    assert (seen.path, seen.transactions, seen.waiting, seen.in_history, seen.error) == (path, 3, 3, 0, "")
    assert seen.last_seqno is not None
    assert seen.last_seqno - seen.first_seqno == 3  # and the record of its incarnation
    assert seen.instance == instance.name
    assert (seen.cause, seen.written) != ("", "")


def test_a_changed_or_cut_file_is_told_and_never_counted(whole: tuple[Instance, Path, bytes]) -> None:
    instance, path, content = whole
    dice = random.Random(24)
    places = [0, 1, len(content) - 1, len(content) - 2, *dice.sample(range(len(content)), 60)]
    try:
        for at in places:
            changed = bytearray(content)
            changed[at] ^= 1 << dice.randrange(8)
            for harmed in (bytes(changed), content[:at]):
                path.write_bytes(harmed)
                (seen,) = look_at_lost(instance)
                assert seen.path == path
                assert seen.error, (at, harmed[:at][-40:])
                assert (seen.transactions, seen.waiting) == (0, 0)
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize(
    "lines", [[], [[]], [{}, {}], [{"format": 1}, {"transactions": 0}], [{"format": 2}], ["x"], [1]]
)
def test_what_is_no_file_of_ours_is_told_also_when_its_digest_fits(
    whole: tuple[Instance, Path, bytes], tmp_path: Path, lines: list[object]
) -> None:
    instance, path, content = whole
    file = tmp_path / path.name
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    file.write_bytes(body)
    assert look_at_file(file, instance.path).error
    last = json.loads(content.splitlines()[-1])
    for name in [name for name, value in last.items() if isinstance(value, str)]:
        file.write_bytes(body + json.dumps(last | {name: hashlib.sha256(body).hexdigest()}).encode() + b"\n")
        assert look_at_file(file, instance.path).error


def test_one_that_cannot_be_opened_hides_no_other(whole: tuple[Instance, Path, bytes]) -> None:
    instance, path, _ = whole
    beside = [path.with_name(f"{instance.path.name}-lost-{name}.jsonl") for name in ("0-1", "0-2", "0-3")]
    os.mkfifo(beside[0])
    beside[1].symlink_to("/etc/hostname")
    beside[2].mkdir()
    before = open_descriptors()
    try:
        seen = look_at_lost(instance)
        assert {one.path for one in look_at_unsettled(instance.path)} == {*beside, path}
        assert open_descriptors() == before, "what looks each second has none to lose"
    finally:
        beside[0].unlink()
        beside[1].unlink()
        beside[2].rmdir()
    assert {one.path: bool(one.error) for one in seen} == {**dict.fromkeys(beside, True), path: False}
