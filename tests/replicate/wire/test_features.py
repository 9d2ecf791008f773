"""Versions of the protocol, and which features may be used in which."""

from __future__ import annotations

from replicate.wire import features
from replicate.wire.features import FEATURE_SINCE, FEATURES, PROTOCOL, Protocol
from replicate.wire.message import FEATURES_MAX


def test_each_feature_that_is_named_may_be_used_since_some_version_that_we_speak() -> None:
    named = {value for name, value in vars(features).items() if name.startswith("FEATURE_") and isinstance(value, str)}
    assert named == set(FEATURES)
    assert len(FEATURES) == len(named) <= FEATURES_MAX
    assert all(0 <= since <= PROTOCOL.minor for since in FEATURE_SINCE.values())


def test_what_earlier_releases_know_stays_as_it_is() -> None:
    """They match names to the letter."""
    first = [name for name in FEATURES if FEATURE_SINCE[name] < 2]
    assert first == ["zstd", "seed-1"]
    assert [FEATURE_SINCE[name] for name in first] == [0, 1]


def test_a_version_is_told_and_ordered_by_its_numbers() -> None:
    assert str(Protocol(1, 10)) == "1.10"
    assert Protocol(1, 9) < Protocol(1, 10) < Protocol(2, 0)
