"""The control words: no two in the same place."""

from __future__ import annotations

from replicate.limits import READERS_MAX, REGIONS_MAX
from replicate.pool import control

SIZES = {
    "POOL_INSTANCE": 2,
    "SLEEPERS": READERS_MAX // 8,
    "DEFINITION_OFFSET": control.DEFINITIONS_MAX,
    "REGION_APPENDED": REGIONS_MAX,
    "REGION_DONE": REGIONS_MAX,
    "REGION_SCHEMA": REGIONS_MAX,
    "FOREIGN": control.FOREIGN_MAX * control.FOREIGN_WORDS,
}
NO_WORDS = {
    "CONTROL_BYTES",
    "HOME_OFFSET",  # in bytes
    "HOME_BYTES_MAX",
    "CONTROL_WORDS",
    "STATE_BUILDING",
    "STATE_READY",
    "STATE_CLOSED",
    "ROLE_PRIMARY",
    "ROLE_SECONDARY",
    "COMMIT_WORDS_END",
    "SLEEPERS_WORDS",
    "SLEEPERS_OFFSET",
    "DEFINITIONS_MAX",
    "FOREIGN_MAX",
    "FOREIGN_WORDS",
    "ARRAYS_END",
    "READERS_MAX",
    "REGIONS_MAX",
}


def test_no_two_words_overlap_and_all_fit() -> None:
    owner: dict[int, str] = {}
    for name, first in vars(control).items():
        if not name.isupper() or name in NO_WORDS:
            continue
        for index in range(first, first + SIZES.get(name, 1)):
            assert index < control.CONTROL_WORDS, name
            assert index not in owner, f"{name} and {owner.get(index)}"
            owner[index] = name


def test_what_readers_poll_has_a_cache_line_of_its_own() -> None:
    assert control.EARLY % 8 == 0
    assert control.EARLY // 8 == control.WRITTEN // 8 == control.LAST_PUBLISHED_SEQNO // 8
    assert control.BARRIER_EXPIRES_NS // 8 != control.EARLY // 8 != control.SLEEPERS // 8
