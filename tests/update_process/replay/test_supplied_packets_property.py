"""Random worlds of real suppliers that all write one table: packets are lost, doubled, late and recovered, lines bring
something now and then. In the end all have the same rows. (The decisions alone: test_vector_order_worlds.py.)"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from replicate.errors import GapError
from replicate.instance.consumers import Consumer, write_consumer
from replicate.transfer.packet import vector_order as orders
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.packet.format import PacketSummary
from tests.harness.packets import get_packets, now_ns, said, sent, take
from tests.harness.suppliers import Suppliers, shared
from update_process.replay.packets import import_packets

UNIQUE = "CREATE TABLE u (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, n)"
STEPS = 24


@pytest.fixture(autouse=True)
def _own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")


class Town:
    """So many suppliers, and what is on its way to each."""

    def __init__(self, directory: Path, count: int, seed: int) -> None:
        self.made = get_packets(shared(directory, count, schema=(UNIQUE,)))
        self.rng = random.Random(seed)
        self.underway: list[tuple[str, Path]] = []

    def write(self, name: str) -> None:
        rng, connection = self.rng, self.made.connect(name)
        for _ in range(rng.randint(1, 3)):
            key = rng.randint(1, 4)
            connection.execute(
                *rng.choice(
                    [
                        ("INSERT OR IGNORE INTO ta VALUES (?, ?, 0)", (key, name)),
                        ("UPDATE ta SET v = ? WHERE id = ?", (f"{name}{rng.randrange(99)}", key)),
                        ("UPDATE ta SET n = ? WHERE id = ?", (rng.randrange(99), key)),
                        ("DELETE FROM ta WHERE id = ?", (key,)),
                        ("INSERT OR IGNORE INTO u (name, n) VALUES (?, ?)", (f"n{key}", name)),
                        ("UPDATE u SET n = n || ? WHERE name = ?", (name, f"n{key}")),
                    ]
                )
            )
            connection.commit()
        connection.close()

    def step(self) -> None:
        rng, names = self.rng, list(self.made.names)
        name = rng.choice(names)
        others = [one for one in names if one != name]
        what = rng.random()
        if what < 0.4:
            self.write(name)
        elif what < 0.65:
            targets = rng.sample(others, rng.randint(1, len(others)))
            for path in sent(self.made, name, *targets):
                self.underway += [(target, path) for target in targets if rng.random() < 0.8]
        elif what < 0.85:
            here = [path for target, path in self.underway if target == name]
            taken = rng.sample(here, rng.randint(0, len(here)))
            import_packets(self.made.by[name], taken, now_s=0)
            if rng.random() < 0.7:
                self.underway = [one for one in self.underway if one[0] != name or one[1] not in taken]
        elif what < 0.95:
            self.line(name, rng.choice(others), rng.choice([1, 3, None]))
        else:
            other = rng.choice(others)
            directory = self.made.by[name].consumers_directory
            numbers = [one.number for one in read_epochs(directory).exports if other in one.targets]
            if numbers:
                number = rng.choice(numbers)
                change_epochs(directory, lambda known: known.recovered(other, number))

    def line(self, source: str, target: str, most: int | None) -> None:
        """All of it is acknowledged."""
        self.made.carry(source, target, most=most)
        if most is None:
            instance = self.made.by[source]
            uuid = self.made.by[target].content.uuid.hex()
            write_consumer(instance.consumers_directory, Consumer(target, self.made.last_seqno(source), uuid, now_ns()))

    def heal(self) -> None:
        """What operators do about what was lost."""
        made = self.made
        for _ in range(len(made.names) + 1):
            for name in made.names:
                for other in made.names:
                    if other != name:
                        take(made.by[name], said(made, other, name))
                        change_epochs(made.by[name].consumers_directory, lambda known, to=other: known.confirmed(to))
                        take(made.by[other], *sent(made, name, other))
            if len({tuple(sorted(made.vector(name).items())) for name in made.names}) == 1:
                return


@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.parametrize(("count", "seed"), [(2, 1), (2, 2), (3, 3), (3, 4), (3, 5), (4, 6)])
def test_all_come_to_the_same_rows(count: int, seed: int, tmp_path: Path) -> None:
    town = Town(tmp_path, count, seed)
    for _ in range(STEPS):
        town.step()
    town.heal()
    town.made.assert_converged_but_for("sqlite_sequence")


def test_a_base_that_is_not_looked_at_is_stopped_by_the_applier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, and nothing of it is applied: every transaction proves what comes before it of its origin."""
    two = get_packets(Suppliers.create(tmp_path))
    two.write("a", 1)
    sent(two, "a", "b")
    two.write("a", 1)
    (path,) = sent(two, "a", "b")

    def all_fit(packet: PacketSummary, *_: object) -> bool:
        return not packet.is_receipt

    monkeypatch.setattr(orders, "_fits", all_fit)
    before = two.last_seqno("b")
    with pytest.raises(GapError):
        take(two.by["b"], path)
    assert two.last_seqno("b") == before
