"""The source's side of the patrol: digests one range of keys after another, and tells the peer of each.

    run/patrol-PEER.json    where it stands, format 1

Guarantees: it takes no more of a core, and reads no more, than the settings give it and the patrol of our own indexes
(daemon/index_patrol.py), which has half while it goes; it rests while the peer has much
to catch up with, is paused, or applies nothing. A round goes on where it was when the connection or this server has
ended. What cannot be read is said once a round, and the peer counts it as passed over. Of a table that does not go to
the peer, or not whole, nothing is digested: that would tell of its rows. No filter is between the two.
Leaves to others: what a range is (compare/range_check.py), which is next (compare/patrol_rounds.py), the finds.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio
from msgspec import Struct

from replicate.compare.patrol_rounds import Place, is_within, pause_s
from replicate.compare.range_check import as_of, skip_table, take_range
from replicate.daemon.link_driver import Drive
from replicate.daemon.ticks import sleep_to_tick
from replicate.errors import ReplicateError
from replicate.model.transaction import TableDefinition
from replicate.pool import control as word
from replicate.region.sqlite.range_digest import packed_key, unpacked_key
from replicate.settings.load import parse_hours
from replicate.system.files import read_private, replace_file
from replicate.wire.message import Check
from source_server.consumer_state import ConsumerState
from source_server.link import SourceLink

FORMAT: Final = 1
LOOK_S: Final = 1.0
"""How often it is looked whether the patrol may go on."""
STORED_S: Final = 10.0
"""How often it is kept where it stands."""
BACKLOG_MAX: Final = 20_000
"""With more transactions than that not sent, or not applied, the patrol rests."""
AHEAD_MAX: Final = 64
"""So many ranges may be told of that the peer cannot verify yet, since it has not come to their transactions."""


class RoundStanding(Struct, frozen=True):
    """`place`: where the next range begins; None between two rounds. `began_wall_ns`: of the last round."""

    began_wall_ns: int = 0
    place: Place | None = None


def place_path(run_directory: Path, peer: str) -> Path:
    """Where it is kept."""
    return run_directory / f"patrol-{peer}.json"


def read_standing(run_directory: Path, peer: str) -> RoundStanding:
    """What was kept; the beginning where nothing was, or nothing that makes sense."""
    try:
        made = json.loads(read_private(place_path(run_directory, peer)))
        began, told, region, table = made["began_wall_ns"], made["told"], made["region"], made["table"]
        if made["format"] != FORMAT or type(began) is not int or type(told) is not int:
            return RoundStanding()
        if made["is_over"]:
            return RoundStanding(began)
        return RoundStanding(
            began, Place(began, told, str(region), str(table), unpacked_key(bytes.fromhex(made["after"])))
        )
    except (OSError, ReplicateError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return RoundStanding()


def keep_standing(run_directory: Path, peer: str, standing: RoundStanding) -> None:
    """Keep it. What writing a small file raises."""
    place = standing.place or Place(standing.began_wall_ns)
    facts = {
        "format": FORMAT,
        "began_wall_ns": standing.began_wall_ns,
        "is_over": standing.place is None,
        "told": place.told,
        "region": place.region,
        "table": place.table,
        "after": packed_key(place.after).hex(),
    }
    replace_file(place_path(run_directory, peer), (json.dumps(facts) + "\n").encode())


class Patrol:
    """Of one connection. `run` it beside the stream."""

    def __init__(
        self,
        consumer: ConsumerState,
        link: SourceLink,
        drive: Drive,
        goes: Callable[[TableDefinition], bool] | None = None,
    ) -> None:
        """`goes`: whether all of a table goes to the peer, as it is; None: of each."""
        self._goes = goes
        self._consumer = consumer
        self._link = link
        self._drive = drive
        self._settings = consumer.settings
        self._ahead: deque[int] = deque()
        self._standing = RoundStanding()
        self._stored_s = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether there is one at all: none past a filter, which tells rows in other words."""
        return self._settings.patrol_percent > 0 and not self._settings.filter and self._link.knows_patrol

    async def run(self) -> None:
        """Until the connection is closed, or cancelled."""
        if not self.is_wanted:
            return
        consumer, settings = self._consumer, self._settings
        hours = parse_hours(settings.patrol_hours, where="source.patrol_hours")
        self._standing = read_standing(consumer.instance.run_directory, consumer.peer_name)
        try:
            while self._drive.closed is None:
                if is_within(hours, time.localtime().tm_hour) and self._may_go() and self._has_place():
                    await self._go()
                else:
                    await sleep_to_tick(LOOK_S)
        finally:
            consumer.indexes.beside = ""
            with suppress(ReplicateError):
                keep_standing(consumer.instance.run_directory, consumer.peer_name, self._standing)

    def _may_go(self) -> bool:
        consumer, progress = self._consumer, self._consumer.progress
        while self._ahead and self._ahead[0] <= progress.last_applied_seqno:
            self._ahead.popleft()
        backlog = consumer.words[word.LAST_SEQNO] - progress.last_applied_seqno
        return (
            self._link.can_send_bulk
            and progress.is_applied_there
            and backlog <= BACKLOG_MAX
            and len(self._ahead) < AHEAD_MAX
        )

    def _has_place(self) -> bool:
        """Where it stands, or at the beginning of a round, as soon as one is due."""
        if self._standing.place is None:
            now_ns = time.time_ns()
            began_ns = min(self._standing.began_wall_ns, now_ns)  # the clock may have been set back
            if now_ns - began_ns < self._settings.patrol_round_s * 1e9:
                return False
            try:
                self._consumer.instance.reload()
            except ReplicateError:
                return False  # what is wrong with the file, `status` says
            self._standing = RoundStanding(now_ns, Place(now_ns))
        return True

    async def _go(self) -> None:
        """One range, and the rest after it."""
        consumer, settings, place = self._consumer, self._settings, self._standing.place
        assert place is not None
        words = consumer.words  # in this order: a number enters the regions' words before it becomes the last one
        last_seqno = int(words[word.LAST_SEQNO])
        appended = {one.name: int(words[word.REGION_APPENDED + one.region_id]) for one in consumer.instance.regions}
        try:
            taken = await trio.to_thread.run_sync(take_range, consumer.instance, place, self._goes)
        except ReplicateError as error:
            where = f"{place.region}.{place.table}"
            consumer.say("the patrol cannot read", where, str(error), is_warning=True, table=where, error=str(error))
            then = await trio.to_thread.run_sync(skip_table, consumer.instance, place)
            self._standing = RoundStanding(place.round_wall_ns, then)
            await trio.sleep(LOOK_S)
            return
        if taken.check is not None:
            consumer.indexes.beside = f"{taken.check.region}.{taken.check.table}".rstrip(".")
            check, region_seqno = taken.check, appended.get(taken.check.region)
            # A region that came meanwhile is not among the words that were read.
            if not await self._tell(check if region_seqno is None else as_of(check, last_seqno, region_seqno)):
                return
        self._standing = RoundStanding(place.round_wall_ns, taken.place)
        if taken.place is None:
            consumer.indexes.beside = ""
        if taken.place is None or trio.current_time() - self._stored_s > STORED_S:
            self._stored_s = trio.current_time()
            with suppress(ReplicateError):  # on a full disk it goes on, and may begin its round again
                await trio.to_thread.run_sync(
                    keep_standing, consumer.instance.run_directory, consumer.peer_name, self._standing
                )
        share = 2.0 if consumer.indexes.goes else 1.0
        rest_s = pause_s(
            busy_s=taken.busy_s,
            size=taken.size,
            percent=settings.patrol_percent / share,
            mb_per_s=settings.patrol_speed_mb / share,
        )
        await trio.sleep(rest_s)

    async def _tell(self, check: Check) -> bool:
        """As soon as the transaction was sent at which it was made. False when the connection is closed."""
        while not self._link.can_send_check(check.seqno):
            if self._drive.closed is not None:
                return False
            with trio.move_on_after(LOOK_S):
                await self._consumer.progressed.wait()
        if self._drive.closed is not None:
            return False
        self._link.send_check(check)
        self._ahead.append(check.seqno)
        self._drive.poke()
        return True
