"""The closing table has every column that the project's catalogue of faults names, measured or not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults import (
    campaign,
    crash_states,
    injections,
    long,
    part,
    places,
    pool_storm,
    power,
    report,
    soak,
    supplier_worlds,
    suppliers,
)
from tests.faults.damage import DAMAGE_ZERO

NAMED = (
    "seed", "length", "commit", "machine", "left out", "rounds by class", "failpoints hit", "submitted / acknowledged",
    "unknown", "acknowledged but missing", "failed but present", "duplicates", "gaps", "order errors",
    "digests compared / unequal", "rolled back / in lost files", "rolled back and in no lost file",
    "in a lost file and not rolled back", "crash states enumerated / told apart and judged / violations",
    "operations looked at / operations", "operations with every state", "places in the code met / there are",
    "mutations tried / detected",
    "accepted wrongly", "silently shortened", "recovery ms", "time to notice ms", "by kind of death", "time to recover",
    "peak memory", "peak descriptors", "peak disk", "did not converge", "planted bugs found",
    "suppliers: acknowledged and lost", "suppliers: diverged", "suppliers: conflicts not recorded",
    "suppliers: stopped by name", "worlds of suppliers",
)  # fmt: skip


def closing(figures: dict[str, int]) -> str:
    return report.closing(figures, seed=5, seconds=61.4, hours=0.5, machine="a machine", left_out=["power (not root)"])


@pytest.mark.parametrize("name", NAMED)
def test_every_figure_has_its_place(name: str) -> None:
    assert name in closing({})


def test_what_nobody_has_measured_is_not_called_zero() -> None:
    text = closing({})
    assert text.count(report.NOT_MEASURED) == len(report.COLUMNS) + len(report.ALL_ZERO)
    assert closing({"gaps": 0}).count(report.NOT_MEASURED) == len(report.COLUMNS) + len(report.ALL_ZERO) - 1
    assert "61 s (0.5 h asked)" in text


def test_figures_of_parts_are_added_and_the_largest_of_most_counts() -> None:
    figures: Counter[str] = Counter()
    for gaps, most in ((1, 7), (2, 3)):
        report.merge(figures, {"gaps": gaps, "noticed ms, most: killed": most})
    assert figures == {"gaps": 3, "noticed ms, most: killed": 7}
    assert report.bad(figures) == ["gaps"]
    assert "must be 0: gaps" in closing(figures)
    assert "killed 7" in closing(figures)


@pytest.mark.parametrize(
    "zero",
    [
        campaign.CAMPAIGN_ZERO,
        power.POWER_ZERO,
        injections.INJECTION_ZERO,
        soak.SOAK_ZERO,
        DAMAGE_ZERO,
        pool_storm.STORM_ZERO,
        suppliers.SUPPLIERS_ZERO,
        (supplier_worlds.WRONG,),
    ],
    ids=["campaign", "power", "injections", "soak", "damage", "pool storm", "suppliers", "worlds of suppliers"],
)
def test_what_must_be_zero_in_a_part_must_be_in_all(zero: tuple[str, ...]) -> None:
    assert set(zero) <= set(report.ALL_ZERO)


def test_the_shares_of_the_parts_make_a_whole() -> None:
    parts, _ = long.parts(1.0)
    assert 0.7 < sum(part.share for part in parts) <= 1.001


def test_what_is_planted_and_makes_no_difference_has_its_own_line() -> None:
    assert "cut not synced" in crash_states.FAULTY
    line = next(one for one in closing({"crash states: cut not synced": 17}).splitlines() if "cut without fsync" in one)
    assert line.endswith("  17")


def test_failpoints_that_the_campaign_leaves_to_others_are_counted() -> None:
    figures = {"failpoints defined": 3, "failpoints of the product": 5, report.HIT + "one": 4, report.HIT + "two": 1}
    assert "2 of 3, 5 times; 2 more of replay, archive, rebuild and added regions are their own tests'" in closing(
        figures
    )
    product = places.product_failpoints()
    campaigns = {name for _, name in places.plan(campaign.CLASSES)}
    others = product.keys() - campaigns
    assert others
    assert all("replay" in places.PLACES.get(name, ("replay",)) for name in others)
    assert all(product[name].startswith(places.ELSEWHERE) for name in others - places.PLACES.keys())


def test_violations_are_shown_with_the_part_that_counted_them() -> None:
    figures: Counter[str] = Counter()
    for name, told in (
        ("crash_states", {"crash states enumerated": 9, "crash states": 7, "violations": 1}),
        ("io_errors", {"violations": 2}),
        ("io_servers", {"violations": 4}),
    ):
        report.merge(figures, {**told, **long.of_part(long.Part((f"tests.faults.{name}",), 0.1), told)})
    ext4 = long.Part(("tests.faults.power", "--filesystem", "ext4"), 0.1)
    report.merge(figures, long.of_part(ext4, {"recoveries": 3}))
    lines = {" ".join(line.split()) for line in closing(figures).splitlines()}
    assert "crash states enumerated / told apart and judged / violations 9 / 7 / 1" in lines
    assert "violations by part crash_states 1, io_errors 2, io_servers 4" in lines
    assert "recoveries from a power loss, by file system ext4 3" in lines
    assert "must be 0: violations 7" in lines


def test_what_a_storm_of_the_pool_tells_is_counted() -> None:
    figures: Counter[str] = Counter()
    reader = {"from_pool": 5, "from_files": 2, "laps": 1, "damaged_records": 3}
    told = {"killed": {"a step": 4}, "killed_outside": 2, "log": "", "readers": [reader, {}]}
    pool_storm.take({**told, "failed": 0, "finished": True}, figures)
    assert report.bad(figures) == ["damaged pool records"]
    pool_storm.take({**told, "failed": 1, "finished": False}, figures)
    assert {*report.bad(figures)} == {*pool_storm.STORM_ZERO} - {"parts that failed"}
    assert "kills 12, laps 2, storms 2, transactions read 14" in closing(figures)


def test_a_part_that_looked_at_nothing_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part.signal, "signal", lambda *_: None)  # those of this process stay what they are
    options = part.parser("a part").parse_args([])
    assert part.run_part(options, lambda _, figures: figures.update(rounds=1), ("gaps",), least=("rounds",)) == 0
    assert part.run_part(options, lambda *_: None, ("gaps",), least=("rounds",)) == 1
    assert "nothing was looked at: rounds is 0" in capsys.readouterr().out
