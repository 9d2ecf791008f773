"""Messages to bytes and back. The bodies are msgpack throughout, so that any tool can read a recorded stream.

Small messages are one flat array of their fields. The five that carry bulk have a head of fixed layout (still valid
msgpack: fixed-width integers, then one bin 32), so that decoding them allocates nothing that the peer could inflate.

Guarantees: `decode` gives a message whose every field has its type and range, or raises ProtocolViolationError; what it
allocates is bounded by the limit of the type. `decode(encode(m)) == m`.
Leaves to others: the order of messages (state.py), compression (compression.py). Pure.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgpack

from replicate.errors import InternalError, ProtocolViolationError, ReplicateError
from replicate.limits import BATCH_BYTES_MAX, CATALOGUE_BYTES_MAX, NAME_PATTERN, PARTITION_MAX, REGIONS_MAX, ROWS_MAX
from replicate.model.takeover import TAKEOVERS_MAX, Takeover
from replicate.model.vector import U32_MAX, U64_MAX, SynchronizationVector, pack_chains, unpack_chains
from replicate.wire.frame import pack_wire_frame
from replicate.wire.message import (
    FACTS_MAX,
    FEATURES_MAX,
    HANDOVER_TEXTS_MAX,
    KEYS_BYTES_MAX,
    MESSAGE_TYPES,
    PARTITIONS_MAX,
    RESTART_BYTES_MAX,
    TEXT_BYTES_MAX,
    Bye,
    CatalogueChunk,
    CatalogueEnd,
    Check,
    Data,
    Handover,
    HandoverAsk,
    HandoverDone,
    HandoverReady,
    Heartbeat,
    HeartbeatReply,
    Hello,
    HelloReply,
    Introduction,
    Large,
    LostChunk,
    LostOffer,
    LostTaken,
    Message,
    MessageType,
    Parts,
    Refuse,
    Restart,
    SeedAck,
    SeedChunk,
    SeedDone,
    SeedEnd,
    SeedPreparing,
    SeedRequest,
    SeedRequestPartitions,
    SeedRequestRegions,
    SeedStart,
    Start,
    Xoff,
    Xon,
)

_NAME: Final = re.compile(NAME_PATTERN)
_DO: Final = "The connection is closed; compare the releases of both sides"

# Fields: each check gives the value back, or raises ValueError.


def _bad(what: str) -> NoReturn:
    raise ValueError(what)


def _u64(value: object) -> int:
    return value if type(value) is int and 0 <= value <= U64_MAX else _bad("a number of 64 bits")


def _u32(value: object) -> int:
    return value if type(value) is int and 0 <= value <= U32_MAX else _bad("a number of 32 bits")


def _seqno(value: object) -> int:
    return value if type(value) is int and 0 < value <= U64_MAX else _bad("a sequence number from 1")


def _flag(value: object) -> bool:
    return value if type(value) is bool else _bad("true or false")


def _text(value: object) -> str:
    return value if type(value) is str and len(value) <= TEXT_BYTES_MAX else _bad("a short text")


def _name(value: object) -> str:
    return value if type(value) is str and _NAME.match(value) else _bad("a name")


def _uuid(value: object) -> bytes:
    return value if type(value) is bytes and len(value) == 16 else _bad("a UUID of 16 bytes")


def _key(value: object) -> bytes:
    return value if type(value) is bytes and len(value) <= KEYS_BYTES_MAX else _bad("a key")


def _table(value: object) -> str:
    return value if type(value) is str and len(value.encode()) <= TEXT_BYTES_MAX else _bad("the name of a table")


def _texts(value: object) -> tuple[str, ...]:
    if type(value) is not list or len(value) > FEATURES_MAX:
        _bad("a list of texts")
    return tuple(_text(item) for item in value)


def _problems(value: object) -> tuple[str, ...]:
    if type(value) is not list or len(value) > HANDOVER_TEXTS_MAX:
        _bad("a list of texts")
    return tuple(_text(item) for item in value)


def _regions(value: object) -> tuple[str, ...]:
    if type(value) is not list or not 0 < len(value) <= REGIONS_MAX:
        _bad("a list of regions")
    return tuple(_name(item) for item in value)


def _partitions(value: object) -> tuple[int, ...]:
    if type(value) is not list or len(value) > PARTITIONS_MAX:
        _bad("a list of partitions")
    return tuple(_u32(item) for item in value)


def _some_partitions(value: object) -> tuple[int, ...]:
    wanted = _partitions(value)
    if not wanted or any(not 1 <= number <= PARTITION_MAX for number in wanted):
        _bad("a list of partitions")
    return wanted


def _facts(value: object) -> tuple[tuple[str, int | str], ...]:
    if type(value) is not list or len(value) % 2 or len(value) > 2 * FACTS_MAX:
        _bad("a flat list of facts")
    return tuple(
        (_text(value[i]), _text(value[i + 1]) if type(value[i + 1]) is str else _u64(value[i + 1]))
        for i in range(0, len(value), 2)
    )


def _rows(value: object) -> tuple[str, ...]:
    if type(value) is not list or len(value) % 3 or len(value) > 3 * ROWS_MAX:
        _bad("tables with a condition")
    return tuple(_text(item) for item in value)


def _names(value: object) -> tuple[str, ...]:
    if type(value) is not list or len(value) >= PARTITION_MAX:
        _bad("names of partitions")
    return tuple(_text(item) for item in value)


def _takeovers(value: object) -> tuple[Takeover, ...]:
    if type(value) is not list or len(value) > TAKEOVERS_MAX:
        _bad("a list of takeovers")
    return tuple(_takeover(item) for item in value)


def _takeover(value: object) -> Takeover:
    if type(value) is not list or len(value) != len(_TAKEOVER):
        _bad("a takeover")
    return Takeover(*(check(item) for check, item in zip(_TAKEOVER, value, strict=True)))


def _after(value: object) -> int:
    return value if type(value) is int and 0 <= value < U64_MAX else _bad("a number with one after it")


_TAKEOVER: Final[tuple[Callable[[Any], Any], ...]] = (_name, _uuid, _u32, _u32, _after, _u64, _u64)
_INTRODUCTION: Final[tuple[Callable[[Any], Any], ...]] = (
    _uuid, _uuid, _name, _name, _u32, _text, _texts, _u32, _u32, _u64, _text, _takeovers, _rows, _names,
)  # fmt: skip
_INTRODUCTION_LEAST: Final = 10
"""Of its fields: what comes later has a default."""

_CHECKS: Final[dict[int, tuple[Callable[..., Message], tuple[Callable[[Any], Any], ...]]]] = {
    MessageType.RESTART: (
        Restart,
        (_u64, SynchronizationVector.unpack, unpack_chains, _u32, _u64, _partitions, _flag, _u32),
    ),
    MessageType.START: (Start, (_seqno, _u32, _u64, _u32)),
    MessageType.CATALOGUE_END: (CatalogueEnd, (_u32, _u32)),
    MessageType.HEARTBEAT: (Heartbeat, (_u64,) * 6),
    MessageType.HEARTBEAT_REPLY: (HeartbeatReply, (_u64,) * 9),
    MessageType.XOFF: (Xoff, (_text, _u64)),
    MessageType.XON: (Xon, (_u64,)),
    MessageType.REFUSE: (Refuse, (_text, _text, _facts)),
    MessageType.BYE: (Bye, (_text,)),
    MessageType.SEED_REQUEST: (SeedRequest, (_uuid, _uuid, _u64)),
    MessageType.SEED_REQUEST_REGIONS: (SeedRequestRegions, (_uuid, _uuid, _u64, _regions)),
    MessageType.SEED_REQUEST_PARTITIONS: (SeedRequestPartitions, (_uuid, _uuid, _u64, _some_partitions)),
    MessageType.CHECK: (Check, (_u64, _seqno, _flag, _seqno, _name, _table, _key, _key, _u64, _uuid)),
    MessageType.SEED_PREPARING: (SeedPreparing, (_u64, _u64)),
    MessageType.SEED_START: (SeedStart, (_uuid, _u64, _u64, _u64)),
    MessageType.SEED_END: (SeedEnd, (_u64,)),
    MessageType.SEED_ACK: (SeedAck, (_u64,)),
    MessageType.SEED_DONE: (SeedDone, (_uuid,)),
    MessageType.LOST_OFFER: (LostOffer, (_u64, _u64, _u64, _u64)),
    MessageType.LOST_TAKEN: (LostTaken, (_u64, _u64)),
    MessageType.HANDOVER_ASK: (HandoverAsk, (_u32, _u64, _u32, _problems)),
    MessageType.HANDOVER_READY: (
        HandoverReady,
        (_u32, _u64, _u32, SynchronizationVector.unpack, unpack_chains, _problems),
    ),
    MessageType.HANDOVER: (Handover, (_u64,)),
    MessageType.HANDOVER_DONE: (HandoverDone, (_u64, _u32, _text)),
}

_WITH_POSITION: Final = (MessageType.RESTART, MessageType.HANDOVER_READY)

# The bulk heads: array header, u64 as cf, u32 as ce, a flag as c2/c3, and the head of a bin 32.

_DATA: Final = struct.Struct(">B BQ BQ BI BI B BI")
_PARTS: Final = struct.Struct(">B BQ BQ BI BI BI B BI")
_LARGE: Final = struct.Struct(">B BQ BQ BI BI")
_CHUNK: Final = struct.Struct(">B BI BI")
_SEED: Final = struct.Struct(">B BQ BI")
_FLAGS: Final = {0xC2: False, 0xC3: True}


def _bulk_head(message: Data | Parts | Large | CatalogueChunk | SeedChunk | LostChunk) -> bytes:
    size = len(message.data)
    match message:
        case Data(first, last, count, raw, packed):
            return _DATA.pack(0x96, 0xCF, first, 0xCF, last, 0xCE, count, 0xCE, raw, 0xC2 + packed, 0xC6, size)
        case Parts(seqno, token, first_part, count, raw, packed):
            return _PARTS.pack(
                0x97, 0xCF, seqno, 0xCF, token, 0xCE, first_part, 0xCE, count, 0xCE, raw, 0xC2 + packed, 0xC6, size
            )
        case Large(seqno, token, parts):
            return _LARGE.pack(0x94, 0xCF, seqno, 0xCF, token, 0xCE, parts, 0xC6, size)
        case CatalogueChunk(offset):
            return _CHUNK.pack(0x92, 0xCE, offset, 0xC6, size)
        case SeedChunk(offset) | LostChunk(offset):
            return _SEED.pack(0x92, 0xCF, offset, 0xC6, size)


def _decode_data(body: bytes) -> Data:
    a, b, first, c, last, d, count, e, raw, flag, f, size = _DATA.unpack_from(body)
    if (a, b, c, d, e, f) != (0x96, 0xCF, 0xCF, 0xCE, 0xCE, 0xC6) or size != len(body) - _DATA.size:
        _bad("the head of DATA")
    if not 0 < first <= last or last - first + 1 != count or not 0 < raw <= BATCH_BYTES_MAX:
        _bad(f"DATA that fits itself (first {first}, last {last}, count {count}, {raw} bytes)")
    return Data(first, last, count, raw, _FLAGS[flag], body[_DATA.size :])


def _decode_parts(body: bytes) -> Parts:
    a, b, seqno, c, token, d, first, e, count, f, raw, flag, g, size = _PARTS.unpack_from(body)
    if (a, b, c, d, e, f, g) != (0x97, 0xCF, 0xCF, 0xCE, 0xCE, 0xCE, 0xC6) or size != len(body) - _PARTS.size:
        _bad("the head of PARTS")
    if not seqno or not token or not count or first + count > U32_MAX or not 0 < raw <= BATCH_BYTES_MAX:
        _bad(f"PARTS that fit themselves (seqno {seqno}, first {first}, count {count}, {raw} bytes)")
    return Parts(seqno, token, first, count, raw, _FLAGS[flag], body[_PARTS.size :])


def _decode_large(body: bytes) -> Large:
    a, b, seqno, c, token, d, parts, e, size = _LARGE.unpack_from(body)
    if (a, b, c, d, e) != (0x94, 0xCF, 0xCF, 0xCE, 0xC6) or size != len(body) - _LARGE.size:
        _bad("the head of LARGE")
    if not seqno or not token or not parts or not size:
        _bad(f"LARGE that fits itself (seqno {seqno}, {parts} parts)")
    return Large(seqno, token, parts, body[_LARGE.size :])


def _decode_chunk(body: bytes) -> CatalogueChunk:
    a, b, offset, c, size = _CHUNK.unpack_from(body)
    if (a, b, c) != (0x92, 0xCE, 0xC6) or size != len(body) - _CHUNK.size:
        _bad("the head of CATALOGUE_CHUNK")
    if not size or offset + size > CATALOGUE_BYTES_MAX:
        _bad("a chunk inside the largest catalogue")
    return CatalogueChunk(offset, body[_CHUNK.size :])


def _decode_seed(body: bytes) -> SeedChunk:
    return SeedChunk(*_file_chunk(body))


def _decode_lost(body: bytes) -> LostChunk:
    return LostChunk(*_file_chunk(body))


def _file_chunk(body: bytes) -> tuple[int, bytes]:
    a, b, offset, c, size = _SEED.unpack_from(body)
    if (a, b, c) != (0x92, 0xCF, 0xC6) or size != len(body) - _SEED.size:
        _bad("the head of a chunk of a file")
    if not size or offset + size > U64_MAX:
        _bad("a chunk of a file")
    return offset, body[_SEED.size :]


_BULK: Final[dict[int, Callable[[bytes], Message]]] = {
    MessageType.DATA: _decode_data,
    MessageType.PARTS: _decode_parts,
    MessageType.LARGE: _decode_large,
    MessageType.CATALOGUE_CHUNK: _decode_chunk,
    MessageType.SEED_CHUNK: _decode_seed,
    MessageType.LOST_CHUNK: _decode_lost,
}


def _unpack(body: bytes, array_max: int, bin_max: int = 16) -> list[Any]:
    fields = msgpack.unpackb(
        body,
        raw=False,
        strict_map_key=True,
        max_str_len=4 * TEXT_BYTES_MAX,
        max_bin_len=bin_max,
        max_array_len=array_max,
        max_map_len=0,
        max_ext_len=0,
    )
    return fields if type(fields) is list else _bad("an array")


def _introduction(fields: list[Any]) -> Introduction:
    # Extra fields at the end are a later release's; the version that it names tells whether we understand each other.
    if len(fields) < _INTRODUCTION_LEAST:
        _bad(f"{_INTRODUCTION_LEAST} fields of an introduction, not {len(fields)}")
    return Introduction(*(check(value) for check, value in zip(_INTRODUCTION, fields, strict=False)))


def _decode_hello(message_type: int, body: bytes) -> Message:
    fields = _unpack(body, 64)
    if len(fields) < 2:
        _bad("the version of a hello")
    major, minor = _u32(fields[0]), _u32(fields[1])
    made = Hello if message_type == MessageType.HELLO else HelloReply
    return made(major, minor, _introduction(fields[2:]))


def _decode(message_type: int, body: bytes) -> Message:
    bulk = _BULK.get(message_type)
    if bulk is not None:
        return bulk(body)
    if message_type in (MessageType.HELLO, MessageType.HELLO_REPLY):
        return _decode_hello(message_type, body)
    made = _CHECKS.get(message_type)
    if made is None:
        raise ProtocolViolationError(f"a message of type {message_type} is unknown", do=_DO)
    # Only a position holds long lists: three numbers a row, and never more of them than bytes.
    array_max = RESTART_BYTES_MAX // 4 if message_type in _WITH_POSITION else 64
    fields = _unpack(body, array_max, KEYS_BYTES_MAX if message_type == MessageType.CHECK else 16)
    kind, checks = made
    if len(fields) != len(checks):
        _bad(f"{len(checks)} fields, not {len(fields)}")
    return kind(*(check(value) for check, value in zip(checks, fields, strict=True)))


def decode(message_type: int, body: bytes) -> Message:
    """The message in a verified wire frame. ProtocolViolationError, naming the type, when it is none."""
    try:
        return _decode(message_type, body)
    except ProtocolViolationError:
        raise
    # msgpack raises a zoo: ValueError and its children, but also OverflowError, TypeError and KeyError (our flags).
    except (
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        RecursionError,
        struct.error,
        ReplicateError,
        MemoryError,
    ) as e:
        names = {int(known): known.name for known in MessageType}
        raise ProtocolViolationError(
            f"a message {names.get(message_type, message_type)} cannot be decoded: expected {e}", do=_DO
        ) from None


def _introduced(who: Introduction) -> list[object]:
    return [
        who.network, who.instance, who.name, who.role, who.incarnation, who.release, list(who.features),
        who.batch_bytes_max, who.heartbeat_period_ms, who.wall_ns,
        *([who.filter] if who.filter or who.takeovers or who.rows or who.names else []),
        *([_packed_takeovers(who.takeovers)] if who.takeovers or who.rows or who.names else []),
        *([list(who.rows)] if who.rows or who.names else []),
        *([list(who.names)] if who.names else []),
    ]  # fmt: skip


def _packed_takeovers(found: tuple[Takeover, ...]) -> list[object]:
    return [[t.name, t.instance, t.incarnation, t.ended, t.after, t.place, t.chain] for t in found[-TAKEOVERS_MAX:]]


def _cut(text: str) -> str:
    """At most a third of what fits a small message: a last word must never fail for its length."""
    return text.encode("utf-8", "replace")[:TEXT_BYTES_MAX].decode("utf-8", "ignore")


def _packed_facts(facts: tuple[tuple[str, int | str], ...]) -> list[int | str]:
    """The facts in order, as many as fit beside the text."""
    made: list[int | str] = []
    left = TEXT_BYTES_MAX
    for name, value in facts[:FACTS_MAX]:
        shown = value if type(value) is int and 0 <= value <= U64_MAX else _cut(str(value))
        left -= len(name.encode()) + len(str(shown).encode()) + 12
        if left < 0:
            break
        made += [_cut(name), shown]
    return made


def _fields(message: Message) -> list[object]:
    match message:
        case Hello(major, minor, who) | HelloReply(major, minor, who):
            return [major, minor, *_introduced(who)]
        case Restart():
            return [
                message.next_seqno, message.vector.pack(), pack_chains(message.chains), message.next_part,
                message.token, list(message.partitions), message.stop_filter, message.window_bytes,
            ]  # fmt: skip
        case Start(seqno, part, last, size):
            return [seqno, part, last, size]
        case CatalogueEnd(size, check):
            return [size, check]
        case Heartbeat():
            return [
                message.number, message.wall_ns, message.last_seqno, message.last_durable_seqno,
                message.last_commit_wall_ns, message.received_bytes,
            ]  # fmt: skip
        case HeartbeatReply():
            return [
                message.number, message.wall_ns, message.last_received_seqno, message.last_applied_seqno,
                message.last_durable_seqno, message.update_state, message.receiver_backlog, message.received_bytes,
                message.received_bulk_bytes,
            ]  # fmt: skip
        case Xoff(reason, free):
            return [_cut(reason), free]
        case Xon(free):
            return [free]
        case Refuse(code, text, facts):
            return [_cut(code), _cut(text), _packed_facts(facts)]
        case Bye(reason):
            return [_cut(reason)]
        case Check():
            return [
                message.round_wall_ns, message.number, message.is_last, message.seqno, message.region, message.table,
                message.after, message.upto, message.rows, message.digest,
            ]  # fmt: skip
        case SeedRequestRegions(request, seed, offset, regions):
            return [request, seed, offset, list(regions)]
        case SeedRequestPartitions(request, seed, offset, partitions):
            return [request, seed, offset, list(partitions)]
        case SeedRequest(request, seed, offset):
            return [request, seed, offset]
        case SeedPreparing(done, pages):
            return [done, pages]
        case SeedStart(seed, offset, size, seqno):
            return [seed, offset, size, seqno]
        case SeedEnd(number) | SeedAck(number):
            return [number]
        case SeedDone(seed):
            return [seed]
        case LostOffer(check, size, first, last):
            return [check, size, first, last]
        case LostTaken(check, offset):
            return [check, offset]
        case HandoverAsk(step, seqno, timeout_ms, texts):
            return [step, seqno, timeout_ms, [_cut(text) for text in texts[:HANDOVER_TEXTS_MAX]]]
        case HandoverReady(step, seqno, timeout_ms, vector, chains, texts):
            problems = [_cut(text) for text in texts[:HANDOVER_TEXTS_MAX]]
            return [step, seqno, timeout_ms, vector.pack(), pack_chains(chains), problems]
        case Handover(seqno):
            return [seqno]
        case HandoverDone(seqno, exit_code, text):
            return [seqno, exit_code, _cut(text)]
        case _:
            raise InternalError(f"{type(message).__name__} is no small message")


def encode(message: Message) -> list[bytes]:
    """The wire frame of a message, in pieces (bulk is not copied). InternalError when a field cannot be packed."""
    message_type = MESSAGE_TYPES[type(message)]
    try:
        if isinstance(message, Data | Parts | Large | CatalogueChunk | SeedChunk | LostChunk):
            return pack_wire_frame(message_type, _bulk_head(message), message.data)
        return pack_wire_frame(message_type, msgpack.packb(_fields(message), use_bin_type=True))
    except (struct.error, ValueError, TypeError, OverflowError) as e:
        raise InternalError(f"a message {message_type.name} cannot be packed: {e}") from e
