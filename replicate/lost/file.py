"""The file that lost transactions are written to before their journal goes: JSON lines, for people and programs.

    {"format": 1, "cause": …, "role": …, "instance": …, "uuid": …, "network": …, "incarnation": …, "from": …, "to": …,
     "peers": [{"name": …, "acknowledged_seqno": …} …], "common": N (of a rollback), "written": TIME}
    a line for each transaction, as `journal show --json` prints it; the parts of a large one are lines after it
    {"transactions": COUNT, "data": COUNT, "origins": [[ORIGIN, DATA, FIRST, LAST] …],
     "unreadable": [{"from": …, "to": …, "why": …} …], "xxh3": HASH OF ALL BEFORE, "check": HASH OF THIS LINE}
                            "data": how many of them carry data; "origins": of each origin its data, and its first and
                            its last one: [SEQNO, ORIGIN SEQNO, CHAIN]; older releases wrote none of these two, and no
                            "check"

Guarantees: under its name it is whole and durable, its directory too; a file that is there is never replaced. After a
failure nothing of it is left; a killed writer may leave its half under another name (PART_SUFFIX). One writer at a
time: the caller sees to that, and removes what such a one left.
Leaves to others: which transactions those are (lost/peers_lack.py), where the file belongs, and what becomes of it.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from msgspec import Struct
from xxhash import xxh3_64

from replicate.journal.record import CHANGES_BEGIN, LARGE_BEGINS
from replicate.limits import KIB, MIB
from replicate.model.transaction import Kind
from replicate.system.files import open_to_read, sync_directory
from replicate.system.os_errors import io_error

if TYPE_CHECKING:
    from replicate.audit.show import ShownTransaction

FORMAT: Final = 1
SUFFIX: Final = ".jsonl"
PART_SUFFIX: Final = ".part"
LAST_LINE_BYTES_MAX: Final = 16 * MIB
_TAIL_BYTES: Final = 64 * KIB
_BLOCK_BYTES: Final = MIB
LARGE_NAMES: Final = tuple(Kind(kind).name for kind in LARGE_BEGINS)
"""Of the lines: what commits the parts that stand after it."""
DATA_KINDS: Final = (*(Kind(kind).name for kind in CHANGES_BEGIN), *LARGE_NAMES)
"""Of the lines: what is somebody's data."""


class LostHead(Struct, frozen=True):
    """The first line. `known_seqno`: the last number that is known, `is_open`: how far it goes beyond is not. `peers`:
    name and what each has acknowledged. `common`: of a rollback, the last number that stays."""

    cause: str
    role: str
    instance: str
    uuid: str
    network: str
    incarnation: int
    from_seqno: int
    known_seqno: int
    peers: tuple[tuple[str, int], ...]
    is_open: bool = False
    common: int | None = None

    @property
    def to_seqno(self) -> int | None:
        """Where it ends, None where that is not known."""
        return None if self.is_open else self.known_seqno

    def facts(self) -> dict[str, object]:
        """As it stands in the file, but for the time."""
        return {
            "format": FORMAT,
            "cause": self.cause,
            "role": self.role,
            "instance": self.instance,
            "uuid": self.uuid,
            "network": self.network,
            "incarnation": self.incarnation,
            "from": self.from_seqno,
            "to": self.to_seqno,
            "peers": [{"name": name, "acknowledged_seqno": seqno} for name, seqno in self.peers],
        } | ({} if self.common is None else {"common": self.common})

    def is_covered_by(self, facts: dict[str, Any]) -> bool:
        """Whether a file with that first line holds what is known of the same numbers of the same journal. KeyError or
        TypeError where it makes no sense."""
        mine = self.facts()
        if any(facts.get(key) != mine[key] for key in ("format", "uuid", "network", "incarnation")):
            return False
        first, last = facts["from"], facts["to"]
        return first <= self.from_seqno and (last is None or last >= self.known_seqno)


class LostFile(Struct, frozen=True):
    """A file that is there, whole. `transaction_count` without the parts of large ones; `unreadable`: as its last line
    has them."""

    path: Path
    transaction_count: int
    unreadable: tuple[dict[str, Any], ...]


def write_lost(
    path: Path,
    head: LostHead,
    transactions: Iterable[ShownTransaction],
    unreadable: Callable[[], Iterable[dict[str, Any]]],
) -> LostFile:
    """Write it at `path`, or, where something is there, beside it under the next free number. `unreadable` is asked
    once `transactions` has ended.

    Raises DiskFullError, PermissionRefusedError or JournalIOError, and what `transactions` raises: nothing is there
    then.
    """
    aside = path.with_name(f".{path.name}{PART_SUFFIX}")
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb", buffering=_BLOCK_BYTES) as file:
                count, left_out = _write(file, head, transactions, unreadable)
                file.flush()
                os.fsync(fd)
            placed = place(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        sync_directory(os.fspath(path.parent))
    except OSError as error:
        raise io_error(error, "the file of lost transactions could not be written", str(path)) from error
    return LostFile(placed, count, left_out)


def _write(
    file: IO[bytes],
    head: LostHead,
    transactions: Iterable[ShownTransaction],
    unreadable: Callable[[], Iterable[dict[str, Any]]],
) -> tuple[int, tuple[dict[str, Any], ...]]:
    from replicate.audit.show import document  # to read what such a file says takes none of it

    digest, count, origins = xxh3_64(), 0, dict[str, list[Any]]()

    def put(facts: dict[str, Any]) -> None:
        line = (json.dumps(facts) + "\n").encode()
        digest.update(line)
        file.write(line)

    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    put({**head.facts(), "written": now})
    for one in transactions:
        put(document(one))
        if one.kind == Kind.PART.name:
            continue
        count += 1
        if one.kind in DATA_KINDS:
            place = [one.seqno, one.origin_seqno, one.chain]
            known = origins.setdefault(one.origin, [0, place, place])
            known[0], known[2] = known[0] + 1, place
    left_out = tuple(unreadable())
    file.write((json.dumps(_last(count, origins, left_out, digest.hexdigest())) + "\n").encode())
    return count, left_out


def _last(
    count: int, origins: dict[str, list[Any]], unreadable: tuple[dict[str, Any], ...], digest: str
) -> dict[str, Any]:
    facts = {
        "transactions": count,
        "data": sum(known[0] for known in origins.values()),
        "origins": [[origin, *known] for origin, known in origins.items()],
        "unreadable": list(unreadable),
        "xxh3": digest,
    }
    return {**facts, "check": _check_of(facts)}


def _check_of(last: dict[str, Any]) -> str:
    return xxh3_64(json.dumps(last).encode()).hexdigest()


def is_as_written(last: dict[str, Any]) -> bool:
    """Whether a file's last line is what was written; of an older release, which put no check there, nobody can tell,
    and it is taken for that."""
    facts = {name: value for name, value in last.items() if name != "check"}
    return "check" not in last or last["check"] == _check_of(facts)


def place(aside: Path, path: Path) -> Path:
    """Give the file the name `path`, or the next free one like it: that. A link, since that never takes another file's
    place. OSError."""
    for candidate in _names(path):
        with suppress(FileExistsError):
            os.link(aside, candidate, follow_symlinks=False)
            return candidate
    raise AssertionError("numbers do not end")


def _names(path: Path) -> Iterator[Path]:
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.name.removesuffix(SUFFIX)}-{number}{SUFFIX}")
        number += 1


def find_lost(files: Iterable[Path], head: LostHead) -> LostFile | None:
    """The first of `files` that is whole and holds all that one with this head would; None when there is none. A file
    that cannot be read is none."""
    for path in sorted(files):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = _read_whole(path, head)
            if found is not None:
                return found
    return None


def _read_whole(path: Path, head: LostHead) -> LostFile | None:
    with open_to_read(path) as file:
        facts = json.loads(file.readline(LAST_LINE_BYTES_MAX))
        if not isinstance(facts, dict) or not head.is_covered_by(facts):
            return None
        line, last_at = last_line(file)
        last = json.loads(line)
        if not line.endswith(b"\n") or last["xxh3"] != digest_upto(file, last_at) or not is_as_written(last):
            return None
        return LostFile(path, int(last["transactions"]), tuple(last["unreadable"]))


def last_line(file: IO[bytes]) -> tuple[bytes, int]:
    """The file's last line, whole or not, and where it begins. What is longer than LAST_LINE_BYTES_MAX is none of ours,
    and comes cut."""
    end, size = file.seek(0, os.SEEK_END), _TAIL_BYTES
    while True:
        at = max(0, end - size)
        file.seek(at)
        tail = file.read(end - at)
        begin = tail.rfind(b"\n", 0, -1) + 1
        if begin or not at or size >= LAST_LINE_BYTES_MAX:
            return tail[begin:], at + begin
        size = LAST_LINE_BYTES_MAX


def digest_upto(file: IO[bytes], end: int) -> str:
    """The hash of the file's first `end` bytes; "" when there are fewer."""
    digest = xxh3_64()
    file.seek(0)
    while end:
        block = file.read(min(end, _BLOCK_BYTES))
        if not block:
            return ""
        digest.update(block)
        end -= len(block)
    return digest.hexdigest()
