"""Joining a network as one of its suppliers: the steps of join_plan.py, looked for and done.

Guarantees: what is done is seen in the instances themselves, and in nothing else: the same call after a kill anywhere
goes on where it was, and after the last step does nothing. A supplier on another host is asked for nothing, and nothing
is changed there: what is to be done there is told.
Leaves to others: which step comes when (join_plan.py); each step is that of its own command.
"""

from __future__ import annotations

import shlex
import time
import uuid
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from replicate.admin.join_plan import (
    JoinStep,
    JoinWish,
    PlannedStep,
    SiteFacts,
    check,
    next_step,
    plan,
    reached_at,
    supplier_at,
)
from replicate.admin.peer_address import checked_address
from replicate.daemon.control import is_running, start
from replicate.daemon.files import DaemonFiles
from replicate.daemon.lock_file import daemon_names
from replicate.daemon.status_file import SERVING
from replicate.door.recovery.opening import is_seeded
from replicate.errors import AlreadyRunningError, UsageError
from replicate.instance.file import check_name
from replicate.instance.instance import FILE_NAME, Instance
from replicate.instance.location import resolve_instance
from replicate.roles.daemons_down import LOOK_S
from replicate.roles.supplier import convert
from replicate.settings.load import Address, parse_address
from replicate.transfer.seed.request import Told, seed_over_connection

RECEIVER: Final = "receiver"
LISTEN: Final = "listen"
"""In its status: where it listens."""


class Joined(Struct, frozen=True):
    """How far it came. `steps`: all of them; the last look."""

    name: str
    steps: tuple[PlannedStep, ...]


class Join(Struct, frozen=True):
    """`told` hears how a seed goes on; `done` of each step that was done; `waits` of those that are to be done
    elsewhere, before they are waited for."""

    wish: JoinWish
    timeout_s: float
    told: Told
    done: Callable[[PlannedStep], None]
    waits: Callable[[tuple[PlannedStep, ...]], None]

    def look(self) -> tuple[PlannedStep, ...]:
        """The steps, as they are done now. Raises what bars the way."""
        here, there = opened_if_there(self.wish.named), supplier_if_here(self.wish.supplier_named)
        facts = (
            None if here is None else _facts(here),
            None if there is None else _facts(there),
        )
        check(self.wish, *facts)
        return plan(self.wish, *facts)

    def run(self) -> Joined:
        """Do what is not done. Raises what a step raises; the same call goes on."""
        is_here = supplier_if_here(self.wish.supplier_named) is not None
        while (one := next_step(steps := self.look(), is_here=is_here)) is not None:
            if one.step is JoinStep.SEED and not is_here:
                self.waits(tuple(other for other in steps if other.is_there))
            self._do(one.step)
            self.done(one)
        return Joined(self.wish.name, steps)

    def _do(self, step: JoinStep) -> None:
        if step is JoinStep.CREATE:
            self._create()
            return
        own = Instance.open(self.wish.named)
        there = supplier_if_here(self.wish.supplier_named)
        match step:
            case JoinStep.LISTEN:
                listen = () if self.wish.listen is None else ("--set", f"receiver.listen={self.wish.listen}")
                self._start(own, RECEIVER, (RECEIVER, "run", *listen))
            case JoinStep.SEED:
                seed_over_connection(own, self.wish.supplier, restart=False, told=self.told)
            case JoinStep.CONVERT:
                convert(own, "supplier", timeout_s=self.timeout_s)
            case JoinStep.REGISTER:
                at = self._known(supplier_at(self.wish, None if there is None else _facts(there)))
                checked_address(own, self.wish.supplier, str(at))
                own.register_peer(self.wish.supplier, at.host, at.port)
            case JoinStep.APPLY:
                self._start(own, "update", ("update", "run"))
            case JoinStep.SEND:
                self._send(own, self.wish.supplier)
            case _:
                assert there is not None  # next_step gives these only where it is here
                self._do_there(step, own, there)

    def _do_there(self, step: JoinStep, own: Instance, there: Instance) -> None:
        match step:
            case JoinStep.REGISTER_THERE:
                at = self._known(reached_at(self.wish, _facts(own)))
                checked_address(there, own.name, str(at))
                there.register_peer(own.name, at.host, at.port)
            case JoinStep.SEND_THERE:
                self._send(there, own.name)
            case JoinStep.LISTEN_THERE:
                listen = () if self.wish.there is None else ("--set", f"receiver.listen={self.wish.there}")
                if not is_running(DaemonFiles(there.path, "update")):  # first: by the other one the step is known
                    self._start(there, "update", ("update", "run"))
                self._start(there, RECEIVER, (RECEIVER, "run", *listen))

    def _create(self) -> None:
        there = supplier_if_here(self.wish.supplier_named)
        network = self.wish.network if there is None else there.content.network
        Instance.create(self.wish.named, role="secondary", name=self.wish.name, network=network)

    def _known(self, at: Address | None) -> Address:
        if at is None:
            raise UsageError(
                f"where {self.wish.name} and {self.wish.supplier} reach each other is not known: a Receiver Server "
                "listens at every address of this host",
                do="Add --address HOST:PORT, where this one is reached, and the address of that one after its name",
            )
        return at

    def _send(self, of: Instance, peer: str) -> None:
        self._start(of, f"source-{peer}", ("source", "run", "--peer", peer))

    def _start(self, of: Instance, name: str, arguments: tuple[str, ...]) -> None:
        files, timeout_s = DaemonFiles(of.path, name), of.config.daemon.start_timeout_s
        try:
            start(files, ["-i", str(of.path), *arguments], timeout_s=timeout_s)
        except AlreadyRunningError:  # a call that was killed has started it, and did not see it serve
            if not _serves(files, timeout_s):
                raise
        _serves(files, timeout_s)  # it says where it listens a moment after it serves


def wish_of(
    named: str,
    supplier: str,
    *,
    name: str | None = None,
    network: str | None = None,
    listen: str | None = None,
    address: str | None = None,
    there: str | None = None,
) -> JoinWish:
    """What the words of a command ask for. UsageError, ConfigurationError; NotFoundError for a directory of a supplier
    that is not there."""
    found = supplier_if_here(supplier)
    return JoinWish(
        named=named,
        name=resolve_instance(named).name if name is None else name,
        supplier_named=supplier,
        supplier=check_name(supplier, "instance") if found is None else found.name,
        network=None if network is None else _uuid(network, supplier),
        listen=listen,
        address=None if address is None else parse_address(address, where="--address"),
        there=None if there is None else parse_address(there, where="HOST:PORT"),
    )


def _uuid(text: str, supplier: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        raise UsageError(
            f"{text!r} is not a UUID", do=f"Copy it from there: replicate -i {shlex.quote(supplier)} instance show"
        ) from None


def opened_if_there(named: str) -> Instance | None:
    """The instance of that directory or name; None while it is not made. Raises what opening it raises."""
    return Instance.open(named, needs=()) if (resolve_instance(named) / FILE_NAME).exists() else None


def supplier_if_here(named: str) -> Instance | None:
    """The supplier, where it is on this host: a path always means one; a name does if it is there. NotFoundError."""
    path = resolve_instance(named)
    return Instance.open(named, needs=()) if path.name != named or (path / FILE_NAME).exists() else None


def _facts(of: Instance) -> SiteFacts:
    running = {name for name in daemon_names(of.path) if is_running(DaemonFiles(of.path, name))}
    return SiteFacts(
        name=of.name,
        network=of.content.network,
        role=of.content.told_role,
        listens_at=_listens_at(of) if RECEIVER in running else None,
        peers=frozenset(peer.name for peer in of.peers),
        sends_to=frozenset(name.removeprefix("source-") for name in running if name.startswith("source-")),
        is_seeded=is_seeded(of),
        applies="update" in running,
        has_feed=of.is_feed,
    )


def _serves(files: DaemonFiles, within_s: float) -> bool:
    """Whether a daemon that was started serves within that time, and has said where it listens, if it does."""
    until_s = time.monotonic() + within_s
    while files.lock.probe() is not None and time.monotonic() < until_s:
        said = files.read_status()
        if said is not None and said.state == SERVING and (files.name != RECEIVER or LISTEN in said.facts):
            return True
        time.sleep(LOOK_S)
    return False


def _listens_at(of: Instance) -> Address | None:
    said = DaemonFiles(of.path, RECEIVER).read_status()
    listen = None if said is None else said.facts.get(LISTEN)
    return parse_address(listen, where=LISTEN) if isinstance(listen, str) else None
