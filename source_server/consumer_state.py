"""What the Source Server knows of its one consumer: shared by the daemon, its connections, its seeds and its figures.

Guarantees: what outlives a connection stands here, in one place; the status line and its facts are told from here; the
lag moves while nothing is written; a peer that says the same thing again and again does not fill the log.
Leaves to others: how the consumer's position is stored (position.py), when to connect (process.py), what happens on a
connection (connection.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import trio
from msgspec import Struct, field

from replicate.compare.last_compare import forget_compared
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.figures import counters
from replicate.daemon.figures import facts as facts_of
from replicate.daemon.index_patrol import IndexPatrol
from replicate.daemon.last_heard import Heard
from replicate.daemon.repeated_lines import Repetitions
from replicate.daemon.statistics import Lag, Statistics, was_there_ns
from replicate.daemon.statistics_lines import configured_period_s
from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.errors import WrongInstanceError
from replicate.filters.selection import PartitionSelection
from replicate.filters.switch import FilterSwitch
from replicate.instance.consumers import read_hold, write_hold
from replicate.instance.file import PASSIVE
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, read_head
from replicate.model.contact import patience_s
from replicate.model.moment import wall_ns
from replicate.model.takeover import Takeover
from replicate.pool import control as word
from replicate.status.partition_figures import StandsAt
from replicate.wire.event import Acknowledged
from replicate.wire.message import RefuseCode, UpdateState
from source_server.link import SourceLink
from source_server.mode import Mode
from source_server.position import ConsumerPosition
from source_server.reader import FILES
from source_server.retry import Retry

WAITING: Final = "waiting for a connection"
PAUSED: Final = "waiting for XON"
STREAMING: Final = ("sending", PAUSED)


def last_word(sent_seqno: int, acknowledged_seqno: int, lacking: int) -> str:
    """How far a Source Server came that is stopped: the last transaction that was sent (0: none in this run, so what
    the peer has was sent before), the last that is durable there, and how many that are for it are not."""
    sent = max(sent_seqno, acknowledged_seqno)
    return f"sent {sent}, acknowledged {acknowledged_seqno}, {lacking} not acknowledged"


class ConsumerProgress(Struct):
    """How far the stream to the consumer is: what we have sent, and what it says itself."""

    last_sent_seqno: int = 0
    last_received_seqno: int = 0
    last_applied_seqno: int = 0
    update_state: str = ""
    """What it says of its Update Process; "": nothing yet on this connection."""
    not_applying_since_wall_ns: int = 0
    """Since when its Update Process has not been running; 0: it runs, or we do not know."""
    round_trip_s: float | None = None

    @property
    def is_applied_there(self) -> bool:
        """Whether the consumer's Update Process runs, by its last word."""
        return self.update_state in (UpdateState.RUNNING.text, UpdateState.REGION_WAITS.text)

    @property
    def region_waits(self) -> bool:
        """Whether a region of ours waits there for its seed, by its last word."""
        return self.update_state == UpdateState.REGION_WAITS.text


class KeptBack(Struct):
    """What the consumer was spared since the start, as it does not want what is changed there. `is_counted`: since a
    stream has begun that leaves anything out."""

    is_counted: bool = False
    transactions: int = 0
    frame_bytes: int = 0
    partitions: PartitionSelection | None = None
    """Of the stream that stands, or was the last one."""
    _sent: dict[int, list[int]] = field(default_factory=dict)
    _kept: dict[int, list[int]] = field(default_factory=dict)
    """Of the streams before: by partition transactions, and bytes of frames."""

    def begin(self, partitions: PartitionSelection | None) -> None:
        """A stream begins that leaves something out; what chooses partitions, if that does."""
        self._sent, self._kept = self._of_each()
        self.is_counted, self.partitions = True, partitions

    def _of_each(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        found = {**self._sent}, {**self._kept}
        partitions = self.partitions
        if partitions is not None:
            for number, counts in partitions.counts.items():
                there = found[not partitions.wants(number)]
                there[number] = [sum(both) for both in zip(counts, there.get(number, (0, 0)), strict=True)]
        return found

    def note(self, transactions: int, frame_bytes: int) -> None:
        """So many of which only the number goes, and so many bytes fewer."""
        self.transactions += transactions
        self.frame_bytes += max(0, frame_bytes)  # what is told in other words may be longer

    def figures(self, name: Callable[[int], str]) -> dict[str, Any]:
        """Those of daemon/figures.py. `name`: of a partition."""
        if not self.is_counted:
            return {}
        found: dict[str, Any] = {"kept_back": self.transactions, "kept_back_bytes": self.frame_bytes}
        for figure, of_each in zip(("partition_sent", "partition_kept_back"), self._of_each(), strict=True):
            for place, unit in enumerate(("", "_bytes") if of_each else ()):
                found[figure + unit] = {name(number): of_each[number][place] for number in sorted(of_each)}
        return found


class ReadCounts(Struct):
    """Where the transactions that are sent were read: `place` is the last one, the numbers are since the start."""

    place: str = FILES
    from_pool: int = 0
    from_files: int = 0
    switches: int = 0
    kept_back: KeptBack = field(default_factory=KeptBack)
    wants: Callable[[int], bool] | None = None
    """Whether the peer wants a partition; None: it has not said so since the start."""


class ConsumerState:
    """One consumer. Everything runs in the event loop's thread, but for what is named as running in a thread."""

    def __init__(
        self,
        context: DaemonContext,
        instance: Instance,
        door: Door,
        peer_name: str,
        switch: FilterSwitch | None = None,
    ) -> None:
        """`switch`: of the daemon's filter, as it was turned before."""
        self.context = context
        self.instance = instance
        self.door = door
        self.words = door.words
        self.peer_name = peer_name
        self.log = context.log.bind(peer=peer_name)
        self.settings = context.config.source
        self.filter = switch or FilterSwitch("source", self.settings.filter)
        self.mode = Mode(instance.peer(peer_name))
        self.position = ConsumerPosition(instance, door, peer_name, self.log)
        self.progress = ConsumerProgress()
        self.reading = ReadCounts()
        self.retry = Retry(self.settings.hard_tries, self.settings.hard_period_s, self.settings.soft_period_s)
        self.statistics = Statistics(
            configured_period_s(self.settings),
            trio.current_time(),
            seqno=self.words[word.LAST_SEQNO],
            counters=counters("source"),
            each=self.settings.statistics_transactions,
        )
        self.lag = Lag()
        self.heard = Heard(trio.current_time())
        """When the peer's last bytes came."""
        self.refused: Counter[str] = Counter()
        """Connections that either side has refused, by reason."""
        self.repetitions = Repetitions()
        """Of the lines of connections: a peer that refuses for days does not fill the disk."""
        self.progressed = trio.Event()
        """Set, and replaced, when the consumer has told how far it is."""
        self.link: SourceLink | None = None
        """Of the connection that stands."""
        self.activity = WAITING
        """What the daemon is doing: the first words of its status."""
        self.takeovers: tuple[Takeover, ...] = ()
        """What we can show another primary."""
        self.indexes = IndexPatrol(instance, self.settings, self.log)
        """The patrol of our own indexes."""
        self.is_primary_there = False
        """The peer has refused us because it is primary itself."""
        self._is_silent = False

    # What is said.

    def say(self, event: str, *reason: object, is_warning: bool = False, **fields: object) -> None:
        """A line about a connection: at once for every new reason, then once a period, with a count."""
        write = self.log.warning if is_warning else self.log.info
        self.repetitions.line(write, trio.current_time(), event, *reason, **fields)

    def tell(self, activity: str | None = None, **facts: Any) -> None:
        """The status line (None: as it was) and the facts that explain it."""
        self.activity = activity if activity is not None else self.activity
        is_silent = self.is_silent
        text = self.activity + ("; the peer is silent" if is_silent else "")
        self.context.status(text, **facts_of("source", self.measured()), **self.heard.facts(), **facts)
        if is_silent != self._is_silent:
            self._is_silent = is_silent
            self._tell_silence()

    def _tell_silence(self) -> None:
        """Once when it begins, and once when it ends, be it with the connection."""
        if not self._is_silent:
            self.log.info("the peer is silent no more", connected=self.link is not None)
            return
        self.log.warning("the peer is silent", silent_s=round(self.heard.age_s() or 0.0, 3), lag_s=self.lag_s(),
                         last_applied_seqno=self.progress.last_applied_seqno)  # fmt: skip

    # What is known.

    def measured(self) -> dict[str, Any]:
        """The figures of daemon/figures.py, now, in the order of the status."""
        words, progress, reading, statistics = self.words, self.progress, self.reading, self.statistics
        written, sent, acknowledged = words[word.LAST_SEQNO], progress.last_sent_seqno, self.position.told_seqno
        received, applied = progress.last_received_seqno, progress.last_applied_seqno
        wanted = 0 if self.is_for_later else written
        return {
            "peer": self.peer_name,
            "state": self.activity,
            "mode": self.mode.entry.mode,
            "passive": self.mode.is_passive,
            "last_written_seqno": written,
            "last_durable_seqno": words[word.LAST_DURABLE_SEQNO],
            "last_sent_seqno": sent,
            "last_received_seqno": received,
            "last_applied_seqno": applied,
            "last_acknowledged_seqno": acknowledged,
            "transactions_from_pool": reading.from_pool,
            "transactions_from_files": reading.from_files,
            "switches": reading.switches,
            "peer_update_state": progress.update_state,
            "peer_region_waits": progress.region_waits,
            "peer_not_applying_since_wall_ns": progress.not_applying_since_wall_ns,
            "lag_s": self.lag_s(),
            "heartbeat_period_s": self.settings.heartbeat_period_s,
            "round_trip_s": progress.round_trip_s,
            "source_backlog": max(0, wanted - sent) if sent else None,
            "receiver_backlog": max(0, received - applied),
            "backlog": max(0, wanted - max(applied, acknowledged)),
            "unacknowledged": max(0, wanted - acknowledged),
            "from_pool": reading.from_pool,
            "from_files": reading.from_files,
            "connected": self.activity in STREAMING,
            "known": self.activity in STREAMING and not self.is_silent,
            "paused": self.activity == PAUSED,
            "fatal_errno": words[word.FATAL],
            "transactions_total": statistics.total("transactions"),
            "bytes_total": statistics.total("bytes"),
            "xoff_total": statistics.total("xoff"),
            "read_transactions": {"pool": reading.from_pool, "files": reading.from_files},
            "refused_connections": self.refused,
            **reading.kept_back.figures(lambda number: self.instance.content.partitions.name(number)),
            **({"patrol": self.indexes.beside} if self.indexes.beside else {}),
            **self.indexes.figures(time.time_ns()),
            **self.filter.measured(),
        }

    def metrics(self) -> dict[str, Any]:
        """The figures for Prometheus: what the consumer has not told since the start is not known there, and it has
        applied what was acknowledged before."""
        found, contact_s = self.measured(), self.heard.age_s()
        found["last_contact_s"] = contact_s
        found["last_applied_seqno"] = max(found["last_applied_seqno"], found["last_acknowledged_seqno"])
        if contact_s is None:
            return found | dict.fromkeys(
                ("last_sent_seqno", "last_received_seqno", "source_backlog", "receiver_backlog")
            )
        wanted = 0 if self.is_for_later else found["last_written_seqno"]
        found["source_backlog"] = max(0, wanted - found["last_sent_seqno"])
        return found

    def why_not_ready(self) -> str:
        """ "" while it streams, and the peer answers, or while it is passive; else the state, and the last error."""
        if self.activity == PASSIVE:
            return ""
        if self.activity in STREAMING:
            return f"the peer has said nothing for {self.heard.age_s() or 0.0:.0f} s" if self.is_silent else ""
        error = self.context.facts.get("last_error")
        return f"{self.activity}: {error}" if error else self.activity

    def stands_at(self) -> StandsAt | None:
        """How far the peer is, for figures by partition; None: that is not known, or nothing waits for it."""
        wants, applied = self.reading.wants, max(self.progress.last_applied_seqno, self.position.told_seqno)
        if wants is None or not applied or self.is_for_later:
            return None
        return StandsAt(applied, self.words[word.LAST_SEQNO], wants)

    @property
    def is_for_later(self) -> bool:
        """Nothing waits for the peer, and no journal is kept for it, until this instance is primary."""
        return self.mode.is_passive and self.instance.told_role == "secondary"

    @property
    def is_silent(self) -> bool:
        """The connection stands, and nothing has come from the peer for longer than all is well."""
        heard_s = self.heard.age_s() if self.note_heard() else None
        return heard_s is not None and heard_s > patience_s(self.settings.heartbeat_period_s)

    def note_heard(self) -> bool:
        """Whether there is a connection to the peer, and not to a stranger that has not introduced itself."""
        link = self.link
        if link is None or link.peer is None:
            return False
        self.heard.at(link.last_heard)
        return True

    def lag_s(self) -> float:
        """Seconds since the oldest transaction that the consumer has not applied was seen here; 0.0 when it has all. No
        step of the wall clock moves it, but one before the transaction was first looked at."""
        now_ns, words = time.monotonic_ns(), self.words
        last_seqno = words[word.LAST_SEQNO]
        self.saw(last_seqno, words[word.LAST_COMMIT_WALL_NS] or time.time_ns())
        self.lag.looked(last_seqno, now_ns)
        if self.is_for_later:
            return 0.0
        return self.lag.seconds(self.progress.last_applied_seqno, now_ns)

    def look_back(self) -> None:
        """Since when the first transaction that a known consumer does not have is there: before anything is told, or a
        daemon that begins would take its own start for that. Reads the journal: in a thread."""
        last_seqno = self.position.acknowledged_seqno
        if not 0 < last_seqno < self.words[word.LAST_SEQNO]:
            return
        with closing(ChainReader(make_chain(self.instance), last_seqno + 1)) as reader:
            found = reader.read(1, last_seqno + 1)
        if found is not None:
            frame = found.data if isinstance(found, FrameBatch) else found.commit_frame
            self.saw(last_seqno + 1, wall_ns(read_head(frame).csn))

    def saw(self, seqno: int, committed_wall_ns: int) -> None:
        """For the lag: this transaction is in the journal, committed at that time of the wall clock then."""
        self.lag.observed(seqno, was_there_ns(committed_wall_ns, time.time_ns(), time.monotonic_ns()))

    def sample(self) -> None:
        """For the statistics: how bad it is at this moment."""
        self.statistics.sample(
            trio.current_time(),
            peaks={"lag_s": self.lag_s(), "backlog": self.measured()["backlog"]},
            lasting={
                "cut_s": self.activity not in (*STREAMING, PASSIVE),
                "silent_s": self.is_silent,
                "paused_s": self.activity == PAUSED,
            },
        )

    # What a connection reports.

    def met(self, uuid: bytes) -> None:
        """Remember who the consumer is. WrongInstanceError when it was another one before."""
        known = self.position.record.uuid
        if known and known != uuid.hex():
            raise WrongInstanceError(
                f"the instance that answers is named {self.peer_name}, but is another one than before",
                where=self.peer_name,
                do="If the secondary was made again: replicate -i INSTANCE peer remove, peer add, then seed it",
                reason=str(RefuseCode.WRONG_INSTANCE),
            )
        if not known:
            self.position.met(uuid.hex())

    async def begins_at(self, next_seqno: int) -> None:
        """The stream begins there, so the consumer has nothing from there on, whatever it said before (it may have been
        restored): stored durably before anything is sent."""
        self.position.went_back(next_seqno - 1)
        await self.position.store()
        await trio.to_thread.run_sync(self._seed_arrived, next_seqno - 1)
        self.progress.last_received_seqno = next_seqno - 1
        self.progress.last_applied_seqno = min(self.progress.last_applied_seqno, next_seqno - 1)
        self.retry.streaming()

    def _seed_arrived(self, last_seqno: int) -> None:
        """A consumer that stands exactly at its seed has taken it over: its position says now what it needs, and what
        was compared before is void."""
        if read_hold(self.instance.consumers_directory, self.peer_name) == last_seqno:
            forget_compared(self.instance, self.peer_name)
            write_hold(self.instance.consumers_directory, self.peer_name, None)

    def acknowledged(self, event: Acknowledged) -> None:
        """The consumer has told how far it is."""
        reply, progress = event.reply, self.progress
        progress.last_received_seqno = reply.last_received_seqno
        progress.last_applied_seqno = reply.last_applied_seqno
        self._note_update_process(reply.update_state)
        if event.round_trip_s is not None:
            progress.round_trip_s = event.round_trip_s
        self.progressed.set()
        self.progressed = trio.Event()
        self.position.acknowledged(reply.last_durable_seqno)

    def _note_update_process(self, number: int) -> None:
        """What the consumer sees of its Update Process, which alone applies what we send."""
        known = {state.value: state for state in UpdateState}.get(number)
        text = f"in a state {number} that this release does not know" if known is None else known.text
        progress = self.progress
        if text == progress.update_state:
            return
        progress.update_state = text
        if known in (UpdateState.NOT_RUNNING, UpdateState.NOT_ANSWERING):
            progress.not_applying_since_wall_ns = progress.not_applying_since_wall_ns or time.time_ns()
            # A peer may say now this, now that, as quickly as it likes.
            self.say(
                "the peer applies nothing", is_warning=True, update_process=text,
                last_applied_seqno=progress.last_applied_seqno,
            )  # fmt: skip
        else:
            if progress.not_applying_since_wall_ns:
                self.say("the peer applies again", update_process=text)
            progress.not_applying_since_wall_ns = 0
        self.tell()

    def left(self) -> None:
        """The connection has ended: nobody tells us anything now."""
        self.note_heard()
        self.link = None
        self.progress.round_trip_s = None
