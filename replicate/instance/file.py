"""The instance file: who an instance is, which regions and peers it has. One small JSON text, replaced whole.

Guarantees: a reader sees the old content or the new one, never a mixture and never an empty file (written aside,
fsynced, renamed, directory fsynced); a damaged or newer file is refused by name; every name and path in it has been
validated. Leaves to others: journals, pools, databases, configuration; what the facts in it are used for.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import xxhash
from msgspec import Struct, field
from msgspec.structs import replace

from replicate.errors import (
    ConfigurationError,
    DamagedError,
    FormatUnknownError,
    NotFoundError,
    PermissionRefusedError,
    UsageError,
)
from replicate.limits import FORMAT_VERSION, NAME_PATTERN, PARTITION_MAX, PARTITION_NONE, PARTITION_STREAM, REGIONS_MAX
from replicate.model.elements import elements_in, left_out
from replicate.model.partitions import ONLY_DEFAULT, Partitions, unpack
from replicate.model.subscription import COMES, FROZEN, HERE, NOT_WANTED, WAITS, Rows, Subscription
from replicate.model.table_wish import has_list, told_wishes
from replicate.model.transaction import TableDefinition
from replicate.model.vector import Origin
from replicate.model.writers import SUPPLIER
from replicate.system.files import open_to_read
from replicate.system.os_errors import NO_DESCRIPTORS, exhausted, mend

Role = Literal["primary", "secondary"]
_NAME: Final = re.compile(NAME_PATTERN)
WITH_WAITING: Final = 2
"""Format of a file with `waiting`, or with a passive peer: a release that does not know the one would apply rows of a
region that is not here to another one's table of the same name, and of the other keep the journal for ever."""
WITH_SUCCESSOR: Final = 3
"""Format of a file with `successor`: a release that does not know it would let an instance that has handed its role
over be made primary again, beside the other one."""
WITH_FENCE: Final = 4
"""Format of a file with a `successor` that has superseded this instance, with `overruled`, or with `frozen`, and of a
data feed: a release that does not know them would take writes again, beside that other primary or against the
operator's word, or make a feed primary, and stop at the tables that others have made there."""
WITH_PARTITIONS: Final = 5
"""Format of a file with `partitions`, or with `subscription`: a release that does not know them would send rows that
are to stay here, and ask for everything where rows of some partitions are here."""
WITH_PACKETS: Final = 6
"""Format of a file with a peer that no line leads to: a release that does not know it would want a Source Server for
it."""
WITH_SUPPLIER: Final = 7
"""Format of a file of a supplier: a release that knows none of them must not take it for a primary."""
WITH_LOADS: Final = 8
"""Format of a file with `streamed`: a release that does not know it would apply changes of rows that are not here."""
WITH_ELEMENTS: Final = 9
"""Format of a file whose partitions hold audit elements: a release that does not know it would send schema changes to
everybody."""
WITH_ROWS: Final = 10
"""Format of a file with `rows`: a release that does not know them would ask for all rows where some are here."""
WITH_COLUMNS: Final = 11
"""Format of one in which they list columns: a release that does not know that could not read them."""
FORMATS: Final = (
    FORMAT_VERSION, WITH_WAITING, WITH_SUCCESSOR, WITH_FENCE, WITH_PARTITIONS, WITH_PACKETS, WITH_SUPPLIER, WITH_LOADS,
    WITH_ELEMENTS, WITH_ROWS, WITH_COLUMNS,
)  # fmt: skip
ACTIVE: Final = "active"
PASSIVE: Final = "passive"
_ELSE: Final = (
    "; or begin again: stop its processes, replicate region plain FILE for each of its databases (the rows stay as "
    "they are), move those that lie in the instance away, replicate -i INSTANCE instance remove --force, and make it "
    "again"
)
"""No commands but those do without the file."""


def check_name(name: str, what: str) -> str:
    """The name itself when it is a valid name of an instance, region or peer; UsageError otherwise."""
    if not _NAME.match(name):
        raise UsageError(
            f"{name!r} is no {what} name",
            do="Use 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit",
        )
    return name


class RegionEntry(Struct, frozen=True):
    """A registered region. `region_id` (0 to 63) is its bit in the control block; never used again after a
    release."""

    region_id: int
    name: str
    uuid: bytes
    path: Path


class PeerEntry(Struct, frozen=True):
    """A registered consumer of this instance's journal, and where its Receiver Server listens: at port 0 nowhere, for
    it gets packets. `certificate`: the name in its certificate, "" when that is its own. `passive`: nothing is sent to
    it until it is activated, or this instance is made primary. `partitions`: the most that it may have, ascending;
    None: all. `outbox`, `inbox`: directories of packets for it, and of it; "": those of the settings."""

    name: str
    host: str
    port: int
    certificate: str = ""
    passive: bool = False
    partitions: tuple[int, ...] | None = None
    outbox: str = ""
    inbox: str = ""

    @property
    def by_packets(self) -> bool:
        """It has no address: it gets packets, and no Source Server sends to it."""
        return not self.port

    @property
    def address(self) -> str:
        """Where it is, for people."""
        return "by packets" if self.by_packets else f"{self.host}:{self.port}"

    @property
    def whereabouts(self) -> str:
        """The same as the end of a sentence."""
        return self.address if self.by_packets else f"at {self.address}"

    def may_have(self, number: int) -> bool:
        """Whether rows of that partition may go to it."""
        return self.partitions is None or number in (PARTITION_STREAM, *self.partitions)

    @property
    def certificate_name(self) -> str:
        """The name that its certificate must bear, where TLS is spoken."""
        return self.certificate or self.name

    @property
    def mode(self) -> str:
        """`active` or `passive`."""
        return PASSIVE if self.passive else ACTIVE


class Successor(Struct, frozen=True):
    """Who was made primary instead of this instance, after transaction `seqno` of its journal. Of a supplier: who has
    said that it is gone for good, and had its transactions up to `seqno`. `is_pending`: it was
    handed the role, and has not said yet that it has taken it. `origin` not 0: it took over by the record that began
    the origin with that key, and this instance, which was still primary, heard so at `heard_wall_ns`: it is fenced, and
    stays so until it follows again or takes its role back."""

    name: str
    seqno: int
    is_pending: bool = False
    origin: int = 0
    heard_wall_ns: int = 0

    @property
    def is_fence(self) -> bool:
        """It has superseded this instance, which may have transactions that nobody else has."""
        return self.origin != 0

    def __str__(self) -> str:
        """The end of a sentence about this instance."""
        if self.is_fence:
            return f"it was superseded by {self.name}, which took over after transaction {self.seqno}"
        what = "its role was handed over to" if self.is_pending else "the primary now is"
        return f"{what} {self.name}, after transaction {self.seqno}"


class Frozen(Struct, frozen=True):
    """That an operator wants no more transactions committed, or applied. `by`: the user who said so."""

    wall_ns: int
    by: str

    def __str__(self) -> str:
        """The end of a sentence about this instance."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.wall_ns / 1e9))
        return f"frozen by {self.by}, since {since}"


class InstanceFile(Struct, frozen=True):
    """Everything in the file. `journal_inode` tells a restored copy from the original (design §5)."""

    network: bytes
    uuid: bytes
    name: str
    incarnation: int
    role: Role
    created_wall_ns: int
    journal_inode: str
    regions: tuple[RegionEntry, ...] = ()
    peers: tuple[PeerEntry, ...] = ()
    next_region_id: int = 0
    home: str = ""
    """The directory that the instance was last changed in: tells a moved instance from a copy beside its original."""
    waiting: tuple[str, ...] = ()
    """On a secondary: regions of the primary that are not here, and wait for their seed (region_record.py)."""
    successor: Successor | None = None
    """On a secondary that was primary: who is it now, as far as this instance has been told. On a primary: who has
    superseded it; it takes no writes, and is about to be a secondary. On a supplier: who has said that it is gone for
    good; it takes no writes, either."""
    is_feed: bool = False
    """A secondary that is no backup: others may have tables in its regions, and it never becomes primary."""
    overruled: int = 0
    """On a primary that took its role back: the key of the origin of the takeover that superseded it; 0: none."""
    is_restored: bool = False
    """On a primary: its files were those of a backup since its role last changed. On a secondary: it was such a
    primary, and waits for what it had (roles/restored_primary.py)."""
    frozen: Frozen | None = None
    """Whatever its role."""
    partitions: Partitions = ONLY_DEFAULT
    """On a secondary they say what numbers are called; the tables are where its source has put them."""
    subscription: tuple[int, ...] | None = None
    """On a secondary: the partitions whose rows are wanted there, ascending; None: all of them."""
    held: tuple[int, ...] | None = None
    """The same of those whose rows are there, and come. What is wanted beside them comes with a seed."""
    streamed: Mapping[int, int] = field(default_factory=dict)
    """As in model/subscription.py, and so is what comes next."""
    removed: tuple[int, ...] = ()
    """Partitions that were held here once, and whose rows are as they were then."""
    rows: Rows = field(default_factory=dict)
    held_rows: Rows = field(default_factory=dict)
    """On a secondary: of which tables some rows are wanted, and here."""
    is_supplier: bool = False
    """A primary that takes what other suppliers commit, beside its own transactions."""

    @property
    def told_role(self) -> str:
        """As people and peers are told: primary, secondary or supplier."""
        return SUPPLIER if self.is_supplier else self.role

    @property
    def receives(self) -> bool:
        """Whether transactions of others are applied here."""
        return self.role == "secondary" or self.is_supplier

    @property
    def takes_writes(self) -> bool:
        """Whether transactions may be given numbers here."""
        return self.role == "primary" and self.successor is None and not self.is_restoring

    @property
    def is_restoring(self) -> bool:
        """Its files were those of a backup, and it takes no writes until it has back what it had: a supplier, or one
        that was the only primary, and is secondary meanwhile."""
        return self.is_restored and (self.is_supplier or self.role == "secondary")

    @property
    def retired_by(self) -> Successor | None:
        """Of a supplier: who has said that it is gone for good."""
        return self.successor if self.is_supplier else None

    @property
    def fence(self) -> Successor | None:
        """Who has superseded it, as long as that is not settled."""
        return self.successor if self.successor is not None and self.successor.is_fence else None

    @property
    def origin(self) -> Origin:
        """The origin of what this instance commits from now on."""
        return Origin(self.uuid, self.incarnation)

    @property
    def consumers(self) -> tuple[PeerEntry, ...]:
        """The peers that the journal is kept for: all of a primary's, so that one which is passive goes on where it
        was; of a secondary's those that are not, as it may have to wait for ever for the others."""
        return tuple(peer for peer in self.peers if self.role == "primary" or not peer.passive)

    @property
    def choice(self) -> Subscription:
        """What of the partitions is wanted here, is here, and is on its way."""
        return Subscription(
            self.subscription, self.held, self.streamed, self.removed, rows=self.rows, held_rows=self.held_rows
        )

    def choosing(self, made: Subscription) -> InstanceFile:
        """The same with that choice."""
        streamed = dict(made.streamed)
        return replace(
            self,
            subscription=made.wanted,
            held=made.held,
            streamed=streamed,
            removed=made.frozen,
            rows=dict(made.rows),
            held_rows=dict(made.held_rows),
        )

    def bringing(self, numbers: Collection[int]) -> str:
        """The arguments of the command that brings these partitions, which are wanted here: their rows beside the
        stream; with a seed of all, where one of them has an audit element, which is in no rows."""
        if any(elements_in(self.partitions.elements, number) for number in numbers):
            return "seed --restart"
        return f"seed{''.join(f' --partition {self.partitions.name(number)}' for number in numbers)}"

    def subscribed(self, only: Collection[int] = ()) -> list[tuple[str, int, str]]:
        """Name, number and state of each of these partitions; of none named, of all that are known, wanted or here."""
        mine = {*(self.subscription or ()), *(self.held or ()), *self.choice.frozen}
        numbers = set(only) or {*mine, *self.partitions.names}
        return [(self.partitions.name(number), number, self.told_state(number)) for number in sorted(numbers)]

    def told_state(self, number: int) -> str:
        """How people are told of a partition. One of an audit element has no rows that could wait, or be frozen."""
        state, elements = self.choice.state(number), elements_in(self.partitions.elements, number)
        if state == HERE and self.receives and not self.regions:
            return COMES
        if elements and state == WAITS:
            return f"waits for the next seed, for {', '.join(elements)}"
        if elements and state in (FROZEN, NOT_WANTED):
            return f"not wanted: what this site has of {', '.join(elements)} is its own"
        return state

    def passes_over(self, number: int) -> bool:
        """Whether changes of that partition are journalled here and not applied: its rows are not here, or not yet."""
        return self.held is not None and not self.holds(number)

    def holds(self, number: int) -> bool:
        """Whether the rows of that partition are here, all of them."""
        if number == PARTITION_STREAM:  # what goes to everybody
            return True
        if self.receives and number == PARTITION_NONE:
            return False
        return self.held is None or number in self.held

    @property
    def held_from(self) -> tuple[object, ...]:
        """What of the partitions, rows and columns is held, and from where on the journal here has each partition: one
        that was removed and loaded again is held as before, and lacks what came between."""
        return self.held, {one: self.streamed.get(one, 0) for one in self.held or ()}, self.held_rows

    def holds_all_of(self, definition: TableDefinition) -> bool:
        """Whether the rows of that table are here, all of them."""
        return self.holds(definition.partition) and (definition.region, definition.table) not in self.held_rows

    @property
    def partitions_here(self) -> dict[str, int] | None:
        """By the names of the partitions that are wanted here: 1 where their rows are here, 0 where they are not yet;
        None on an instance that has all."""
        if self.held is None:
            return None
        numbers = {*self.held, *(self.partitions.names if self.subscription is None else self.subscription)}
        is_filled = bool(self.regions)
        return {
            self.partitions.name(one): int(is_filled and self.holds(one)) for one in sorted(numbers) if self.wants(one)
        }

    @property
    def told_states(self) -> str | None:
        """How each partition is here, in a line; None on an instance that has all."""
        if self.held is None:
            return None
        return "; ".join(f"{name} {state}" for name, _, state in self.subscribed_here)

    @property
    def subscribed_here(self) -> list[tuple[str, int, str]]:
        """As `subscribed`, without those of which nothing is wanted, and nothing was ever here."""
        return [one for one in self.subscribed() if one[2] != NOT_WANTED]

    @property
    def is_partial(self) -> bool:
        """Whether it is a secondary that does not get all: some partitions, or some rows or columns of a table."""
        return self.held is not None or bool(self.held_rows)

    @property
    def told_held(self) -> str:
        """The end of a sentence about a secondary that has some partitions, or some rows of a table, only; "" for any
        other."""
        some = told_rows(self.held_rows)
        if self.held is None:
            return f"has {some}" if some else ""
        told = f"has the rows of {', '.join(map(self.partitions.name, self.held)) or 'no partition'} only"
        absent = left_out(self.partitions.elements, self.holds)
        told += f", and does not get {', '.join(absent)}" if absent else ""
        return f"{told}; it has {some}" if some else told

    def told_partitions(self, numbers: Collection[int] | None) -> dict[str, Any]:
        """What a line of a log says of a stream of these partitions; None, and what goes to everybody alone: nothing of
        an instance that has all."""
        if numbers is None or (not numbers and self.held is None):
            return {}
        return {"partitions": [self.partitions.name(number) for number in numbers if number != PARTITION_STREAM]}

    @property
    def getting_all(self) -> list[str]:
        """The arguments of the commands by which all rows are wanted here, on a secondary that has not."""
        partitions = ["subscription set ALL"] if self.held is not None else []
        return partitions + [f"subscription filter {'.'.join(key)} --none" for key in sorted(self.held_rows)]

    def wants(self, number: int) -> bool:
        """Whether the rows of that partition are to be here."""
        if self.role == "secondary" and number == PARTITION_NONE:
            return False
        return self.subscription is None or number in self.subscription


def told_rows(rows: Rows) -> str:
    """What is wanted of these tables, for the end of a sentence; "" for none."""
    return told_wishes([(".".join(filter(None, key)), text) for key, text in sorted(rows.items())])


def _to_json(content: InstanceFile) -> dict[str, Any]:
    return (
        {
            "format": _format_of(content),
            "network": str(uuid.UUID(bytes=content.network)),
            "uuid": str(uuid.UUID(bytes=content.uuid)),
            "name": content.name,
            "incarnation": content.incarnation,
            "role": content.told_role,
            "created_wall_ns": content.created_wall_ns,
            "journal_inode": content.journal_inode,
            "next_region_id": content.next_region_id,
            "home": content.home,
            "regions": [
                {"id": r.region_id, "name": r.name, "uuid": str(uuid.UUID(bytes=r.uuid)), "path": str(r.path)}
                for r in content.regions
            ],
            "peers": [
                {"name": p.name, "host": p.host, "port": p.port}
                | ({"certificate": p.certificate} if p.certificate else {})
                | ({"mode": PASSIVE} if p.passive else {})
                | ({"partitions": list(p.partitions)} if p.partitions is not None else {})
                | ({"outbox": p.outbox} if p.outbox else {})
                | ({"inbox": p.inbox} if p.inbox else {})
                for p in content.peers
            ],
        }
        | ({"waiting": list(content.waiting)} if content.waiting else {})
        | _successor_facts(content.successor)
        | ({"feed": True} if content.is_feed else {})
        | ({"overruled": content.overruled} if content.overruled else {})
        | ({"restored": True} if content.is_restored else {})
        | ({"frozen": {"wall_ns": content.frozen.wall_ns, "by": content.frozen.by}} if content.frozen else {})
        | ({"partitions": content.partitions.pack()} if content.partitions != ONLY_DEFAULT else {})
        | ({"subscription": list(content.subscription)} if content.subscription is not None else {})
        | ({"held": list(content.held)} if content.held is not None else {})
        | ({"streamed": [list(one) for one in sorted(content.streamed.items())]} if content.streamed else {})
        | ({"removed": list(content.removed)} if content.removed else {})
        | ({"rows": _packed_rows(content.rows)} if content.rows else {})
        | ({"held_rows": _packed_rows(content.held_rows)} if content.held_rows else {})
    )


def _packed_rows(rows: Rows) -> list[list[str]]:
    return [[*key, condition] for key, condition in sorted(rows.items())]


def _rows(facts: Any) -> Rows:
    found = {(region, table): condition for region, table, condition in facts}
    if not all(type(text) is str for key, condition in found.items() for text in (*key, condition)):
        raise ValueError(f"rows {facts!r}")
    return found


def _format_of(content: InstanceFile) -> int:
    if any(has_list(text) for rows in (content.rows, content.held_rows) for text in rows.values()):
        return WITH_COLUMNS
    if content.rows or content.held_rows:
        return WITH_ROWS
    if content.partitions.elements:
        return WITH_ELEMENTS
    if content.streamed:
        return WITH_LOADS
    if content.is_supplier:
        return WITH_SUPPLIER
    if any(p.by_packets for p in content.peers):
        return WITH_PACKETS
    choices = (content.subscription, content.held, *(p.partitions for p in content.peers))
    if content.partitions != ONLY_DEFAULT or any(one is not None for one in choices):
        return WITH_PARTITIONS
    if content.fence is not None or content.overruled or content.frozen is not None or content.is_feed:
        return WITH_FENCE
    if content.successor is not None:
        return WITH_SUCCESSOR
    return WITH_WAITING if content.waiting or any(p.passive for p in content.peers) else FORMAT_VERSION


def _successor_facts(successor: Successor | None) -> dict[str, Any]:
    if successor is None:
        return {}
    more: dict[str, Any] = {"pending": True} if successor.is_pending else {}
    if successor.is_fence:
        more |= {"fenced": {"origin": successor.origin, "wall_ns": successor.heard_wall_ns}}
    return {"successor": {"name": successor.name, "seqno": successor.seqno, **more}}


def _successor(facts: Any) -> Successor | None:
    if facts is None:
        return None
    fenced = facts.get("fenced", {"origin": 0, "wall_ns": 0})
    return Successor(
        check_name(facts["name"], "instance"),
        int(facts["seqno"]),
        bool(facts.get("pending", False)),
        int(fenced["origin"]),
        int(fenced["wall_ns"]),
    )


def _frozen(facts: Any) -> Frozen | None:
    return None if facts is None else Frozen(int(facts["wall_ns"]), str(facts["by"]))


def _numbers(facts: Any) -> tuple[int, ...] | None:
    if facts is None:
        return None
    wanted = tuple(facts)
    if not all(type(number) is int and 1 <= number <= PARTITION_MAX for number in wanted):
        raise ValueError(f"partitions {facts!r}")
    return wanted


def _digest(facts: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(facts, sort_keys=True).encode())


def encode(content: InstanceFile) -> bytes:
    """The file's bytes: readable JSON with a check over its content."""
    facts = _to_json(content)
    return (json.dumps({"check": _digest(facts), **facts}, indent=2) + "\n").encode()


def decode(raw: bytes, where: str) -> InstanceFile:
    """The content of a file's bytes. Raises FormatUnknownError for a newer format and DamagedError for anything that
    does not verify."""
    try:
        facts = json.loads(raw)
        if not isinstance(facts, dict):
            raise TypeError("not an object")
        check = facts.pop("check", None)
        version = facts["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(
            "the instance file is not readable", where=where, do=f"Restore it from a backup{_ELSE}"
        ) from error
    if type(version) is int and version > max(FORMATS):
        raise FormatUnknownError(
            f"the instance file has format {version!r}, this release knows {FORMAT_VERSION} to {max(FORMATS)}",
            where=where,
            do="Use the release that wrote it, or a newer one",
        )
    if version not in FORMATS or check != _digest(facts):  # there has been no older format
        raise DamagedError(
            "the instance file was changed by hand or is damaged: its check does not match",
            where=where,
            do=f"Restore it from a backup (settings belong into replicate.toml){_ELSE}",
        )
    try:
        content = _from_json(facts)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, UsageError) as error:
        raise DamagedError(
            f"the instance file makes no sense: {error}", where=where, do=f"Restore it from a backup{_ELSE}"
        ) from error
    if content.incarnation < 1 or len(content.regions) > REGIONS_MAX:
        raise DamagedError(
            "the instance file makes no sense: incarnation or regions out of range",
            where=where,
            do=f"Restore it from a backup{_ELSE}",
        )
    return content


def _from_json(facts: dict[str, Any]) -> InstanceFile:
    """What the file says. Raises ValueError, KeyError, TypeError, AttributeError, OverflowError or UsageError where it
    makes no sense."""
    is_supplier = facts["role"] == SUPPLIER
    role: Any = "primary" if is_supplier else facts["role"]
    if role not in ("primary", "secondary"):
        raise ValueError(f"role {role!r}")
    streamed = dict(facts.get("streamed", ()))
    return InstanceFile(
        network=uuid.UUID(facts["network"]).bytes,
        uuid=uuid.UUID(facts["uuid"]).bytes,
        name=check_name(facts["name"], "instance"),
        incarnation=int(facts["incarnation"]),
        role=role,
        created_wall_ns=int(facts["created_wall_ns"]),
        journal_inode=str(facts["journal_inode"]),
        next_region_id=int(facts["next_region_id"]),
        home=str(facts["home"]),
        regions=tuple(map(_region_of, facts["regions"])),
        peers=tuple(map(_peer_of, facts["peers"])),
        waiting=tuple(check_name(name, "region") for name in facts.get("waiting", ())),
        successor=_successor(facts.get("successor")),
        is_feed=facts.get("feed", False) is True,
        overruled=int(facts.get("overruled", 0)),
        is_restored=bool(facts.get("restored", False)),
        frozen=_frozen(facts.get("frozen")),
        partitions=unpack(facts["partitions"]) if "partitions" in facts else ONLY_DEFAULT,
        subscription=_numbers(facts.get("subscription")),
        held=_numbers(facts.get("held")),
        streamed=dict(zip(_numbers(streamed) or (), map(int, streamed.values()), strict=True)),
        removed=_numbers(facts.get("removed")) or (),
        rows=_rows(facts.get("rows", ())),
        held_rows=_rows(facts.get("held_rows", ())),
        is_supplier=is_supplier,
    )


def _region_of(facts: dict[str, Any]) -> RegionEntry:
    return RegionEntry(
        int(facts["id"]), check_name(facts["name"], "region"), uuid.UUID(facts["uuid"]).bytes, Path(str(facts["path"]))
    )


def _peer_of(facts: dict[str, Any]) -> PeerEntry:
    return PeerEntry(
        check_name(facts["name"], "peer"),
        str(facts["host"]),
        int(facts["port"]),
        str(facts.get("certificate", "")),
        passive=_is_passive(facts.get("mode", ACTIVE)),
        partitions=_numbers(facts.get("partitions")),
        outbox=str(facts.get("outbox", "")),
        inbox=str(facts.get("inbox", "")),
    )


def _is_passive(mode: object) -> bool:
    if mode not in (ACTIVE, PASSIVE):
        raise ValueError(f"mode {mode!r}")
    return mode == PASSIVE


def read_file(path: Path) -> InstanceFile:
    """Read and verify the instance file at `path`. NotFoundError, PermissionRefusedError or DamagedError when that
    cannot be done."""
    try:
        file = open_to_read(path)
    except FileNotFoundError:
        raise NotFoundError(
            "there is no instance here",
            where=str(path.parent),
            do="Name an existing one with -i, or make it: replicate instance create",
        ) from None
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise exhausted(error, "the instance file cannot be read", str(path)) from error
        raise PermissionRefusedError(
            f"the instance file cannot be read: {error.strerror}", where=str(path), do=mend(error)
        ) from error
    with file:
        return decode(file.read(16 * 1024 * 1024), str(path))


def check_unique(content: InstanceFile) -> None:
    """ConfigurationError when two regions or two peers bear one name, or two regions one path."""
    for what, names in (
        ("region name", [r.name for r in content.regions]),
        ("region path", [str(r.path) for r in content.regions]),
        ("peer name", [p.name for p in content.peers]),
    ):
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"two entries have the same {what}: {name}")
