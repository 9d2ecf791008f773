"""The instance file: who an instance is, which regions and peers it has. One small JSON text, replaced whole.

Guarantees: a reader sees the old content or the new one, never a mixture and never an empty file (written aside,
fsynced, renamed, directory fsynced); a damaged or newer file is refused by name; every name and path in it has been
validated. Refuses to know: journals, pools, databases, configuration; what the facts in it are used for.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import xxhash

from replicate.errors import (
    ConfigurationError,
    DamagedError,
    FormatUnknownError,
    NotFoundError,
    PermissionRefusedError,
    UsageError,
)
from replicate.limits import FORMAT_VERSION, NAME_PATTERN, REGIONS_MAX
from replicate.model.vector import Origin
from replicate.system.os_errors import NO_DESCRIPTORS, exhausted, mend

Role = Literal["primary", "secondary"]
_NAME: Final = re.compile(NAME_PATTERN)
WITH_WAITING: Final = 2
"""Format of a file with `waiting`, or with a passive peer: a release that does not know the one would apply rows of a
region that is not here to another one's table of the same name, and of the other keep the journal for ever."""
WITH_SUCCESSOR: Final = 3
"""Format of a file with `successor`: a release that does not know it would let an instance that has handed its role
over be made primary again, beside the other one."""
WITH_FEED: Final = 4
"""Format of the file of a data feed: a release that does not know it would make it primary, and stop at the tables that
others have made there."""
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


@dataclass(frozen=True, slots=True)
class RegionEntry:
    """A registered region. `region_id` (0 to 63) is its bit in the control block; never used again after a
    release."""

    region_id: int
    name: str
    uuid: bytes
    path: Path


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """A registered consumer of this instance's journal, and where its Receiver Server listens. `certificate`: the name
    in its certificate, "" when that is its own. `passive`: nothing is sent to it until it is activated, or this
    instance is made primary."""

    name: str
    host: str
    port: int
    certificate: str = ""
    passive: bool = False

    @property
    def certificate_name(self) -> str:
        """The name that its certificate must bear, where TLS is spoken."""
        return self.certificate or self.name

    @property
    def mode(self) -> str:
        """`active` or `passive`."""
        return PASSIVE if self.passive else ACTIVE


@dataclass(frozen=True, slots=True)
class Successor:
    """Who was made primary instead of this instance, after transaction `seqno` of its journal. `is_pending`: it was
    handed the role, and has not said yet that it has taken it."""

    name: str
    seqno: int
    is_pending: bool = False

    def __str__(self) -> str:
        """The end of a sentence about this instance."""
        what = "its role was handed over to" if self.is_pending else "the primary now is"
        return f"{what} {self.name}, after transaction {self.seqno}"


@dataclass(frozen=True, slots=True)
class InstanceFile:
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
    """On a secondary that was primary: who is it now, as far as this instance has been told."""
    is_feed: bool = False
    """A secondary that is no backup: others may have tables in its regions, and it never becomes primary."""

    @property
    def origin(self) -> Origin:
        """The origin of what this instance commits from now on."""
        return Origin(self.uuid, self.incarnation)

    @property
    def consumers(self) -> tuple[PeerEntry, ...]:
        """The peers that the journal is kept for: all of a primary's, so that one which is passive goes on where it
        was; of a secondary's those that are not, as it may have to wait for ever for the others."""
        return tuple(peer for peer in self.peers if self.role == "primary" or not peer.passive)


def _to_json(content: InstanceFile) -> dict[str, Any]:
    return (
        {
            "format": _format_of(content),
            "network": str(uuid.UUID(bytes=content.network)),
            "uuid": str(uuid.UUID(bytes=content.uuid)),
            "name": content.name,
            "incarnation": content.incarnation,
            "role": content.role,
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
                for p in content.peers
            ],
        }
        | ({"waiting": list(content.waiting)} if content.waiting else {})
        | _successor_facts(content.successor)
        | ({"feed": True} if content.is_feed else {})
    )


def _format_of(content: InstanceFile) -> int:
    if content.is_feed:
        return WITH_FEED
    if content.successor is not None:
        return WITH_SUCCESSOR
    return WITH_WAITING if content.waiting or any(p.passive for p in content.peers) else FORMAT_VERSION


def _successor_facts(successor: Successor | None) -> dict[str, Any]:
    if successor is None:
        return {}
    pending = {"pending": True} if successor.is_pending else {}
    return {"successor": {"name": successor.name, "seqno": successor.seqno, **pending}}


def _successor(facts: Any) -> Successor | None:
    if facts is None:
        return None
    return Successor(check_name(facts["name"], "instance"), int(facts["seqno"]), bool(facts.get("pending", False)))


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
    if type(version) is int and version > WITH_FEED:
        raise FormatUnknownError(
            f"the instance file has format {version!r}, this release knows {FORMAT_VERSION} to {WITH_FEED}",
            where=where,
            do="Use the release that wrote it, or a newer one",
        )
    if version not in (FORMAT_VERSION, WITH_WAITING, WITH_SUCCESSOR, WITH_FEED) or check != _digest(
        facts
    ):  # there has been no older format
        raise DamagedError(
            "the instance file was changed by hand or is damaged: its check does not match",
            where=where,
            do=f"Restore it from a backup (settings belong into replicate.toml){_ELSE}",
        )
    try:
        role = facts["role"]
        if role not in ("primary", "secondary"):
            raise ValueError(f"role {role!r}")
        content = InstanceFile(
            network=uuid.UUID(facts["network"]).bytes,
            uuid=uuid.UUID(facts["uuid"]).bytes,
            name=check_name(facts["name"], "instance"),
            incarnation=int(facts["incarnation"]),
            role=role,
            created_wall_ns=int(facts["created_wall_ns"]),
            journal_inode=str(facts["journal_inode"]),
            next_region_id=int(facts["next_region_id"]),
            home=str(facts["home"]),
            regions=tuple(
                RegionEntry(
                    int(r["id"]), check_name(r["name"], "region"), uuid.UUID(r["uuid"]).bytes, Path(str(r["path"]))
                )
                for r in facts["regions"]
            ),
            peers=tuple(
                PeerEntry(
                    check_name(p["name"], "peer"),
                    str(p["host"]),
                    int(p["port"]),
                    str(p.get("certificate", "")),
                    passive=_is_passive(p.get("mode", ACTIVE)),
                )
                for p in facts["peers"]
            ),
            waiting=tuple(check_name(name, "region") for name in facts.get("waiting", ())),
            successor=_successor(facts.get("successor")),
            is_feed=facts.get("feed", False) is True,
        )
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


def _is_passive(mode: object) -> bool:
    if mode not in (ACTIVE, PASSIVE):
        raise ValueError(f"mode {mode!r}")
    return mode == PASSIVE


def read_file(path: Path) -> InstanceFile:
    """Read and verify the instance file at `path`. NotFoundError, PermissionRefusedError or DamagedError when that
    cannot be done."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
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
    with os.fdopen(fd, "rb") as file:
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
