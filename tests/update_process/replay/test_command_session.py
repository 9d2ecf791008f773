"""The Spark session of a replay: made once, and only where it is asked for."""

from __future__ import annotations

from contextlib import nullcontext

from update_process.replay.command import one_session


def test_a_session_is_made_once_and_when_it_is_asked_for() -> None:
    made: list[object] = []
    with one_session(lambda: nullcontext(made.append(1) or object())) as get:
        assert get is not None
        assert not made
        assert get() is get()
        assert len(made) == 1
    with one_session(None) as nothing:
        assert nothing is None
