"""XOFF and XON: at GT.M's levels where there is room, always with room for what is on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_server.flow import Flow, FlowDecision
from replicate.errors import ConfigurationError
from replicate.limits import BATCH_BYTES_MAX, MIB, RECEIVE_POOL_BYTES_MIN
from replicate.settings.table import ReceiverConfig

LEVELS = (ReceiverConfig().xoff_percent, ReceiverConfig().xon_percent)


def test_the_fields_defaults_hold_for_the_default_pool() -> None:
    flow = Flow(ReceiverConfig().pool_bytes, *LEVELS)
    assert flow.decide(0.89) is FlowDecision.NOTHING
    assert flow.decide(0.91) is FlowDecision.XOFF
    assert flow.decide(0.99) is FlowDecision.NOTHING
    assert flow.decide(0.85) is FlowDecision.NOTHING
    assert flow.decide(0.81) is FlowDecision.NOTHING
    assert flow.decide(0.79) is FlowDecision.XON
    assert flow.decide(0.10) is FlowDecision.NOTHING


@given(st.integers(RECEIVE_POOL_BYTES_MIN, 2**36), st.integers(10, 95), st.integers(1, 94))
def test_there_is_always_room(capacity: int, xoff: int, xon: int) -> None:
    if xon >= xoff:
        with pytest.raises(ConfigurationError):
            Flow(capacity, xoff, xon)
        return
    flow = Flow(capacity, xoff, xon)
    assert 0 <= flow.xon_bytes < flow.xoff_bytes <= capacity * xoff // 100 + 1
    # The window, the batch that may be sent when it is nearly used up, and one batch lost to padding at the wrap.
    assert flow.xoff_bytes + flow.window_bytes + 2 * BATCH_BYTES_MAX < capacity
    assert flow.window_bytes >= BATCH_BYTES_MAX


@given(st.lists(st.floats(0, 1), max_size=50))
def test_they_alternate(fills: list[float]) -> None:
    flow = Flow(8 * MIB, *LEVELS)
    said = [decision for fill in fills if (decision := flow.decide(fill)) is not FlowDecision.NOTHING]
    assert said == [FlowDecision.XOFF, FlowDecision.XON] * (len(said) // 2) + [FlowDecision.XOFF] * (len(said) % 2)
    assert flow.is_stopped is (len(said) % 2 == 1)


def test_a_pool_too_small_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="receive pool of 1048576"):
        Flow(MIB, *LEVELS)
