"""The receiver's side of a seed: the command asks us, we ask the source, and what comes is written to our disk.

The command talks over a socket in the instance's run directory, a JSON value a line:

    command                     receiver
      {"format": 1, "from": NAME or null} ->     from whom, if it matters
      {"format": 2, "from": …, "regions": [NAME…]} ->     of these alone, beside the stream
      {"format": 3, "from": …, "partitions": [NUMBER…]} ->     of the rows of these alone, likewise
      <- {"state": …, "done": …, "total": …, "unit": …}      several times a second while it moves, once a second anyway
      <- {"received": true}     the whole file is there; nothing is asked of the source until the command has hung up
      <- {"error": {…}}         it cannot be

Guarantees: the wish lives as long as the command's connection, not longer: a killed command leaves nothing that would
keep the stream from going on. What has arrived survives the connection, this daemon and the command. At most
SEED_WINDOW_BYTES wait for the disk. Only the instance's owner (or root) is heard.
Leaves to others: what is in the file, and how it is installed (the command does that).
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from receiver_server.source_state import ServedConnection, SourceState
from replicate.daemon.last_run import stop_and_start_again
from replicate.daemon.order_socket import GONE, KEEP_ALIVE_S, CommandSocket, asked
from replicate.errors import (
    FormatUnknownError,
    PeerRefusedError,
    ReplicateError,
    TryAgainError,
    UsageError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.limits import NAME_PATTERN, PARTITION_MAX, REGIONS_MAX
from replicate.model.start_command import again_command
from replicate.model.table_wish import has_list
from replicate.settings.peer_authority import Reason
from replicate.transfer.seed.incoming import (
    COMMAND_FORMAT,
    PARTITIONS_FORMAT,
    REGIONS_FORMAT,
    SOCKET_NAME,
    Incoming,
    IncomingFile,
    seed_directory,
)
from replicate.wire.event import (
    Closed,
    CloseReason,
    Event,
    SeedAnnounced,
    SeedBeingMade,
    SeedComplete,
    SeedReceived,
)
from replicate.wire.message import LOAD_REFUSED, SeedRequestPartitions, SeedRequestRegions

TELL_S: Final = 0.2
WAITING: Final = "waiting for the source"
REFUSED_S: Final = 60.0
"""A source that was refused so long ago tries again, if it is still there."""
KILLED_S: Final = 2.0
"""So long a command waits for the one before it: that one may have been killed, which is noticed in a moment."""
_NOBODY: Final = frozenset({Reason.CUT, Reason.HELLO_TIMEOUT, Reason.PROTOCOL, Reason.PLAINTEXT})
"""What a look at the port ends with."""


class AskedSeed(NamedTuple):
    """`source_name`: from whom (None: whichever is connected). Of these regions, or of the rows of these partitions,
    beside the stream; of all, instead of it, where none is named."""

    source_name: str | None
    regions: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.regions and not self.partitions


def read_request(line: bytes, *, again: str = again_command("receiver")) -> AskedSeed:
    """What a command asks for. FormatUnknownError for a command of another release, UsageError when it is no request.
    `again`: the commands that stop this server and start it."""
    try:
        asked = json.loads(line)
        source_name, number = asked["from"], asked.get("format", COMMAND_FORMAT)
        if number not in (COMMAND_FORMAT, REGIONS_FORMAT, PARTITIONS_FORMAT):
            raise FormatUnknownError(
                f"the seed command speaks format {str(number)[:20]}, this Receiver Server up to {PARTITIONS_FORMAT}",
                do=f"Of another release: {again}",
            )
        regions = tuple(asked["regions"]) if number == REGIONS_FORMAT else ()
        partitions = tuple(asked["partitions"]) if number == PARTITIONS_FORMAT else ()
        names = [*regions, *(() if source_name is None else (source_name,))]
        well = number == COMMAND_FORMAT or 0 < len(regions or partitions) <= max(REGIONS_MAX, PARTITION_MAX)
        well = well and all(type(one) is int and 1 <= one <= PARTITION_MAX for one in partitions)
        if well and all(isinstance(name, str) and re.match(NAME_PATTERN, name) for name in names):
            return AskedSeed(source_name, regions, partitions)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise UsageError("this is no request for a seed", where=f"{line[:80]!r}")


def _facts(error: ReplicateError) -> dict[str, Any]:
    facts = {"what": error.what, "where": error.where, "do": error.do}
    return {"code": error.code, "exit_code": error.exit_code, **facts, "reason": error.facts.get("reason", "")}


def _is_refused(wish: Wish, error: ReplicateError) -> bool:
    return bool(wish.asked.partitions) and error.facts.get("reason") in LOAD_REFUSED


class Wish:
    """What one command wants, and what it is to be told."""

    def __init__(self, asked: AskedSeed) -> None:
        self.asked = asked
        self.state: dict[str, Any] = {"state": WAITING}
        self.is_received = False
        self.error: ReplicateError | None = None
        self.ended = trio.Event()
        """The command has hung up."""

    def say(self, state: str, done: int = 0, total: int = 0, unit: str = "") -> None:
        """How it stands."""
        self.state = {"state": state, "done": done, "total": total, "unit": unit}

    def line(self) -> dict[str, Any]:
        """What the command is told now."""
        if self.error is not None:
            return {"error": _facts(self.error)}
        return {"received": True} if self.is_received else self.state

    @property
    def is_settled(self) -> bool:
        """Nothing more will be told."""
        return self.is_received or self.error is not None


class Seeds:
    """The daemon's part in seeding: `listen` before it says that it serves, then `serve` as long as it does."""

    def __init__(self, source: SourceState) -> None:
        self._source = source
        self._socket: CommandSocket | None = None
        self._wish: Wish | None = None
        self._fetching: ServedConnection | None = None
        self._asked = trio.Event()
        """Set, and another one in its place, with each new wish."""
        self._refused: dict[str, Any] | None = None
        self._refused_s = 0.0
        self._give, self._take = trio.open_memory_channel[Event](0)

    # The command.

    async def listen(self) -> None:
        """Be there for commands. A socket that cannot be had is logged: everything else goes on without it."""
        source = self._source
        self._socket = CommandSocket(source.instance.run_directory, SOCKET_NAME, source.log, "the seed command")
        await self._socket.listen()

    async def serve(self) -> None:
        """Hear commands, after `listen`, until cancelled."""
        assert self._socket is not None
        await self._socket.serve(self._serve)

    async def _serve(self, stream: trio.SocketStream) -> None:
        line = await asked(stream)
        wish = Wish(AskedSeed(None))
        try:
            again = stop_and_start_again(self._source.instance, "receiver")
            wish.asked = read_request(line, again=again)
        except ReplicateError as error:
            wish.error = error
        if wish.error is None:
            with trio.move_on_after(KILLED_S):
                while self._wish is not None:
                    await self._wish.ended.wait()
        if wish.error is None and self._wish is not None:
            wish.error = TryAgainError("another command asks for a seed already", do="Wait for it")
        if wish.error is None:
            self._wish = wish
            self._asked.set()
            self._asked = trio.Event()
            self._source.log.info("a seed was asked for", source=wish.asked.source_name)
            if self._refused is not None and trio.current_time() - self._refused_s < REFUSED_S:
                self._tell_refused(self._refused)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell, stream, wish)
                if self._wish is wish and wish.asked.is_whole:
                    nursery.start_soon(self._source.disconnect, "a seed was asked for")
                with suppress(*GONE):  # a killed command leaves a broken connection
                    while await stream.receive_some(4096):
                        pass
                nursery.cancel_scope.cancel()
        finally:
            if self._wish is wish:
                self._wish = None
                if self._fetching is not None:
                    self._fetching.end("the seed command has ended")
            wish.ended.set()

    async def _tell(self, stream: trio.SocketStream, wish: Wish) -> None:
        told: dict[str, Any] = {}
        silent_s = KEEP_ALIVE_S
        while True:
            line, is_last = wish.line(), wish.is_settled  # in one look: it may settle while this line is sent
            if line != told or silent_s >= KEEP_ALIVE_S:
                try:
                    await stream.send_all(json.dumps(line).encode() + b"\n")
                except GONE:
                    return  # the task that listens for the command's end ends us
                told, silent_s = line, 0.0
            if is_last:
                return
            await trio.sleep(TELL_S)
            silent_s += TELL_S

    # The connection to the source.

    @property
    def is_wanted(self) -> bool:
        """A command waits for a seed of all regions: the stream is not to be asked for now."""
        return self._wish is not None and self._wish.error is None and self._wish.asked.is_whole

    async def beside(self, connection: ServedConnection) -> None:
        """Get what is wished of some regions or partitions over this connection, while it streams; until cancelled."""
        while connection.drive.closed is None:
            wish = self._wish
            if wish is not None and not wish.asked.is_whole and not wish.is_settled:
                await self.fetch(connection)
            else:
                await self._asked.wait()

    async def fetch(self, connection: ServedConnection) -> None:
        """Get the seed over this connection; returns when there is nothing more to do for this wish here."""
        wish = self._wish
        assert wish is not None
        link, name = connection.link, connection.peer_name
        if wish.is_received:
            self._source.tell("waiting until the seed is installed")
            await wish.ended.wait()
            return
        peer = link.peer
        assert peer is not None
        asked = wish.asked
        if asked.source_name is not None and asked.source_name != name:
            wish.error = WrongInstanceError(
                f"the source that is connected is {name}, not {asked.source_name}",
                do=f"Run replicate -i INSTANCE seed --from {name}, or connect the other one",
            )
            return
        if not connection.brings(asked.partitions):
            wish.say("waiting for a stream that brings them")
            await trio.sleep(TELL_S)
            return
        some = " of some regions" * bool(asked.regions) + " of some partitions" * bool(asked.partitions)
        can = link.can_request_regions if asked.regions else link.can_request_seed
        if not (link.can_request_partitions if asked.partitions else can):
            by_file = f"Make a file there: replicate -i {name} seed --to-file FILE --for {self._source.instance.name}"
            wish.error = PeerRefusedError(
                f"{name} (release {peer.release}) cannot send a seed{some} over the connection",
                do="Upgrade it first; or seed all, without --region and --partition" if some else by_file,
            )
            return
        content = self._source.instance.content
        if any(map(has_list, (*content.rows.values(), *content.held_rows.values()))) and not link.can_choose_columns:
            wish.error = PeerRefusedError(
                f"{name} (release {peer.release}) cannot leave out columns that are not listed here",
                do="Upgrade it first; all of them would come",
            )
            return
        try:
            await self._receive(connection, wish, peer.instance)
        except ReplicateError as error:
            self._source.log.error("the seed cannot be taken", error=str(error), code=error.code)
            wish.error = error
            connection.end("the seed cannot be taken")
        finally:
            self._fetching = None

    async def _receive(self, connection: ServedConnection, wish: Wish, source: bytes) -> None:
        log, link = self._source.log, connection.link
        wish.say("looking at what is here already")
        path = self._source.instance.path
        incoming = Incoming(await trio.to_thread.run_sync(seed_directory, path))
        asked = wish.asked
        request = await trio.to_thread.run_sync(incoming.look, source, asked.regions, asked.partitions)
        if connection.drive.closed is not None or self._wish is not wish:
            return
        self._give, self._take = trio.open_memory_channel[Event](float("inf"))
        self._fetching = connection
        if isinstance(request, SeedRequestRegions):
            link.request_regions(request)
        elif isinstance(request, SeedRequestPartitions):
            link.request_partitions(request)
        else:
            link.request_seed(request)
            self._source.tell("receiving the seed")
        connection.drive.poke()
        log.info("seed requested", source=connection.peer_name, offset=request.offset, regions=asked.regions,
                 partitions=asked.partitions)  # fmt: skip
        wish.say("the source makes the seed")
        file: IncomingFile | None = None
        total = 0
        try:
            async for event in self._take:
                match event:
                    case SeedBeingMade(done, pages):
                        wish.say("the source makes the seed", done, pages, "pages")
                    case SeedAnnounced(start):
                        file = await trio.to_thread.run_sync(IncomingFile, incoming, start)
                        total = start.file_bytes
                        wish.say("receiving", start.offset, total, "bytes")
                        log.info("seed begins", seqno=start.seqno, offset=start.offset, file_bytes=total)
                    case SeedReceived(offset, data):
                        assert file is not None
                        written = await trio.to_thread.run_sync(file.write, offset, data)
                        wish.say("receiving", written, total, "bytes")
                        if connection.drive.closed is None:
                            link.acknowledge_seed(written)
                            connection.drive.poke()
                    case SeedComplete():
                        assert file is not None
                        await trio.to_thread.run_sync(file.finish)
                        if connection.drive.closed is None:
                            link.seed_taken()
                            connection.drive.poke()
                        wish.is_received = True
                        log.info("seed received", file_bytes=total)
                        return
        finally:
            if file is not None:
                file.close()

    def waiting(self, connection: ServedConnection) -> int:
        """How many words about the seed wait for the disk, of this connection. It reads on when they are few."""
        return self._take.statistics().current_buffer_used if self._fetching is connection else 0

    def heard(self, event: Event) -> None:
        """What the link told of the seed; memory is bounded by the link's window, and by SEED_EVENTS_MAX."""
        self._give.send_nowait(event)

    def not_let_in(self, error: ReplicateError, where: str) -> None:
        """Somebody at the address `where` wanted to be a source, and was refused. A command that waits for one hears of
        it, and ends soon if nobody better comes: it may have been a stranger."""
        if error.facts.get("reason") in _NOBODY:
            return
        self._refused, self._refused_s = {**_facts(error), "where": error.where or where}, trio.current_time()
        self._tell_refused(self._refused)

    def _tell_refused(self, refused: dict[str, Any]) -> None:
        wish = self._wish
        if wish is not None and not wish.is_settled and wish.state["state"] == WAITING:
            wish.state = {**wish.state, "refused": refused}

    def closed(self, connection: ServedConnection, closed: Closed) -> None:
        """A connection has ended. A source that refused us will not do better the next time: one that does not give a
        partition which is being loaded would stop all others, too, so it is asked for that no more."""
        instance, refused = self._source.instance, closed.error
        is_refused = refused is not None and refused.facts.get("reason") in LOAD_REFUSED
        if is_refused and (loading := instance.content.choice.loading):
            instance.change_subscription(lambda now: now.given_up(loading))
            self._source.log.warning("a load is given up, as the source refuses it", partitions=loading)
        wish = self._wish
        if wish is None or wish.is_settled:
            return
        if self._fetching is not connection:
            error = closed.error
            if (
                self._fetching is None
                and error is not None
                and (isinstance(error, (WrongNetworkError, WrongInstanceError)) or _is_refused(wish, error))
            ):
                wish.error = error  # it is proven who it is, and it is not ours, or does not give that
            return
        if closed.reason in (CloseReason.PEER_REFUSED, CloseReason.WE_REFUSED) and closed.error is not None:
            wish.error = closed.error
        else:
            wish.say(WAITING)
