"""The steps by which an instance becomes one of several suppliers, and which of them are done.

Guarantees: the same facts give the same steps, in one order; a step that is done is never to be done again; what bars
the way is one error, before the first step.
Leaves to others: looking for the facts and doing a step (joining.py). Pure.
"""

from __future__ import annotations

import shlex
import uuid
from enum import Enum
from typing import Final

from msgspec import Struct

from replicate.errors import ConfigurationError, UsageError, WrongNetworkError
from replicate.model.start_command import start_command
from replicate.model.writers import SUPPLIER
from replicate.settings.load import Address, parse_address


class JoinStep(Enum):
    """In their order. Those THERE are done at the supplier that is joined, where it is on this host."""

    CREATE = "made"
    LISTEN = "its Receiver Server listens"
    REGISTER_THERE = "registered there"
    SEND_THERE = "the Source Server there sends"
    SEED = "seeded"
    CONVERT = "supplier"
    LISTEN_THERE = "the Receiver Server there listens"
    REGISTER = "registers the supplier there"
    APPLY = "its Update Process applies"
    SEND = "its Source Server sends"


ANY: Final = ("0.0.0.0", "::")
"""Hosts that stand for all of a host's addresses, and lead nowhere."""
THERE: Final = frozenset({JoinStep.REGISTER_THERE, JoinStep.SEND_THERE, JoinStep.LISTEN_THERE})


class JoinWish(Struct, frozen=True):
    """What is asked. `supplier` is joined by `name`; `named`, `supplier_named`: how a command names the two.
    `network`: 16 bytes; None: as there. `listen`: where the new one is to listen; None: as its settings say. `address`:
    where the one there reaches it; None: where it listens. `there`: where it reaches that one; None: not known."""

    named: str
    name: str
    supplier_named: str
    supplier: str
    network: bytes | None = None
    listen: str | None = None
    address: Address | None = None
    there: Address | None = None

    @property
    def own(self) -> str:
        """`replicate -i` the new instance."""
        return f"replicate -i {shlex.quote(self.named)}"

    @property
    def other(self) -> str:
        """`replicate -i` the supplier."""
        return f"replicate -i {shlex.quote(self.supplier_named)}"


class SiteFacts(Struct, frozen=True):
    """How an instance stands. `listens_at`: of its Receiver Server; None: that does not run. `peers`: those that it
    sends to; `sends_to`: those whose Source Server runs."""

    name: str
    network: bytes
    role: str
    listens_at: Address | None
    peers: frozenset[str]
    sends_to: frozenset[str]
    is_seeded: bool = False
    applies: bool = False
    has_feed: bool = False


class PlannedStep(Struct, frozen=True):
    """`command`: what does the same by hand. `is_there`: it is for the supplier that is joined."""

    step: JoinStep
    is_done: bool
    command: str
    is_there: bool


def check(wish: JoinWish, here: SiteFacts | None, there: SiteFacts | None) -> None:
    """`here`: None as long as it is not made; `there`: None on another host. Raises the refusal."""
    if wish.name == wish.supplier:
        raise UsageError(f"{wish.name} cannot join itself", do="Name the supplier that it is to join")
    if wish.address is None and wish.listen is not None and parse_address(wish.listen, where="--listen").host in ANY:
        raise UsageError(
            f"where {wish.supplier} reaches {wish.name} is not known: {wish.listen} is every address of this host",
            do="Add --address HOST:PORT",
        )
    if there is None:
        _check_elsewhere(wish, here)
    elif there.role != SUPPLIER:
        raise ConfigurationError(
            f"{there.name} is {there.role}, and no supplier",
            where=wish.supplier_named,
            do=f"Make it one first: {wish.other} instance convert --role supplier",
        )
    network = wish.network if there is None else there.network
    if there is not None and wish.network not in (None, there.network):
        raise _other_network(there, wish.network)
    if here is None:
        return
    if network not in (None, here.network):
        raise _other_network(here, network)
    if here.name != wish.name:
        raise ConfigurationError(
            f"the instance there is {here.name}, and not {wish.name}",
            where=wish.named,
            do=f"Say --name {here.name}, or name another directory with -i",
        )
    if here.has_feed:
        raise ConfigurationError(
            f"{here.name} is a data feed, which is no supplier", where=wish.named, do="Name another directory with -i"
        )
    if here.role == "primary":
        raise ConfigurationError(
            f"{here.name} is primary: what it holds would be lost",
            where=wish.named,
            do="Name a directory that is not there yet with -i, or an instance that was to join before",
        )


def _check_elsewhere(wish: JoinWish, here: SiteFacts | None) -> None:
    if here is None and wish.network is None:
        raise UsageError(
            f"there is no instance {wish.supplier} on this host, so its network is not known",
            do=f"Add --network UUID, as it is printed there: {wish.other} instance show",
        )
    if wish.there is None and (here is None or wish.supplier not in here.peers):
        raise UsageError(
            f"where {wish.supplier} is reached is not known",
            do=f"Add the address at which its Receiver Server listens, or is to: {wish.own} replica "
            f"join {wish.supplier} HOST:PORT",
        )


def _other_network(of: SiteFacts, wanted: bytes | None) -> WrongNetworkError:
    asked = "none" if wanted is None else str(uuid.UUID(bytes=wanted))
    return WrongNetworkError(
        f"{of.name} is of network {uuid.UUID(bytes=of.network)}, and not of {asked}",
        do="Name a supplier of the same network, or a directory that is not there yet with -i",
    )


def plan(wish: JoinWish, here: SiteFacts | None, there: SiteFacts | None) -> tuple[PlannedStep, ...]:
    """All steps. Of another host (`there` None) those there are done once what follows from them is seen here."""
    return tuple(
        PlannedStep(step, _is_done(step, wish, here, there), _command(step, wish, here, there), step in THERE)
        for step in JoinStep
    )


def next_step(steps: tuple[PlannedStep, ...], *, is_here: bool) -> PlannedStep | None:
    """The first that is not done; None: all are. `is_here`: the supplier is on this host, so that steps there can be
    done; otherwise they are left to people there."""
    return next((one for one in steps if not one.is_done and (is_here or not one.is_there)), None)


def _is_done(step: JoinStep, wish: JoinWish, here: SiteFacts | None, there: SiteFacts | None) -> bool:
    if here is None:
        return step is JoinStep.LISTEN_THERE and there is not None and there.listens_at is not None
    is_supplier = here.role == SUPPLIER
    match step:
        case JoinStep.CREATE:
            return True
        case JoinStep.LISTEN:
            return here.listens_at is not None
        case JoinStep.REGISTER_THERE:
            return here.is_seeded if there is None else here.name in there.peers
        case JoinStep.SEND_THERE:
            return here.is_seeded if there is None else here.name in there.sends_to
        case JoinStep.SEED:
            return here.is_seeded or is_supplier
        case JoinStep.CONVERT:
            return is_supplier
        case JoinStep.LISTEN_THERE:
            return there is not None and there.listens_at is not None
        case JoinStep.REGISTER:
            return wish.supplier in here.peers
        case JoinStep.APPLY:
            return here.applies
        case JoinStep.SEND:
            return wish.supplier in here.sends_to


def _command(step: JoinStep, wish: JoinWish, here: SiteFacts | None, there: SiteFacts | None) -> str:
    own, other = shlex.quote(wish.named), shlex.quote(wish.supplier_named)
    given = {} if wish.listen is None else {"receiver.listen": wish.listen}
    network = there.network if there is not None else wish.network if here is None else here.network
    match step:
        case JoinStep.CREATE:
            uuid_ = "UUID" if network is None else str(uuid.UUID(bytes=network))
            return f"replicate instance create {own} --role secondary --name {wish.name} --network {uuid_}"
        case JoinStep.LISTEN:
            return f"{start_command('receiver', given, of=own)} --no-update"
        case JoinStep.REGISTER_THERE:
            return f"{wish.other} peer add {wish.name} {reached_at(wish, here) or 'HOST:PORT'}"
        case JoinStep.SEND_THERE:
            return start_command(f"source-{wish.name}", of=other)
        case JoinStep.SEED:
            return f"{wish.own} seed"
        case JoinStep.CONVERT:
            return f"{wish.own} instance convert --role supplier"
        case JoinStep.LISTEN_THERE:
            at = {} if wish.there is None else {"receiver.listen": str(wish.there)}
            return start_command("receiver", at, of=other)
        case JoinStep.REGISTER:
            return f"{wish.own} peer add {shlex.quote(wish.supplier)} {supplier_at(wish, there) or 'HOST:PORT'}"
        case JoinStep.APPLY:
            return start_command("update", of=own)
        case JoinStep.SEND:
            return start_command(f"source-{wish.supplier}", of=own)


def reached_at(wish: JoinWish, here: SiteFacts | None) -> Address | None:
    """Where the new instance is reached by the one there; None: not known yet."""
    at = wish.address or (None if here is None else here.listens_at)
    if at is None and wish.listen is not None:
        at = parse_address(wish.listen, where="--listen")
    return None if at is None or at.host in ANY else at


def supplier_at(wish: JoinWish, there: SiteFacts | None) -> Address | None:
    """Where the one there is reached; None: not known yet."""
    at = wish.there or (None if there is None else there.listens_at)
    return None if at is None or at.host in ANY else at
