"""One world with partitions: a primary whose tables are in some, and a secondary that subscribes to a few of them, with
all their processes and the faults of one seed.

    PartsWorld(seed, "safety").run()     any fault at any time; at the end both hosts lose power, and are judged
    PartsWorld(seed, "liveness").run()   the faults end; within LEVEL_WITHIN_S the secondary has what it gets, and the
                                         source knows it

What ../world.py has is here, too. Guarantees: as there.
Leaves to others: how many worlds there are (campaign.py), what is planted (plants.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from replicate.door.recovery.opening import make_chain
from replicate.journal.chain import Chain
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import changes_of, decode_batch
from replicate.journal.walk import walk
from tests.simulation.base import Main
from tests.simulation.climate import Climate
from tests.simulation.faults import Faults
from tests.simulation.host import Host, config_of
from tests.simulation.parts import actors, template
from tests.simulation.parts.climate import PartsClimate
from tests.simulation.parts.loading import loader
from tests.simulation.parts.oracle import PartsOracle
from tests.simulation.recovered import found_in
from tests.simulation.world import World


class PartsWorld(World):
    """A primary, paris, and its secondary, oslo, which has some partitions."""

    climate: PartsClimate
    oracle: PartsOracle
    oracle_kind: type[PartsOracle] = PartsOracle

    def __init__(self, seed: int, mode: str, *, recording: bool = False) -> None:
        super().__init__(seed, mode, recording=recording)
        self.table_of = {
            template.first_row(number, place): number
            for number in range(len(self.climate.placed))
            for place in range(template.ROWS)
        }
        """Row -> the number of its table."""
        self.forms = [1] * len(self.climate.placed)
        """The newest form of each table, committed or not."""

    @staticmethod
    def dice_name(seed: int, mode: str) -> str:
        """Others than those of a world without."""
        return f"parts/{seed}/{mode}"

    def make_climate(self) -> Climate:
        """As climate.py draws it."""
        return PartsClimate(self.dice)

    def begin(self) -> None:
        """Both hosts as the template has them, and nobody running."""
        config = config_of(self.dice, self._durability)
        (disk, regions), (disk_there, regions_there) = template.made(
            self.climate.placed, self.climate.wanted, self.climate.chosen
        )
        self.primary = Host("paris", disk.copy(), [region.copy() for region in regions], config)
        self.secondary = Host("oslo", disk_there.copy(), [region.copy() for region in regions_there], config)
        self.hosts = (self.primary, self.secondary)
        self.network.join(self.hosts)
        partition_of = {row: self.climate.placed[number][1] for row, number in self.table_of.items()}
        regions = self.primary.regions, self.secondary.regions
        self.oracle = self.oracle_kind(*regions, partition_of, self.table_of, self.climate)
        self.faults = Faults(self, self.climate)

    def watched(self) -> AbstractContextManager[None]:
        """As actors.py has it."""
        return actors.watched(self)

    def actors_of(self, host: Host) -> list[tuple[str, Main]]:
        """Those of a world without, but for what the writers write."""
        there = super().actors_of(host)
        if host is self.secondary and self.climate.left is not None:
            there.append(("operator", actors.operator))
        if host is self.secondary and self.climate.loads:
            there.append(("loader", loader))
        return [(name, actors.writer if name.startswith("writer") else main) for name, main in there]

    def look(self, host: Host, door: Any, last_seqno: int) -> None:
        """The host has recovered."""
        super().look(host, door, last_seqno)
        chain = make_chain(door.instance)
        if host is self.primary:
            self._note_frames(chain, last_seqno)
            return
        for number in chain.first_seqnos():
            if not chain.segment(number).header.is_partial:
                self._look_at_unmarked(chain, number)

    def _look_at_unmarked(self, chain: Chain, first_seqno: int) -> None:
        with chain.open(first_seqno) as segment:
            if segment.header.adopted:
                return  # its parts are proven by the frame that commits them
            begin, end = segment.read_catalogue()[1], segment.scan().end_offset
            for body in decode_batch(segment.read_some(end - begin, begin))[2::3]:
                self.oracle.check_unmarked(body[1], changes_of(body))
        self.figures["unmarked segments judged"] += 1

    def _note_frames(self, chain: Chain, last_seqno: int) -> None:
        for found in found_in(chain, last_seqno):
            if isinstance(found, LargeTransaction):
                self.oracle.note_large(found)
                continue
            bodies = decode_batch(found.data)[2::3]
            for body, (_, head) in zip(bodies, walk(found.data), strict=True):
                self.oracle.note_frame(head.seqno, head.origin, head.origin_seqno, changes_of(body))

    def is_level(self) -> bool:
        """As there, with what was loaded."""
        return super().is_level() and not self.oracle.lacks_loaded()

    def told_places(self) -> str:
        """As there; and whether something is to be loaded."""
        more = "; not all that was to be loaded is there" if self.oracle.lacks_loaded() else ""
        return f"{super().told_places()}{more}"

    def count_figures(self) -> None:
        """As there; and what never left."""
        super().count_figures()
        self.figures["rows kept back"] += self.oracle.kept_back
        self.figures["worlds with a part"] += self.climate.wanted is not None
        self.figures["rows beyond a condition"] += self.oracle.beyond
        self.figures["worlds with some rows"] += bool(self.climate.chosen)
        self.figures["worlds with some columns"] += any(one.has_list for _, one in self.climate.chosen)

    def make_template(self) -> None:
        """With its tables, and what the secondary subscribes to."""
        template.made(self.climate.placed, self.climate.wanted, self.climate.chosen)
