"""status/replays.py: what a replay took is kept for `status`, and what can not be read is not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicate.instance.instance import Instance
from replicate.status.catching_up import Took
from replicate.status.replays import LEAST_CHANGES, NAME, look_at_replays, note_replay


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.create(tmp_path / "west", role="secondary", name="west", network=b"n" * 16)


def test_the_last_one_of_each_engine_is_kept(instance: Instance) -> None:
    assert look_at_replays(instance) == {}
    note_replay(instance, "local", Took(LEAST_CHANGES, 2.0))
    note_replay(instance, "spark", Took(5_000_000, 20.0, 9.5))
    note_replay(instance, "local", Took(300_000, 3.0))
    assert look_at_replays(instance) == {"local": Took(300_000, 3.0), "spark": Took(5_000_000, 20.0, 9.5)}
    assert Took(5_000_000, 20.0, 9.5).of(1_000_000) == 13.5


@pytest.mark.parametrize("took", [Took(LEAST_CHANGES - 1, 2.0), Took(LEAST_CHANGES, 0.0)])
def test_one_that_says_nothing_is_not(instance: Instance, took: Took) -> None:
    note_replay(instance, "local", Took(LEAST_CHANGES, 2.0))
    note_replay(instance, "local", took)
    assert look_at_replays(instance) == {"local": Took(LEAST_CHANGES, 2.0)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "null",
        '{"format": 2, "engines": {"local": {"changes": 200000, "seconds": 1, "start_s": 0}}}',
        '{"format": 1, "engines": {"local": {"changes": 200000, "seconds": 1}}}',
        '{"format": 1, "engines": {"local": {"changes": 0, "seconds": 1, "start_s": 0}}}',
        '{"format": 1, "engines": {"local": {"changes": 200000, "seconds": 0, "start_s": 0}}}',
        '{"format": 1, "engines": {"local": {"changes": 200000, "seconds": NaN, "start_s": 0}}}',
        '{"format": 1, "engines": {"local": {"changes": 200000, "seconds": 1, "start_s": Infinity}}}',
        '{"format": 1, "engines": {"local": {"changes": Infinity, "seconds": 1, "start_s": 1}}}',
        '{"format": 1, "engines": [1]}',
        '{"format": 1, "engines": {"live": {"changes": 200000, "seconds": 1, "start_s": 0}}}',
    ],
)
def test_what_makes_no_sense_is_not_known_and_is_replaced(instance: Instance, text: str) -> None:
    path = instance.run_directory / NAME
    path.write_text(text)
    path.chmod(0o600)
    assert look_at_replays(instance) == {}
    note_replay(instance, "spark", Took(LEAST_CHANGES, 1.0, 2.0))
    assert look_at_replays(instance) == {"spark": Took(LEAST_CHANGES, 1.0, 2.0)}
    assert json.loads(path.read_text())["format"] == 1


def test_a_replay_that_is_done_does_not_fail_by_it(instance: Instance) -> None:
    (instance.run_directory / NAME).mkdir()
    note_replay(instance, "local", Took(LEAST_CHANGES, 2.0))
    assert look_at_replays(instance) == {}
