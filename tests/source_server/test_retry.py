"""Hard tries, then soft ones for ever (GT.M: 5 each 0.5 s, then each 5 s)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicate.settings.table import SourceConfig
from source_server.retry import JITTER, Attempt, Retry, Tries

DEFAULTS = (SourceConfig().hard_tries, SourceConfig().hard_period_s, SourceConfig().soft_period_s)


def test_the_fields_defaults() -> None:
    retry = Retry(*DEFAULTS)
    attempts = [retry.next_attempt(0.5) for _ in range(8)]
    assert attempts[:5] == [Attempt(Tries.HARD, number, 0.5) for number in range(1, 6)]
    assert [(a.tries, a.number, a.wait_s) for a in attempts[5:]] == [(Tries.SOFT, n, 5.0) for n in (1, 2, 3)]


def test_zero_hard_tries_means_none() -> None:
    assert Retry(0, *DEFAULTS[1:]).next_attempt(0.5).tries is Tries.SOFT


def test_the_stream_gives_hard_tries_back_and_a_refusal_takes_them() -> None:
    retry = Retry(*DEFAULTS)
    for _ in range(20):
        retry.next_attempt(0.5)
    retry.streaming()
    assert retry.next_attempt(0.5) == Attempt(Tries.HARD, 1, 0.5)
    retry.refused()
    assert retry.next_attempt(0.5).tries is Tries.SOFT
    retry.refused()
    assert retry.next_attempt(0.5).number == 2
    retry.streaming()
    assert retry.next_attempt(0.5).tries is Tries.HARD


@given(st.floats(0.01, 100), st.floats(-1, 2))
def test_waits_are_never_zero_and_jittered_within_bounds(period_s: float, jitter: float) -> None:
    retry = Retry(hard_tries=1, hard_period_s=0.0, soft_period_s=period_s)
    assert retry.next_attempt(jitter).wait_s > 0
    wait_s = retry.next_attempt(jitter).wait_s
    assert (1 - JITTER) * period_s * 0.999 <= wait_s <= (1 + JITTER) * period_s * 1.001
