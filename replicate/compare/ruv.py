"""The replication update vector of a site, and what two of them say of each other: who would send what to whom.

Guarantees: the decision is that of model/ruv.py, which answers a supplier that connects: no second rule. A vector of
another network is refused.
Leaves to others: connections; how it is shown (cli/ruv.py).
"""

from __future__ import annotations

import json
import uuid
from typing import Any, Final

from msgspec import Struct, to_builtins

from replicate.door.ruv_view import vectors_of
from replicate.door.snapshot import door_of
from replicate.errors import DamagedError, FormatUnknownError, UsageError, WrongNetworkError
from replicate.instance.instance import Instance
from replicate.model.ruv import (
    NOTHING,
    Decision,
    NothingToSend,
    Send,
    Supplied,
    compare,
    decide,
    minimum,
)
from replicate.model.vector import U64_MAX, Origin
from replicate.wire.vector_refusals import refused

FORMAT: Final = 1
_DO: Final = "Print it again there: replicate -i OTHER --json ruv >FILE"


class OriginPlace(Struct, frozen=True):
    """An incarnation of an instance: its last transaction here, and the first one that the journal here still holds (0:
    all, with the record that opens it). `chain`: hash over all of it up to the last, in hexadecimal."""

    name: str
    incarnation: int
    instance: str
    last: int
    chain: str
    held_from: int


class Ruv(Struct, frozen=True):
    """Of one site. `incarnation`: the one that it writes now."""

    instance: str
    uuid: str
    network: str
    role: str
    incarnation: int
    seqno: int
    origins: tuple[OriginPlace, ...]
    format: int = FORMAT

    def known(self) -> dict[int, tuple[int, int]]:
        """As the decision takes it."""
        return {_key(one): (one.last, int(one.chain, 16)) for one in self.origins}

    def begin(self) -> dict[int, tuple[int, int]]:
        """The vector just before the journal's oldest transaction."""
        return {_key(one): (one.held_from - 1, 0) for one in self.origins if one.held_from}


class WouldSend(Struct, frozen=True):
    """What `supplier` would do for `consumer`; `is_well`: send, or have nothing to send."""

    supplier: str
    consumer: str
    text: str
    do: str
    is_well: bool


class BothOrigins(Struct, frozen=True):
    """One origin on both sides; -1: never met. `relation`: of the other site's to ours."""

    name: str
    incarnation: int
    ours: int
    theirs: int
    relation: str


class BothRuvs(Struct, frozen=True):
    """`minimum`: origin -> the number up to which both have it."""

    here: str
    there: str
    origins: tuple[BothOrigins, ...]
    minimum: dict[str, int]
    directions: tuple[WouldSend, WouldSend]

    @property
    def is_well(self) -> bool:
        """Whether each can serve the other."""
        return all(one.is_well for one in self.directions)


def _key(one: OriginPlace) -> int:
    return Origin(bytes.fromhex(one.instance), one.incarnation).key


def ruv_of(instance: Instance) -> Ruv:
    """How far it is. Raises what opening its door raises (NotFoundError: not seeded)."""
    with door_of(instance) as door:
        viewed = vectors_of(door)
    named = {one.origin.key: one for one in viewed.catalogue.histories}
    origins = []
    for key, (last, chain) in viewed.supplied.end.items():
        history = named.get(key)
        if history is None:
            continue
        held_from = viewed.supplied.begin.get(key, (NOTHING, 0))[0] + 1
        origins.append(
            OriginPlace(history.name, history.incarnation, history.instance.hex(), last, f"{chain:016x}", held_from)
        )
    content = instance.content
    return Ruv(
        content.name, content.uuid.hex(), str(uuid.UUID(bytes=content.network)), content.told_role,
        content.incarnation, viewed.end.last_seqno, tuple(sorted(origins, key=lambda one: (one.name, one.incarnation))),
    )  # fmt: skip


def told(found: Ruv) -> dict[str, Any]:
    """As `--json ruv` prints it, and `parse` reads it."""
    facts: dict[str, Any] = to_builtins(found)
    return facts


def parse(text: str, *, where: str) -> Ruv:
    """A vector that `--json ruv` has printed. DamagedError, FormatUnknownError."""
    try:
        facts: dict[str, Any] = json.loads(text)
        if facts["format"] != FORMAT:
            raise FormatUnknownError(
                f"the vector has format {str(facts['format'])[:20]}, this release knows {FORMAT}", where=where, do=_DO
            )
        origins = tuple(OriginPlace(**_checked(OriginPlace, one)) for one in facts.pop("origins"))
        return Ruv(**_checked(Ruv, facts | {"origins": origins}))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedError(f"this is no vector: {error}", where=where, do=_DO) from None


_IN_HEX: Final[dict[type, tuple[str, ...]]] = {OriginPlace: ("instance", "chain"), Ruv: ("uuid",)}


def _checked(kind: type, facts: dict[str, Any]) -> dict[str, Any]:
    if facts.keys() != kind.__annotations__.keys():
        raise ValueError(f"not the fields of {kind.__name__}")
    for name, value in facts.items():
        wanted = {"int": int, "str": str}.get(str(kind.__annotations__[name]))
        if wanted is not None and type(value) is not wanted:
            raise ValueError(f"{name} is {value!r}"[:80])
        if wanted is int and not 0 <= value <= U64_MAX:
            raise ValueError(f"{name} is {value!r}"[:80])
    for name in _IN_HEX.get(kind, ()):
        bytes.fromhex(facts[name])
    return facts


def compare_ruvs(here: Ruv, there: Ruv) -> BothRuvs:
    """Both beside each other, and what each would do for the other. WrongNetworkError; UsageError for one and the
    same."""
    if here.network != there.network:
        raise WrongNetworkError(
            f"{there.instance} belongs to network {there.network}, {here.instance} to {here.network}"
        )
    if here.uuid == there.uuid:
        raise UsageError(f"both vectors are of {here.instance}", do="Name another site")
    names = {_key(one): (one.name, one.incarnation) for one in (*here.origins, *there.origins)}
    ours, theirs = here.known(), there.known()
    origins = tuple(
        BothOrigins(*names[one.origin], one.supplier, one.consumer, one.relation.value) for one in compare(theirs, ours)
    )
    both = {f"{names[key][0]} {names[key][1]}": last for key, last in minimum([ours, theirs]).items()}
    return BothRuvs(
        here.instance, there.instance, tuple(sorted(origins, key=lambda one: (one.name, one.incarnation))), both,
        (_direction(here, there), _direction(there, here)),
    )  # fmt: skip


def _direction(supplier: Ruv, consumer: Ruv) -> WouldSend:
    names = {_key(one): one.name for one in (*supplier.origins, *consumer.origins)}
    decision: Decision = decide(consumer.known(), Supplied(supplier.known(), supplier.begin()))
    match decision:
        case NothingToSend():
            text, do, is_well = f"{supplier.instance} has nothing to send to {consumer.instance}", "", True
        case Send(origins):
            known, mine = consumer.known(), supplier.known()
            counted = ", ".join(
                f"{mine[one][0] - max(0, known.get(one, (0, 0))[0])} of {names.get(one, f'{one:08x}')}"
                for one in origins
            )
            text, do, is_well = f"{supplier.instance} sends to {consumer.instance}: {counted}", "", True
        case _:
            error = refused(decision, names)
            text, do, is_well = f"{supplier.instance} refuses {consumer.instance}: {error.what}", error.do, False
    return WouldSend(supplier.instance, consumer.instance, text, do, is_well)
