"""What a run of the tests says of a world that is bad: see slices.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import slices
from tests.simulation.plants import planted


def test_the_error_has_the_end_of_the_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "TAIL_LINES", 5)
    with planted("start point off by one"), pytest.raises(AssertionError) as caught:
        slices.live(slices.PAIR._replace(seeds=2), tmp_path, 0)
    said = str(caught.value)
    mode, seed = said.split(":")[0].split()
    story = (tmp_path / f"{mode}-{seed}.txt").read_text(encoding="utf-8").splitlines()
    assert len(story) > slices.TAIL_LINES, "no tail, but all of it"
    assert "\n".join(story[-slices.TAIL_LINES :]) in said
    assert story[0] not in said.splitlines()
    assert str(tmp_path) in said


def test_each_commit_has_seeds_of_its_own_beyond_those_of_every_run() -> None:
    firsts = [slices.first_seed_of(f"{number:010x}") for number in range(1000)]
    assert firsts == [slices.first_seed_of(f"{number:010x}") for number in range(1000)]
    assert len(set(firsts)) == 1000
    assert slices.SEEDS < min(firsts) < max(firsts) < slices.SEEDS_OF_COMMITS.stop


@pytest.mark.slow
def test_the_worlds_of_a_commit_are_told_when_they_are_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "commit_of", lambda _checkout: "0123456789")
    first = slices.first_seed_of("0123456789")
    with planted("start point off by one"), pytest.raises(AssertionError) as caught:
        slices.live_of_commit(slices.PAIR._replace(seeds_of_commit=2), tmp_path, 2)
    assert int(str(caught.value).split(":")[0].split()[1]) in range(first + 4, first + 6)
