"""The campaign of suppliers in short: rounds with real processes, and what is planted for the judgement to find."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.faults import supplier_worlds as worlds
from tests.faults.supplier_island import ISLAND, ISLAND_LEAST
from tests.faults.supplier_judge import DIVERGED, LOST, STOPPED, UNRECORDED, judge
from tests.faults.supplier_writer import Acknowledged
from tests.faults.suppliers import ROUNDS, SUPPLIERS_ZERO, NotAtRest, Three, one_island, suppliers
from tests.harness.supplier_street import MESH, by_hand, reading

pytestmark = pytest.mark.slow
ROUNDS_MAX = 6
BRIEF = {"load": 5, "backlog": 60, "cut_s": 6}
DELETE = """
import sys, replicate
connection = replicate.connect(sys.argv[1], timeout=60)
connection.execute("DELETE FROM ta")
connection.commit()
connection.close()
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """One for all tests, which leave it at rest: but for the last one. It has two regions."""
    with suppliers(tmp_path_factory.mktemp("three"), random.Random(1), ways=MESH, have_stock=True) as made:
        made.load, made.backlog, made.cut_s = BRIEF["load"], BRIEF["backlog"], BRIEF["cut_s"]
        yield made


@pytest.mark.parametrize(
    "name", ["island", *(pytest.param(one, marks=pytest.mark.turns(7)) for one in ROUNDS if one != "island")]
)
def test_all_come_to_rest_with_everything(three: Three, name: str) -> None:
    three.live(name)
    three.judge()
    assert {one: three.figures[one] for one in SUPPLIERS_ZERO} == dict.fromkeys(SUPPLIERS_ZERO, 0)


def lived(three: Three) -> None:
    """It has lived a round, also where no test before has, and lost values in it: a short one may lose none."""
    for _ in range(ROUNDS_MAX):
        if three.figures["suppliers: values lost in merges"]:
            return
        three.live("island")
        three.judge()


def test_each_figure_finds_what_is_planted(three: Three) -> None:
    """What nobody has written, a row changed by hand, one that no transaction made, lost values that nobody knows."""
    lived(three)
    assert three.figures["suppliers: transactions judged"] > 100
    assert three.figures["suppliers: values lost in merges"] > 0
    c, stock = three.street.paths_of("c")
    by_hand(c, "UPDATE ta SET v = 'by hand' WHERE number = 1 AND writer = (SELECT min(writer) FROM ta)")
    by_hand(c, "INSERT INTO named VALUES ('k99', 'n', 'm')", "UPDATE counted SET n = n + 1 WHERE id = 'c1'")
    by_hand(stock, "INSERT INTO parts VALUES ('k99', 'n', 'm')")
    kept = {}
    for path in (c, stock):  # a round may have lost values in one of them alone
        with reading(path) as connection:
            kept[path] = list(connection.execute("SELECT id, seqno, state, hex(facts) FROM _replicate_conflict"))
        by_hand(path, "DELETE FROM _replicate_conflict")
    figures = Counter[str]()
    told = {**three.told(), ("b", 999): Acknowledged(2, [("named", "of nobody")], [])}
    judge(three.street, told, figures)
    assert figures[LOST] == 7, "both numbers at each of three, and the value"
    text = "a row and a counter here and there; in each region one row more; those and the counter by transactions"
    assert figures[DIVERGED] == 9, text
    assert figures[UNRECORDED] > 0
    by_hand(c, f"UPDATE ta SET v = '{'x' * 20}' WHERE v = 'by hand'", "DELETE FROM named WHERE id = 'k99'")
    by_hand(c, "UPDATE counted SET n = n - 1 WHERE id = 'c1'")
    by_hand(stock, "DELETE FROM parts WHERE id = 'k99'")
    put_back = "INSERT INTO _replicate_conflict VALUES ({}, {}, '{}', x'{}')"
    for path, rows in kept.items():
        by_hand(path, *(put_back.format(*one) for one in rows))
    figures.clear()
    judge(three.street, three.told(), figures)
    assert not any(figures[name] for name in SUPPLIERS_ZERO)


def test_one_that_stops_by_name_is_found(three: Three) -> None:
    """Somebody has deleted a row there, which its writer deletes, too."""
    lived(three)
    by_hand(three.street.path_of("c"), "DELETE FROM ta")
    assert three.street.rows("a")["ta"], "a round has left some"
    three.street.finish([three.street.python(DELETE, str(three.street.by["a"]))])
    with pytest.raises(NotAtRest):
        three.level()
    assert three.figures[STOPPED] == 1


@pytest.mark.turns(7)
def test_an_island_of_any_length_ends_with_everything() -> None:
    figures: Counter[str] = Counter()
    one_island(1, 10, figures)
    assert {one: figures[one] for one in SUPPLIERS_ZERO} == dict.fromkeys(SUPPLIERS_ZERO, 0)
    told = ("restored from a backup meanwhile", "turned back to a snapshot of the time", "journals trimmed afterwards")
    assert all(figures[one] for one in (*ISLAND_LEAST, *(f"{ISLAND}{one}" for one in told)))


# Worlds in memory.


def test_worlds_of_every_kind_end_well() -> None:
    figures: Counter[str] = Counter()
    for kind, (world, _) in worlds.IN_MEMORY.items():
        for seed in range(7_000, 7_004):
            worlds.live(kind, world, seed, figures)
    assert figures[worlds.WRONG] == 0
    assert figures["supplier worlds: values lost"] > 0


def test_a_loser_that_is_not_kept_is_found_in_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds.registers, "lost", lambda *_: [])
    figures: Counter[str] = Counter()
    for seed in range(7_000, 7_010):
        worlds.live("registers", worlds.of_registers, seed, figures)
    assert figures[worlds.WRONG] > 3


def test_stamps_that_are_forgotten_too_early_are_found_in_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one's own vector, in place of what all have told."""
    monkeypatch.setattr(worlds.registers, "stable", lambda _members, _told, here, _own: here)
    figures: Counter[str] = Counter()
    for seed in range(7_000, 7_010):
        worlds.live("registers", worlds.of_registers, seed, figures)
    assert figures[worlds.WRONG] > 3


def test_the_part_lives_as_many_worlds_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    options = worlds.options_of(["--worlds", "10"])
    options.deadline_s = 0.0
    monkeypatch.setattr(worlds, "of_databases", lambda *_: None)  # each takes seconds
    figures: Counter[str] = Counter()
    worlds.work(options, figures)
    assert figures["supplier worlds"] == 10 + worlds.REAL
    assert figures["supplier worlds: databases"] == worlds.REAL
    assert figures[worlds.WRONG] == 0


def test_a_world_that_went_wrong_is_lived_again_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it was printed."""
    monkeypatch.setattr(worlds.registers, "lost", lambda *_: [])
    figures: Counter[str] = Counter()
    seed = 0
    while not figures[worlds.WRONG]:
        seed += 1
        worlds.live("registers", worlds.of_registers, seed, figures)
    words = capsys.readouterr().out.partition("--again ")[2].partition(")")[0]
    assert words == f"registers {seed}"
    again: Counter[str] = Counter()
    worlds.work(worlds.options_of(["--again", *words.split()]), again)
    assert again["supplier worlds"] == again[worlds.WRONG] == 1
    assert f"a world of registers, seed {seed} " in capsys.readouterr().out


@pytest.mark.long
def test_a_world_of_databases_ends_well() -> None:
    figures: Counter[str] = Counter()
    worlds.live("databases", worlds.of_databases, 7_000, figures)
    assert figures[worlds.WRONG] == 0
