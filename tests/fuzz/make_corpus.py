"""Makes the kept corpus from real frames, messages and files: python tests/fuzz/make_corpus.py DIRECTORY

Guarantees: everything but one token is a function of this file and the product's packers; small (a few KiB a target).
What fuzzing has found is kept beside it under names that begin with `found-`, which this does not touch.
Leaves to others: the oracle.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgpack
from msgspec import to_builtins
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[2]))

from replicate.instance.consumers import write_hold
from replicate.instance.file import InstanceFile, PeerEntry, RegionEntry, encode
from replicate.journal.durable import DurableSidecar
from replicate.journal.record import mixed, pack_changes, pack_frame, pack_part, trim
from replicate.model.transaction import Catalogue, History
from replicate.model.vector import Position, SynchronizationVector
from replicate.pool.ring import RecordKind, pack_head, pack_padding
from replicate.region.protocol import ScrRow
from replicate.region.sqlite.bookkeeping import make_tables, write_scr, write_slot
from replicate.security.sealing import KEY_BYTES, ChunkCipher
from replicate.settings.load import default_text
from replicate.transfer.container import SeedHeader, SeedRegion, pack_catalogue
from replicate.transfer.packet.epochs import EpochRow
from replicate.transfer.packet.epochs_file import NAME as EPOCHS_NAME
from replicate.transfer.packet.epochs_file import change_epochs
from replicate.transfer.packet.format import SegmentPart, Signature
from replicate.transfer.packet.sealed import PacketSealer
from replicate.transfer.packet.write import PacketWriter
from replicate.transfer.seed.file import SeedWriter
from replicate.wire.codec import encode as encode_message
from replicate.wire.compression import Compressor
from replicate.wire.message import (
    Check,
    Handover,
    HandoverAsk,
    HandoverDone,
    HandoverReady,
    HandoverStep,
    LostChunk,
    LostOffer,
    LostTaken,
    Message,
    MessageType,
    Refuse,
    SeedAck,
    SeedChunk,
    SeedDone,
    SeedEnd,
    SeedPreparing,
    SeedRequest,
    SeedRequestPartitions,
    SeedRequestRegions,
    SeedStart,
)
from replicate.wire.proof import Proof
from replicate.wire.state import Role
from tests.harness import frames as by_hand
from tests.harness.journals import FrameMaker, ToyJournal, define_payload, insert_payload, make_definition
from tests.harness.link_pair import NETWORK, ConnectionPair, Journal, connected
from tests.harness.packets import summary as summary_of
from tests.harness.pools import frame
from update_process.replay.archive.manifest import Range, SegmentCopy

Made = Iterator[tuple[str, str, bytes]]
"""Target, name, bytes."""
_VALUES = [None, 0, -1, 2**63 - 1, 1.5, "text", b"\x00\xff", msgpack.ExtType(1, b"\xff")]


def pages() -> Made:
    """The small pages of a region: the schema's, inner ones and leaves of tables, a leaf of one WITHOUT ROWID."""
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "region.db"
        connection = apsw.Connection(str(path))
        connection.pragma("page_size", 512)
        make_tables(connection)
        write_slot(connection, 7, b"a record that is longer than the page" * 20)
        write_scr(connection, [ScrRow(1, 0, 7, 2**64 - 1, 5, 7)])
        connection.close()
        data = path.read_bytes()
    found: set[int] = set()
    for begin in range(0, len(data), 512):
        page, is_first = data[begin : begin + 512], begin == 0
        kind = page[100] if is_first else page[0]
        if is_first or kind not in found:
            yield "region_page", f"page-{begin // 512 + 1}", bytes((3 + 8 * is_first,)) + page
        found.add(kind)


def manifests() -> Made:
    """A range of two segments, and what is wrong with others."""
    segments = (
        SegmentCopy("00000000000000000001.journal", 1, 4, 4096, "ab" * 32),
        SegmentCopy("00000000000000000005.journal", 5, 9, 8192, "cd" * 32),
    )
    made = to_builtins(Range("00" * 16, "11" * 16, 1, 9, 9, 20, 7, {"changes": "1f", "transactions": "2e"}, segments))
    wrong: list[tuple[str, dict[str, object]]] = [
        ("one", {}),
        ("infinite", {"last_csn": math.inf}),
        ("digests-that-are-a-list", {"digests": ["1f"]}),
        ("a-path", {"segments": [{**to_builtins(segments[0]), "name": "../../1.journal", "last_seqno": 9}]}),
        ("without-segments", {"segments": []}),
        ("of-another-release", {"format": 4}),
        ("apart", {"format": 3, "folder": f"{1:020d}-{9:020d}-ab12"}),
        ("apart-elsewhere", {"format": 3, "folder": "../../x"}),
        ("backwards", {"first_seqno": 9, "last_seqno": 1}),
    ]
    for name, changed in wrong:
        yield "archive_manifest", name, json.dumps({**made, **changed}).encode()


def conversation() -> tuple[bytes, bytes]:
    """Everything that both sides say: what the source says, and what the receiver says."""
    journal = Journal(large=(3,), parts=2, part_bytes=60)
    journal.write(5)
    pair = ConnectionPair()
    said: tuple[list[bytes], list[bytes]] = ([], [])
    for pipe, heard in ((pair.there, said[0]), (pair.back, said[1])):
        pipe.cut = lambda data, heard=heard: (heard.append(data), [data])[1]  # type: ignore[misc]
    connected(pair)
    pair.source.send_batch(journal.batch(1, 2))
    pair.settle()
    pair.source.send_parts(3, journal.token(3), 0, 2, b"".join(journal.parts[3]))
    pair.settle()
    pair.source.send_large(3, journal.token(3), 2, journal.frames[2])
    pair.settle()
    pair.source.send_batch(journal.batch(4, 2))
    pair.run_until(20.0)
    return b"".join(said[0]), b"".join(said[1])


def wire() -> Made:
    source, receiver = conversation()
    for mode in (0, 3):
        yield "wire_frame", f"source-{mode}", bytes([mode]) + source
        yield "wire_frame", f"receiver-{mode}", bytes([mode]) + receiver
    for mode in (0, 1, 2):
        yield "wire_receiver", f"source-{mode}", bytes([mode]) + source
        yield "wire_source", f"receiver-{mode}", bytes([mode]) + receiver
    introduced = {MessageType.HELLO: 0, MessageType.HELLO_REPLY: 1, MessageType.REFUSE: 2}
    stream = source + receiver + b"".join(encode_message(Refuse("GAP", "a gap", (("next", 5), ("what", "part")))))
    seen: set[int] = set()
    while stream:
        size, kind = int.from_bytes(stream[:4], "big"), stream[8]
        body, stream = stream[9 : 9 + size], stream[9 + size :]
        if kind not in seen:
            seen.add(kind)
            yield "wire_message", MessageType(kind).name.lower(), bytes([kind]) + body
            if kind in introduced:
                yield "wire_introduction", MessageType(kind).name.lower(), bytes([introduced[MessageType(kind)]]) + body
    of_commands: tuple[Message, ...] = (
        SeedRequest(b"r" * 16, b"s" * 16, 512), SeedRequestRegions(b"r" * 16, b"s" * 16, 512, ("main",)),
        SeedRequestPartitions(b"r" * 16, b"s" * 16, 512, (2,)),
        SeedPreparing(3, 9), SeedStart(b"s" * 16, 512, 4096, 7),
        SeedChunk(512, b"bytes"), SeedEnd(4096), SeedAck(1024), SeedDone(b"s" * 16),
        Check(2**60, 3, False, 41, "main", "account", b"\x91\x07", b"", 9, b"d" * 16),
        LostOffer(99, 4096, 7, 9), LostChunk(512, b"lines"), LostTaken(99, 1024),
        HandoverAsk(HandoverStep.ENDED, 1, 60_000, ("no way back",)), Handover(41), HandoverDone(41, 74, "full"),
        HandoverReady(HandoverStep.PROVE, 41, 0, SynchronizationVector({(7, 0): 41}), {7: (41, 99)}),
    )  # fmt: skip
    for message in of_commands:
        packed = b"".join(encode_message(message))
        yield "wire_message", MessageType(packed[8]).name.lower(), packed[8:]
    for code in ("VERSION", "NO_SUCH_CODE"):
        packed = b"".join(encode_message(Refuse(code, "\x00\n" * 20, tuple((f"k{n}", "v" * n) for n in range(16)))))
        yield "wire_introduction", f"refuse-{code.lower()}", b"\x02" + packed[9:]
    plain = bytes(range(64)) * 30
    packed_plain = Compressor().compress(plain)
    assert packed_plain is not None
    yield "compression", "plain", bytes(4) + plain[:600]
    yield "compression", "packed", len(plain).to_bytes(4, "big") + packed_plain
    yield "compression", "wrong-size", (1 << 30).to_bytes(4, "big") + packed_plain


def several() -> dict[str, bytes]:
    """Frames of every kind but parts."""
    maker = FrameMaker()
    writer = by_hand.Writer()
    return {
        "insert": maker.transaction("text"),
        "values": maker.transaction(payload=insert_payload(list(_VALUES))),
        "define": maker.transaction(payload=define_payload(make_definition())),
        "null": maker.null("void"),
        "history": maker.history(2),
        "update": writer.frame([by_hand.UPDATE, 9, 0b10, ["new", 1, "old"]]),
        "delete": writer.frame([by_hand.DELETE, 9, 0, [1, None]]),
        "schema": writer.frame([by_hand.SCHEMA, 0, "main", ["CREATE TABLE t (a)"]]),
        "comment": writer.frame([by_hand.COMMENT, 0, 0, ["a word"]]),
        "sequence": writer.frame([by_hand.SEQUENCE, 9, 0, [None, 5]]),
        "region": writer.frame([by_hand.REGION, 0, "main", ["added", bytes(16)]]),
    }


def journal() -> Made:
    for name, one in several().items():
        yield "journal_record", name, b"\x00" + one
    made = Journal(large=(3,), parts=2, part_bytes=60)
    made.write(4)
    yield "journal_record", "large", b"\x00" + made.frames[2]
    changes = pack_changes([5, 0, "main", ["CREATE"], 1, 0x80000001, 0, [1], 1, 0x80000002, 0, [b"x"]])
    mixed_payload, count = mixed(changes, 12, {0x80000001: 1, 0x80000002: 63})
    mixed_frame, _ = pack_frame(9, 5, 4, 3, 7, 5, 9 << 12, mixed_payload, count)
    yield "journal_record", "mixed", b"\x00" + mixed_frame
    yield "journal_record", "mixed-trimmed", b"\x00" + trim(mixed_frame, {0, 63}.__contains__)
    yield "journal_record", "part", b"\x01" + made.parts[3][1]
    maker = FrameMaker()
    three = maker.transactions(2, "x") + maker.null() + maker.history(2) + maker.transaction(7)
    yield "journal_batch", "several", b"\x00" + three
    yield "journal_batch", "cut", b"\x01" + three[:-3]
    yield "journal_batch", "two-origins", b"\x00" + b"".join(_two_origins())
    yield "journal_batch", "parts", b"\x00" + b"".join(made.parts[3])
    yield "journal_batch", "large", b"\x00" + made.frames[2]
    part, chain = pack_part(7, 9, 0, b"abc", 0)
    yield "journal_spool", "two", b"\x02" + part + pack_part(7, 9, 1, b"de", chain)[0]
    yield "journal_spool", "cut", b"\x03" + part + part[:-1]
    catalogue = Catalogue().with_definition(make_definition(rowid=True))
    history = History(bytes(16), "alpha", 1, 0, SynchronizationVector({(7, 0): 3, (7, 1): 2}), "created", 1)
    packed = {
        0: history.base.pack(),
        1: [3, 5, 99],
        2: make_definition().pack(),
        3: history.pack(),
        4: catalogue.with_history(history).at(history.base, {7: (3, 99)}).pack(),
        5: [int(by_hand.UPDATE), 9, 0b101, ["n", "m", 1, "b", None]],
        6: b"\x05\x01",
        7: [1, 2, 9],
    }
    for choice, value in packed.items():
        yield "values", f"choice-{choice}", bytes([choice]) + msgpack.packb(value)


def _two_origins() -> list[bytes]:
    writer = by_hand.Writer(origin=7)
    first = writer.many(2)
    writer.origin = 8
    return [*first, writer.frame([bytes(16), "beta", 2, 7, [], "test"], by_hand.HISTORY), *writer.many(2)]


def segments() -> Made:
    with tempfile.TemporaryDirectory() as home:
        made = ToyJournal(Path(home))
        made.write(2, "x")
        made.append(made.maker.transaction(payload=define_payload(make_definition())))
        made.switch()
        made.write(1)
        made.adopt(b"".join(insert_payload([1, "large"])[:1]))
        made.close()
        for path in sorted(Path(home).glob("*")):
            raw = path.read_bytes()
            if path.name == "durable":
                yield "journal_durable", "new", b"\x00" + raw[:600]
                with_higher = DurableSidecar(path)
                with_higher.write(9)
                with_higher.close()
                yield "journal_durable", "higher", b"\x01" + path.read_bytes()[:600]
            else:
                yield "journal_segment", path.name.split(".")[0].lstrip("0"), b"\x00" + raw.rstrip(b"\0") + bytes(3)
                yield "journal_header", path.name.split(".")[0].lstrip("0"), b"\x00" + raw[:160]


def files() -> Made:
    content = InstanceFile(
        network=bytes(16),
        uuid=bytes(range(16)),
        name="paris",
        incarnation=1,
        role="primary",
        created_wall_ns=5,
        journal_inode="1:2",
        next_region_id=1,
        home="/tmp/x",
        regions=(RegionEntry(0, "main", bytes(16), Path("/tmp/x/main.db")),),
        peers=(PeerEntry("oslo", "127.0.0.1", 7430),),
    )
    yield "instance_file", "whole", b"\x01" + encode(content)
    yield "instance_file", "mended", b"\x00" + encode(content)
    yield "config", "default", default_text().encode()
    yield "config", "some", b'[journal]\ndurability = "interval"\nsegment_bytes = "8MiB"\n[source]\n'
    yield "config", "wrong", b'[journal]\ndurabilty = 1\n[[x]]\n"\\u00e9" = 1979-05-27T07:32:00Z\n'
    consumer = {"format": 1, "name": "oslo", "acknowledged_seqno": 5, "uuid": "00", "acknowledged_wall_ns": 9}
    consumer["needs_seed"] = False
    yield "consumer", "one", json.dumps(consumer).encode()
    status = {
        "name": "update", "pid": 1, "state": "serving", "text": "applies", "started_wall_ns": 5, "changed_wall_ns": 6,
        "facts": {"last_applied_seqno": 4}, "error": "", "exit_code": 0,
    }  # fmt: skip
    yield "daemon_status", "one", json.dumps(status).encode()
    yield "daemon_word", "serves", b'{"pid": 5, "text": "serves", "facts": {}}\n'
    yield "daemon_word", "failed", b'{"error": "no", "exit_code": 69}\n'
    table = {"table": "t", "rows": 3, "digest": "ff"}
    region = {"tables": [table], "schema": "0a", "digest": "0b"}
    made = {"format": 1, "instance": "oslo", "seqno": 7, "regions": [["main", region]], "network": "00"}
    yield "digest", "one", json.dumps(made).encode()
    yield "conflict", "one", b'{"seqno": 7, "region": "main", "key": [1], "expected": {"a": {"blob": "00"}}}\n'


def _consumers(home: str) -> Path:
    for name in ("locks", "consumers"):
        (Path(home) / name).mkdir()
    return Path(home) / "consumers"


def seeds() -> Made:
    regions = (SeedRegion("main", 512, 3), SeedRegion("two", 1024, 1))
    position = Position(4, SynchronizationVector({(7, 0): 4}), {7: (4, 99)})
    header = SeedHeader(
        bytes(16), bytes(range(16)), "paris", "oslo", bytes(16), b"s" * 16, b"r" * 16, 7, 8, "0.1", position, regions
    ).pack()
    catalogue = pack_catalogue(Catalogue().with_definition(make_definition()), 4)
    with tempfile.TemporaryDirectory() as home:
        with SeedWriter(Path(home) / "seed") as writer:
            writer.begin(header, catalogue, 1)
            for region in regions:
                copy = Path(home) / "copy"
                copy.write_bytes(bytes(range(256)) * (region.bytes // 256))
                for _ in writer.region(region, copy):
                    pass
            writer.finish()
        whole = (Path(home) / "seed").read_bytes()
    yield "seed_file", "whole", b"\x01" + whole
    yield "seed_file", "mended", b"\x00" + whole
    yield "seed_file", "cut", b"\x01" + whole[:-200]
    with tempfile.TemporaryDirectory() as home:
        with PacketWriter(Path(home) / "packet") as packet:
            packet.segment(SegmentPart(6))
            packet.piece(bytes(500))
            packet.segment(SegmentPart(8, 60, 20))
            packet.piece(bytes(range(40)))
            summary = summary_of(5, 9, number=3, before=2)
            packet.finish(replace(summary, created_wall_ns=7), lambda _body: Signature(b"pem", b"value"))
        whole = (Path(home) / "packet").read_bytes()
        row = EpochRow(summary.base, 3)
        change_epochs(_consumers(home), lambda known: known.heard("oslo", row).exported(summary, "f", 9))
        stored = (Path(home) / "consumers" / EPOCHS_NAME).read_bytes()
    yield "packet_file", "whole", b"\x01" + whole
    yield "packet_file", "mended", b"\x00" + whole
    yield "packet_file", "cut", b"\x01" + whole[:-9]
    key = bytes(range(KEY_BYTES))
    sealer = PacketSealer("oslo", key, ChunkCipher(key))
    sealed = b"".join([sealer.begin(), *sealer.add(bytes(range(90))), sealer.end()])
    yield "sealed_packet", "whole", b"\x01" + sealed
    yield "sealed_packet", "mended", b"\x00" + sealed
    yield "epochs_file", "one", stored
    yield "epochs_file", "wrong", stored.replace(b"oslo", b"osla")
    yield "seed_request", "any", b'{"format": 1, "from": null}\n'
    yield "seed_request", "named", b'{"format": 1, "from": "oslo"}\n'
    yield "seed_request", "regions", b'{"format": 2, "from": null, "regions": ["main", "side"]}\n'
    yield "seed_request", "of-another-release", b'{"format": 3, "from": null}\n'
    yield "seed_request", "wrong", b'{"format": 1, "from": ["oslo"]}\n'
    yield from manifests()
    yield from pages()
    yield "metrics_request", "metrics", b"GET /metrics?now HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield "metrics_request", "post", b"POST /readyz HTTP/1.0\n\n"
    yield "metrics_request", "endless", b"GET /" + b"x" * 4200
    with tempfile.TemporaryDirectory() as home:
        write_hold(Path(home), "oslo", 7)
        yield "consumer_hold", "one", (Path(home) / "oslo.hold").read_bytes()
    yield "seed_answer", "error", b'{"error": {"what": "no", "code": "GAP", "exit_code": 65}}'
    yield "seed_answer", "state", b'{"state": "arriving", "done": 5, "total": 9}'
    yield "seed_answer", "wrong", b'{"error": [], "done": 1e999}'
    for mode, role in ((0, Role.RECEIVER), (2, Role.SOURCE)):
        other = Proof(
            Role.SOURCE if role is Role.RECEIVER else Role.RECEIVER, bytes(range(32)), NETWORK, "oslo", bytes(32)
        )
        mine = Proof(role, bytes(range(32)), NETWORK, "paris", bytes(32))
        heard = b""
        for _ in range(3):
            heard += (said := other.bytes_to_send())
            mine.receive(said)
            other.receive(mine.bytes_to_send())
        yield "proof", role.value, bytes([mode]) + heard
        yield "proof", f"{role.value}-in-bytes", bytes([mode + 4]) + heard


def extremes() -> Made:
    """What parsers of text trip over: nesting, infinities, numbers without an end, text that is no UTF-8."""
    deep = b"[" * 1100
    endless = b"9" * 4400
    yield "config", "deep", b"a = " + deep
    yield "config", "numbers", b"[journal]\ncap_bytes = inf\nsync_interval_s = nan\n"
    yield "config", "endless", b"[journal]\ncap_bytes = " + endless
    yield "config", "no-text", b"\xff\xfe[\x00"
    plain = ("consumer", "consumer_hold", "daemon_status", "daemon_word", "seed_answer", "seed_request")
    for target in (*plain, "archive_manifest", "conflict", "digest", "instance_file"):
        front = b"\x00" if target == "instance_file" else b""
        yield target, "deep", front + deep
        yield target, "deep-object", front + b'{"":' * 1100
        yield target, "endless", front + b'{"pid": ' + endless + b"}"
        yield target, "no-text", front + b"\xff\x00"
        yield target, "list", front + b"[1]"
    consumer = b'{"name": "oslo", "acknowledged_seqno": %b, "uuid": "00", "acknowledged_wall_ns": 9, "needs_seed": 1}'
    yield "consumer", "infinite", consumer % b"1e999"
    yield "consumer", "not-a-number", consumer % b"NaN"
    yield "consumer", "surrogate", consumer % b'"\\ud800"'
    status = b'{"name": "u", "pid": %b, "state": "serving", "text": "", "started_wall_ns": 5, "changed_wall_ns": 6, '
    yield "daemon_status", "infinite", status % b"-Infinity" + b'"facts": {}, "error": "", "exit_code": 0}'
    yield "daemon_status", "facts", status % b"1" + b'"facts": [[1, 2]], "error": "", "exit_code": 0}'
    digest = b'{"instance": %b, "seqno": %b, "regions": [], "network": ""}'
    yield "digest", "infinite", digest % (b'"oslo"', b"1e999")
    yield "digest", "surrogate", digest % (b'"\\ud800"', b"1")
    yield "daemon_word", "infinite", b'{"pid": 1e999, "text": ""}'
    yield "daemon_word", "unhashable", b'{"error": "x", "exit_code": 300}'
    whole = encode(InstanceFile(bytes(16), bytes(16), "paris", 1, "primary", 5, "1:2", home="/x"))
    yield "instance_file", "infinite", b"\x00" + whole.replace(b'"incarnation": 1', b'"incarnation": 1e999')
    yield "instance_file", "unhashable", b"\x00" + whole.replace(b'"role": "primary"', b'"role": [[]]')
    yield "instance_file", "list-of-names", b"\x00" + whole.replace(b'"name": "paris"', b'"name": [1]')
    for choice in range(8):
        yield "values", f"deep-{choice}", bytes([choice]) + b"\x91" * 900 + b"\xc0"
        yield "values", f"maps-{choice}", bytes([choice]) + b"\x9a" + msgpack.packb([{}, [], -1, 1.5])


def pools() -> Made:
    def made(words: dict[int, int], ring: bytes, mode: int = 0) -> bytes:
        head = b"".join(struct.pack(">HQ", index, value) for index, value in words.items())
        return bytes([mode, len(words)]) + head + ring

    first, second = (frame(seqno, 90) for seqno in (1, 2))
    records = b""
    for seqno, data in ((1, first), (2, second)):
        record = pack_head(RecordKind.FRAMES, len(records), seqno, seqno, 1, data) + data
        records += record + bytes(-len(record) % 8)
    padding = pack_padding(len(records), 48).ljust(48, b"\0")
    files_record = pack_head(RecordKind.IN_FILES, len(records) + 48, 3, 4, 0, b"")
    ring = records + padding + files_record
    # EARLY, WRITTEN, LAST_PUBLISHED_SEQNO of the journal pool, and LAST_SEQNO.
    yield "pool_journal", "whole", made({64: len(ring), 65: len(ring), 66: 4, 19: 4}, ring)
    yield "pool_journal", "half-published", made({64: len(ring), 65: len(records), 66: 2, 19: 4}, ring)
    yield "pool_journal", "lapped", made({64: 1 << 20, 65: 1 << 20, 66: 2}, ring)
    yield "pool_journal", "raw", made({64: 5, 65: 1 << 63, 66: 2}, ring[:60], 1)
    # WRITTEN, LAST_RECEIVED_SEQNO, RECEIVED_PARTS, READ and APPLIED_SEQNO of the receive pool.
    frames_only = records + padding
    yield "pool_receive", "whole", made({16: len(frames_only), 17: 2}, frames_only)
    yield "pool_receive", "after", made({16: len(frames_only), 17: 1, 32: len(records)}, frames_only)
    yield "pool_receive", "applied", made({16: len(records), 17: 1, 33: 2}, records)
    part = pack_part(7, 9, 0, b"abc", 0)[0]
    parts = pack_head(RecordKind.PARTS, 0, 1, 1, 1, part) + part
    yield "pool_receive", "parts", made({16: (len(parts) + 7) & ~7}, parts)
    yield "pool_receive", "empty", made({}, b"")
    # LANES, and WRITTEN of the second one: eight share 16 KiB.
    two = records.ljust(2048, b"\0") + records
    yield "pool_receive", "lanes", made({31: 8, 16: len(records), 81: len(records)}, two)
    yield "pool_receive", "too-many-lanes", made({31: 9, 16: len(records)}, records)
    for mode in (0, 2, 4):
        yield "pool_header", f"mode-{mode}", made({mode: 1, 1: 2, 6: 8192}, b"", mode)
        yield "pool_header", f"well-{mode}", made({}, b"", mode)


def main() -> None:
    """Writes DIRECTORY/TARGET/NAME for everything above."""
    home = Path(sys.argv[1])
    for source in (wire, journal, segments, files, seeds, extremes, pools):
        for target, name, data in source():
            (home / target).mkdir(parents=True, exist_ok=True)
            (home / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
