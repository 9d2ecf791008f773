"""A control word of a pool under two processes in its short form; the long one is `deploy/test --faults`."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from tests.faults import torn_words

SECONDS = 0.5


def test_a_control_word_is_whole_at_every_look() -> None:
    figures: Counter[str] = Counter()
    torn_words.work(argparse.Namespace(seconds=SECONDS, deadline_s=time.monotonic() + SECONDS), figures)
    assert figures["looks at a word"] >= torn_words.AT_ONCE
    assert figures["torn words"] == 0
