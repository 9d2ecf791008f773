"""The conflict file: what a conflict was, with both images, for the eyes of the owner only.

Guarantees: written whole and synced before the Update Process says that it stops; mode 0600; one file for each sequence
number, the newest conflict there; values keep their storage class (a blob is not a text, 1 is not 1.0).
Leaves to others: how the conflict came about, and what is done about it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from replicate.errors import ConflictError, DamagedError, NotFoundError, ReplicateError
from replicate.model.transaction import Op
from replicate.region.sqlite.apply.rows import Conflict
from replicate.system.files import read_private, replace_file


def conflict_path(directory: Path, seqno: int) -> Path:
    """Where the conflict of transaction `seqno` is written."""
    return directory / f"{seqno}.json"


def _value(value: Any) -> Any:
    """JSON that keeps the storage class: a blob is {"blob": hex}, a text that is not UTF-8 {"text": hex}."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"blob": bytes(value).hex()}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"real": repr(value)}
    if value is None or isinstance(value, int | float | str):
        return value
    data = getattr(value, "data", None)  # msgpack.ExtType: raw text
    return {"text": data.hex()} if isinstance(data, bytes) else {"unknown": repr(value)}


def _image(columns: tuple[str, ...], image: Any) -> dict[str, Any] | None:
    if image is None:
        return None
    names = columns if len(columns) == len(image) else tuple(str(i) for i in range(len(image)))
    return {name: _value(value) for name, value in zip(names, image, strict=True)}


def write_conflict(
    directory: Path, conflict: Conflict, transaction: str = "", of: tuple[int, int] | None = None
) -> Path:
    """Write the file; its path. `transaction`: its name (conflict_decision.py), for which something may be decided.
    `of`: on a supplier, whose own numbers move on while it waits, its origin's key and number there.

    Raises JournalIOError, DiskFullError, PermissionRefusedError: nothing is there then."""
    try:
        operation = Op(conflict.op).name
    except ValueError:
        operation = str(conflict.op)
    facts = {
        "seqno": conflict.seqno,
        "transaction": transaction,
        "region": conflict.region,
        "table": conflict.table,
        "operation": operation,
        "reason": conflict.reason,
        "key": [_value(value) for value in conflict.key],
        "expected": _image(conflict.columns, conflict.expected),
        "found": _image(conflict.columns, conflict.found),
        "after": _image(conflict.columns, conflict.after),
    }
    if of is not None:
        facts |= {"origin": of[0], "origin_seqno": of[1]}
    path = conflict_path(directory, conflict.seqno)
    replace_file(path, (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))
    return path


def read_conflict(directory: Path, seqno: int) -> dict[str, Any]:
    """The content of a conflict file, for showing it. NotFoundError, DamagedError."""
    path = conflict_path(directory, seqno)
    try:
        facts = json.loads(read_private(path))
    except FileNotFoundError:
        raise NotFoundError(f"no conflict is recorded for transaction {seqno}", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise DamagedError("the conflict file is not readable", where=str(path)) from error
    if not isinstance(facts, dict):
        raise DamagedError("the conflict file is not readable", where=str(path))
    return facts


def stopped(
    error: ReplicateError, seqno: int, directory: Path, transaction: str = "", of: tuple[int, int] | None = None
) -> ReplicateError:
    """The error to stop with at transaction `seqno`: a conflict's images go to its file, never into the log.
    `transaction`, `of`: as in `write_conflict`."""
    conflict = error.conflict if isinstance(error, ConflictError) else None
    if not isinstance(conflict, Conflict):
        error.facts.setdefault("seqno", seqno)
        return error
    path = write_conflict(directory, replace(conflict, seqno=seqno), transaction, of)
    return ConflictError(
        f"{conflict.table}: {conflict.reason} at transaction {seqno}",
        where=str(path),
        do=f"Look at both images: replicate -i INSTANCE conflict show {seqno}. Make the row here as it was expected "
        "(replicate help disaster), and start again what stopped here; or leave the transaction out: replicate -i "
        f"INSTANCE conflict skip {seqno}; or make its changes over what is here: replicate -i INSTANCE conflict "
        f"overwrite {seqno}; or seed again: replicate -i INSTANCE seed --restart",
        region=conflict.region,
        table=conflict.table,
        key=error.facts.get("key", ""),
        seqno=seqno,
        reason=conflict.reason,
    )
