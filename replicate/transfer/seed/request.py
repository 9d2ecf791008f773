"""The seed command's side of a seed over the connection: asks the running Receiver Server, then installs what came.

Guarantees: what has arrived is never asked for twice: a transfer that was cut goes on, and a whole file that is not
installed yet is installed without asking anybody. Nothing that the secondary holds is touched before the file is whole.
Leaves to others: the wire; the Receiver Server does the talking.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, Final, Protocol

from msgspec.structs import replace

from replicate.daemon.last_run import start_again, stop_and_start_again
from replicate.daemon.lock_file import LockFile
from replicate.daemon.orders import SILENT_S, connected, lines
from replicate.door.recovery.opening import SEEDING_MARKER
from replicate.errors import (
    EXIT_CODES,
    BusyError,
    CopyTooOldError,
    DamagedError,
    JournalMissingError,
    NotFoundError,
    PeerUnreachableError,
    ProtocolViolationError,
    ReplicateError,
    TryAgainError,
    WrongInstanceError,
)
from replicate.instance.instance import Instance
from replicate.model.start_command import again_command
from replicate.region.kind import KIND
from replicate.system.failpoint import hit
from replicate.system.files import replace_file
from replicate.transfer.seed.file import SeedReader
from replicate.transfer.seed.incoming import (
    COMMAND_FORMAT,
    PARTITIONS_FORMAT,
    REGIONS_FORMAT,
    SOCKET_NAME,
    Incoming,
    seed_directory,
)
from replicate.transfer.seed.install import Seeded, check_secondary, install_file_locked, seed_lock
from replicate.transfer.seed.partition import Loaded, give_up, loading, take_in
from replicate.transfer.seed.some_regions import check_part, filling, install_checked_alone
from replicate.wire.message import LOAD_REFUSED

SOURCE_WAIT_S: Final = 60.0
"""How long a source may be away before we give up; what has arrived stays."""
RECEIVER_WAIT_S: Final = 10.0
"""How long a Receiver Server that runs may take to follow a change of the role."""
RECEIVER_LOOK_S: Final = 0.1
REFUSED_WAIT_S: Final = 5.0
"""The same where one was there and not let in: another one may come beside it."""
WAITING: Final = "waiting for the source"
RECEIVER: Final = "receiver"


class _Ask(Protocol):
    """Asks for a seed of all regions, of some, or of some partitions; gives the answers."""

    def __call__(
        self, source_name: str | None, regions: tuple[str, ...] = (), partitions: tuple[int, ...] = ()
    ) -> Iterator[dict[str, Any]]: ...


Told = Callable[[str, int, int], None]
"""Called with what is done (a label), how much of it, and how much there is of it; what it raises ends the command."""


class SeedFailedError(ReplicateError):
    """What the Receiver Server or the source said: code, text and exit code are theirs."""

    code = "SEED_FAILED"

    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__(str(said.get("what")), where=str(said.get("where", "")), do=str(said.get("do", "")))
        self.args = (str(self).replace(self.code, str(said.get("code")), 1),)
        number = said.get("exit_code")
        self.reason = str(said.get("reason", ""))
        self.own_exit_code = number if isinstance(number, int) and number in EXIT_CODES else 70


def seed_over_connection(
    secondary: Instance,
    source_name: str | None,
    *,
    restart: bool,
    told: Told,
    source_wait_s: float = SOURCE_WAIT_S,
) -> Seeded:
    """Fill `secondary` from the source that its Receiver Server is connected to (`source_name`, if given).

    Raises what `check_secondary` raises, PeerUnreachableError (no Receiver Server, no source), SeedFailedError (what
    either says), TryAgainError, and what installing a file raises. The same call goes on where this one ended.
    """
    with seed_lock(secondary):
        check_secondary(secondary, restart=restart)
        incoming = Incoming(seed_directory(secondary.path))
        header = incoming.complete()
        if header is not None and source_name in (None, header.primary_name):
            return _install(secondary, incoming, restart, told)
        if header is not None:
            incoming.discard()
        give_up_unreadable(secondary)
        with _receiver(secondary) as ask:
            _wait(ask(source_name), source_name, told, source_wait_s)
            hit("seed.received")
            return _install(secondary, incoming, restart, told)


def give_up_unreadable(secondary: Instance) -> None:
    """What is to be replaced, and cannot be read, is here no more: its Receiver Server would end as it looks what is
    applied there, and no seed could come through it. Nothing happens where all regions can be read."""
    try:
        for entry in secondary.regions:
            with (
                KIND.naming(str(entry.path)),
                suppress(BusyError),
                closing(KIND.reader(entry.path, region=entry.uuid)) as opened,
            ):
                opened.checkpoint()
    except (DamagedError, NotFoundError):
        replace_file(secondary.path / SEEDING_MARKER, b"from nobody yet\n")


def regions_over_connection(
    secondary: Instance,
    source_name: str | None,
    names: tuple[str, ...],
    *,
    restart: bool,
    told: Told,
) -> Seeded:
    """Fill these regions of `secondary` beside the stream, as `seed_over_connection` fills all. Raises that, and what
    `filling` and `take_in` raise."""
    with filling(secondary, names, restart=restart) as kept:
        incoming = Incoming(seed_directory(secondary.path))
        header = incoming.complete(names)
        if header is None or source_name not in (None, header.primary_name):
            incoming.whole.unlink(missing_ok=True)
            with _receiver(secondary) as ask:
                _wait(ask(source_name, names), source_name, told, SOURCE_WAIT_S)
                hit("seed.received")
        try:
            with SeedReader(incoming.whole) as reader:
                check_part(secondary, reader, names, str(incoming.whole))
                seeded = install_checked_alone(secondary, reader, names, told=told)
        except (DamagedError, WrongInstanceError, JournalMissingError, CopyTooOldError) as error:
            incoming.discard()  # run again, the command has another one sent
            raise error
        incoming.discard()
    return replace(seeded, kept_back=kept)


def partitions_over_connection(
    secondary: Instance,
    source_name: str | None,
    numbers: tuple[int, ...],
    *,
    told: Told,
) -> Loaded:
    """Load these partitions of `secondary` beside the stream. A copy that had come before, and is too old by now, is
    asked for again. Raises what `loading` and `take_in` raise, and what `seed_over_connection` does of daemons and
    sources; one that refuses them is asked for them no more."""
    with loading(secondary, numbers):
        incoming = Incoming(seed_directory(secondary.path))
        header = incoming.complete_of(numbers)
        if header is not None and source_name in (None, header.primary_name):
            try:
                return _take(secondary, incoming, numbers, told)
            except (CopyTooOldError, JournalMissingError) as error:
                told(f"{error.what}: another one", 0, 0)
        incoming.whole.unlink(missing_ok=True)
        with _receiver(secondary) as ask:
            try:
                _wait(ask(source_name, (), numbers), source_name, told, SOURCE_WAIT_S)
            except SeedFailedError as error:
                if error.reason in LOAD_REFUSED:
                    give_up(secondary, numbers)
                raise
            hit("seed.received")
        return _take(secondary, incoming, numbers, told)


def _take(secondary: Instance, incoming: Incoming, numbers: tuple[int, ...], told: Told) -> Loaded:
    try:
        loaded = take_in(secondary, incoming.whole, numbers, told=told)
    except (DamagedError, WrongInstanceError, JournalMissingError, CopyTooOldError):
        incoming.discard()  # another one is sent
        raise
    incoming.discard()
    return loaded


def _install(secondary: Instance, incoming: Incoming, restart: bool, told: Told) -> Seeded:
    try:
        seeded = install_file_locked(
            secondary,
            incoming.whole,
            restart=restart,
            progress=lambda _region, done, pages: told("installing", done, pages),
        )
    except (DamagedError, WrongInstanceError, CopyTooOldError) as error:
        incoming.discard()
        do = "It was removed; run replicate -i INSTANCE seed again, and it comes again"
        raise type(error)(error.what, where=error.where, do=do) from error
    incoming.discard()
    return seeded


@contextmanager
def _reached(secondary: Instance) -> Iterator[socket.socket]:
    """A connection to the Receiver Server. One that runs, and is not there for commands, is waited for: it follows
    another role."""
    where, deadline_s = str(secondary.path), time.monotonic() + RECEIVER_WAIT_S
    with ExitStack() as stack:
        while True:
            try:
                connection = stack.enter_context(connected(secondary.run_directory, SOCKET_NAME))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() >= deadline_s or LockFile(secondary.path, RECEIVER).probe() is None:
                    raise PeerUnreachableError(
                        f"the Receiver Server of {secondary.name} does not run; a seed comes through it",
                        where=where,
                        do=f"{start_again(secondary, RECEIVER)}; or, from an instance on this host: replicate -i "
                        "INSTANCE seed --from PRIMARY",
                    ) from None
            except OSError as error:
                raise TryAgainError(f"the Receiver Server does not answer: {error}", where=where) from error
            time.sleep(RECEIVER_LOOK_S)
        yield connection


@contextmanager
def _receiver(secondary: Instance) -> Iterator[_Ask]:
    """A connection to the Receiver Server; what is yielded asks, and gives its answers. Hangs up at the end."""
    with ExitStack() as stack:
        connection = stack.enter_context(_reached(secondary))
        yield lambda source_name, regions=(), partitions=(): _answers(
            connection, source_name, regions, partitions, secondary
        )


def _answers(
    connection: socket.socket,
    source_name: str | None,
    regions: tuple[str, ...],
    partitions: tuple[int, ...],
    secondary: Instance,
) -> Iterator[dict[str, Any]]:
    where = str(secondary.path)
    wish: dict[str, Any] = {"format": COMMAND_FORMAT, "from": source_name}
    if regions:
        wish = {"format": REGIONS_FORMAT, "from": source_name, "regions": regions}
    if partitions:
        wish = {"format": PARTITIONS_FORMAT, "from": source_name, "partitions": partitions}
    try:
        connection.sendall(json.dumps(wish).encode() + b"\n")
        for line in lines(connection):
            yield read_answer(line, again=stop_and_start_again(secondary, RECEIVER))
    except TimeoutError:
        raise TryAgainError(
            f"the Receiver Server has said nothing for {SILENT_S:g} s",
            where=where,
            do="replicate -i INSTANCE receiver status",
        ) from None
    except ConnectionError:
        pass
    raise PeerUnreachableError(
        "the Receiver Server ended while the seed was arriving",
        where=where,
        do=f"{start_again(secondary, RECEIVER)}, then run replicate -i INSTANCE seed again: it goes on where it was",
    )


def read_answer(line: bytes, *, again: str = again_command(RECEIVER)) -> dict[str, Any]:
    """One line of the Receiver Server's answer. ProtocolViolationError when it is none; `again`: the commands that stop
    and start that server."""
    try:
        answer = json.loads(line)
        well = isinstance(answer, dict) and isinstance(answer.get("error", {}), dict)
        if well and all(type(answer.get(name, 0)) is int for name in ("done", "total")):
            return dict(answer)
    except (ValueError, RecursionError):
        pass
    raise ProtocolViolationError(
        f"the Receiver Server answered with something that makes no sense: {line[:80]!r}",
        do=f"Start it again with this release: {again}",
    )


def _wait(answers: Iterator[dict[str, Any]], source_name: str | None, told: Told, source_wait_s: float) -> None:
    """Until the file is whole. A source that was not let in is told of at once; if nobody else has come soon after,
    that is why none comes."""
    waiting_since = time.monotonic()
    for answer in answers:
        if "error" in answer:
            raise SeedFailedError(answer["error"])
        if "received" in answer:
            return
        state = str(answer.get("state", ""))
        refused = answer.get("refused")
        if state != WAITING:
            waiting_since = time.monotonic()
        elif isinstance(refused, dict):
            if time.monotonic() - waiting_since > min(source_wait_s, REFUSED_WAIT_S):
                raise SeedFailedError(refused)
            state += f"; {refused.get('where')} was not let in: {refused.get('what')}"
        elif time.monotonic() - waiting_since > source_wait_s:
            raise PeerUnreachableError(
                f"no source has connected for {source_wait_s:g} s",
                do="There: replicate -i {0} source start; replicate -i {0} source status. What came is kept".format(
                    source_name or "PRIMARY"
                ),
            )
        told(state, int(answer.get("done", 0)), int(answer.get("total", 0)))
