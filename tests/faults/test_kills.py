"""The kill campaign in its short form, and that it knows every failpoint of the product. Faults 1 to 10, 18, 25, 33."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.faults import places
from tests.faults.campaign import CLASSES, POLICIES, Campaign, once
from tests.faults.client import NUMBERS
from tests.faults.oracle import ZERO, Told, read_told
from tests.faults.plants import PLANTS, find, harmed
from tests.faults.rounds import FLOWING
from tests.faults.shares import KINDS, PARTITIONS, ROWS
from tests.system.test_switchover import GIVER, TAKER

SEED = 5
PARTS = {
    "a writer in its commit": ("writer", "mender"),
    "a writer with large rows and transactions": ("filler", "spooler"),
    "servers and update": ("source", "receiver", "update", "files"),
    "both hosts at once": ("both", "torn", "hole"),
    "a seed": ("seed",),
}


def test_every_failpoint_of_the_product_is_known_to_the_campaign() -> None:
    found = places.product_failpoints()
    own_tests = of_replays() + (places.ROOT / "tests/update_process/test_region_arrival.py").read_text()
    for room in ("roles", "lost", "compare", "admin", "transfer/packet"):
        own_tests += "".join(path.read_text() for path in (places.ROOT / "tests/replicate" / room).glob("*.py"))
    for test in (
        "tests/receiver_server/test_returning_primary.py",
        "tests/replicate/compare/test_repair.py",
        "tests/replicate/transfer/seed/test_some_regions.py",
        "tests/replicate/transfer/seed/test_partition.py",
        "tests/replicate/journal/test_reserve.py",
    ):
        own_tests += (places.ROOT / test).read_text()
    own_tests += " ".join(f"handover.{name}" for name in (*GIVER, *TAKER))
    unknown = {
        name: path
        for name, path in found.items()
        if name not in places.PLACES and not (path.startswith(places.ELSEWHERE) and name in own_tests)
    }
    assert not unknown, "give each a line in tests/faults/places.py, or those of ELSEWHERE a test beside their others"
    assert not places.PLACES.keys() - found.keys(), "these are gone from the product"


def test_every_class_of_rounds_is_in_the_short_form() -> None:
    assert sorted(one for part in PARTS.values() for one in part) == sorted(CLASSES)


def of_replays() -> str:
    """The tests of replays, archives and rebuilds: their own failpoints are killed at there."""
    directories = ("tests/update_process/replay", "tests/spark")
    return "".join(path.read_text() for place in directories for path in (places.ROOT / place).glob("test_*.py"))


def test_the_failpoints_of_a_replay_are_killed_at_by_its_own_tests() -> None:
    text = of_replays()
    assert [name for name, where in places.PLACES.items() if "replay" in where and name not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_kill_rounds(part: str) -> None:
    """Each failpoint of these classes once, and kills at any moment; then nothing is missing, twice, or in disorder."""
    campaign = Campaign(SEED, PARTS[part])
    campaign.run(once(campaign.classes))
    figures = {name: campaign.figures[name] for name in ZERO}
    assert figures == dict.fromkeys(ZERO, 0), (campaign.figures, campaign.strange)
    assert campaign.figures["acknowledged"] >= FLOWING
    assert campaign.figures["digests compared"] == campaign.figures["episodes"] > 0
    assert campaign.missed() == []


SHARED = ("update", "receiver", "source", "seed", "spooler", "both", "files")
SHARED_ROUNDS = 16


@pytest.mark.slow
@pytest.mark.parametrize("share", [PARTITIONS, ROWS])
def test_kill_rounds_where_the_secondary_gets_a_part(share: str) -> None:
    """Its rows are the primary's, restricted, and nothing else is there."""
    _restricted(Campaign(SEED, SHARED, share=share), SHARED_ROUNDS)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("share", [PARTITIONS, ROWS])
def test_every_failpoint_where_the_secondary_gets_a_part(share: str) -> None:
    campaign = Campaign(SEED, share=share)
    _restricted(campaign, once(campaign.classes))
    assert campaign.missed() == []


def _restricted(campaign: Campaign, rounds: int) -> None:
    campaign.run(rounds)
    assert {name: campaign.figures[name] for name in ZERO} == dict.fromkeys(ZERO, 0), (
        campaign.figures,
        campaign.strange,
    )
    assert campaign.figures["digests compared"] == campaign.figures["episodes"] > 0
    assert campaign.figures["transactions that a part is wanted of, or nothing"] > 0


def test_a_campaign_has_each_kind_of_secondary_under_each_durability() -> None:
    found = {(POLICIES[number % len(POLICIES)], KINDS[number % len(KINDS)]) for number in range(12)}
    assert found == {(policy, share) for policy in POLICIES for share in KINDS}


def test_the_same_seed_chooses_the_same_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(seed: int) -> list[object]:
        seen: list[object] = []
        campaign = Campaign(seed)

        def note(number: int, durability: str, rounds: object) -> None:
            seen.append((number, durability, rounds))
            campaign.figures["rounds"] += 60

        monkeypatch.setattr(campaign, "episode", note)
        campaign.run(200)
        return seen

    assert chosen(1) == chosen(1) != chosen(2)


def test_what_a_killed_client_was_not_told_is_unknown(tmp_path: Path) -> None:
    lines = [
        {"op": NUMBERS + 1, "t": 1},
        {"op": NUMBERS + 1, "t": 2, "result": "ok", "seqno": 7},
        {"op": NUMBERS + 2, "t": 3},
        {"op": NUMBERS + 2, "t": 4, "result": "failed"},
        {"op": NUMBERS + 3, "t": 5},
        {"op": NUMBERS + 3, "t": 6, "result": "unknown"},
        {"op": NUMBERS + 4, "t": 7},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "client-1.jsonl").write_text(text + '{"op": 1000005, "t"')  # half a line: the client died in it
    told = read_told(tmp_path)
    assert told == Told({NUMBERS + 1: 7}, {NUMBERS + 1: 2}, {NUMBERS + 2}, {NUMBERS + 3, NUMBERS + 4})
    assert told.submitted == 4


def test_the_figures_count_what_is_wrong() -> None:
    figures: Counter[str] = Counter()
    from tests.faults.oracle import note

    note(figures, "gaps", 0, "nothing")
    note(figures, "gaps", 2, "a hole")
    assert figures == Counter({"gaps": 2, "found: a hole": 2})


@pytest.mark.parametrize("name", PLANTS)
def test_each_planted_bug_still_finds_its_place(name: str) -> None:
    changed = harmed(name)
    compile(changed, PLANTS[name].file, "exec")
    assert changed != (places.ROOT / PLANTS[name].file).read_text()


@pytest.mark.slow
def test_a_planted_bug_is_found() -> None:
    assert find("fsync retried")[0]
