"""What the two servers say to each other: one frozen Struct a message, one table of types and size limits.

    source                                   receiver
      HELLO  ------------------------------>             who I am, version, features
             <------------------------------ HELLO_REPLY (or REFUSE) the same, the version being the one to speak
             <------------------------------ RESTART     from here, please; my vector and chain hashes prove the past
      START, CATALOGUE_CHUNK…, CATALOGUE_END >            from here (or REFUSE: roll back first, hard resync, …)
      DATA, PARTS, LARGE  ----------------->             the journal, in order, without a gap
      HEARTBEAT  -------------------------->
             <------------------------------ HEARTBEAT_REPLY (also unasked, when something moved)
             <------------------------------ XOFF, XON
      BYE, REFUSE  <----------------------->             the last word of either side

A receiver that is to be seeded asks for that first, before its restart (and only a source that can, by FEATURE_SEED):

             <------------------------------ SEED_REQUEST   a seed; of this one I have so much already
      SEED_PREPARING…, SEED_START --------->             it is being made; it is made, and begins here
      SEED_CHUNK…, SEED_END --------------->             the bytes of the seed file
             <------------------------------ SEED_ACK…   so much is written
             <------------------------------ SEED_DONE   all of it is on the disk; from here on as if nothing had been

Of some regions, or partitions (SEED_REQUEST_REGIONS, _PARTITIONS), the same goes beside the stream.

Beside the stream a receiver that has lost files gives them to a source that is primary (FEATURE_LOST), one by one:

             <------------------------------ LOST_OFFER  a file of so many bytes, with this hash
      LOST_TAKEN  ------------------------->             so much of it is here: from there on, or all of it, durably
             <------------------------------ LOST_CHUNK  the next bytes; the next chunk waits for the next LOST_TAKEN

Beside it a source tells what it holds, one range of keys after another (FEATURE_PATROL); nobody answers:

      CHECK  ---------------------------->               the digest of a range at a transaction that was sent before

While the stream runs the two may exchange their roles (both must know FEATURE_ROLES; replicate/roles/handover.py):

             <------------------------------ HANDOVER_READY  I wish to be primary; or the answer to what was asked
      HANDOVER_ASK --------------------->             could you be primary? where do you stand? it does not happen
      HANDOVER ------------------------->             I am secondary from here on: take the role
             <------------------------------ HANDOVER_DONE   I have it; or why I have not

Guarantees: no dictionary crosses a border; every type has a limit that is applied before its body is read.
Leaves to others: bytes (codec.py, frame.py), who may say what when (state.py). Pure.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

from msgspec import Struct, field

from replicate.limits import (
    BATCH_BYTES_MAX,
    CATALOGUE_BYTES_MAX,
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    KIB,
    MESSAGE_BYTES_MAX,
)
from replicate.model.takeover import Takeover
from replicate.model.vector import Chains, SynchronizationVector

CHUNK_BYTES: Final = 256 * KIB
"""Most bytes in one CATALOGUE_CHUNK (or of a seed or a lost file in one chunk): a heartbeat never waits longer."""

SEED_WINDOW_BYTES: Final = 16 * CHUNK_BYTES
"""Most bytes of a seed on the way and not acknowledged: what the receiver may have to hold while its disk is slow."""

BULK_OVERHEAD_BYTES: Final = 64
"""Counted for each bulk message besides its frames: what its record costs in a pool, so that small ones fit."""
TEXT_BYTES_MAX: Final = 1024
FACTS_MAX: Final = 16
FEATURES_MAX: Final = 32
RESTART_BYTES_MAX: Final = 256 * KIB
HANDOVER_BYTES_MAX: Final = 64 * KIB
HANDOVER_TEXTS_MAX: Final = 16
KEYS_BYTES_MAX: Final = 2 * KIB
PARTITIONS_MAX: Final = 4096


class MessageType(IntEnum):
    """The type byte of a wire frame. Never re-used, never re-numbered."""

    HELLO = 1
    HELLO_REPLY = 2
    RESTART = 3
    START = 4
    CATALOGUE_CHUNK = 5
    CATALOGUE_END = 6
    DATA = 7
    PARTS = 8
    LARGE = 9
    HEARTBEAT = 10
    HEARTBEAT_REPLY = 11
    XOFF = 12
    XON = 13
    REFUSE = 14
    BYE = 15
    SEED_REQUEST = 16
    SEED_PREPARING = 17
    SEED_START = 18
    SEED_CHUNK = 19
    SEED_END = 20
    SEED_ACK = 21
    SEED_DONE = 22
    LOST_OFFER = 27
    LOST_CHUNK = 28
    LOST_TAKEN = 29
    HANDOVER_ASK = 23
    HANDOVER_READY = 24
    HANDOVER = 25
    HANDOVER_DONE = 26
    SEED_REQUEST_REGIONS = 30
    CHECK = 35
    SEED_REQUEST_PARTITIONS = 36


_SMALL: Final = 4 * KIB
assert _SMALL <= HELLO_BYTES_MAX
assert CHUNK_BYTES + _SMALL <= MESSAGE_BYTES_MAX
assert FRAME_BYTES_MAX + _SMALL <= BATCH_BYTES_MAX
assert BATCH_BYTES_MAX + _SMALL <= MESSAGE_BYTES_MAX

OPENING_LIMITS: Final = {
    int(MessageType.HELLO): HELLO_BYTES_MAX,
    int(MessageType.HELLO_REPLY): HELLO_BYTES_MAX,
    int(MessageType.REFUSE): HELLO_BYTES_MAX,
    int(MessageType.BYE): _SMALL,
}
"""Most bytes of a body by type, before the peer has said who it is."""

_SMALL_ONES: Final = (
    MessageType.START, MessageType.CATALOGUE_END, MessageType.HEARTBEAT, MessageType.HEARTBEAT_REPLY, MessageType.XOFF,
    MessageType.XON, MessageType.SEED_REQUEST, MessageType.SEED_PREPARING, MessageType.SEED_START, MessageType.SEED_END,
    MessageType.SEED_ACK, MessageType.SEED_DONE, MessageType.LOST_OFFER, MessageType.LOST_TAKEN, MessageType.HANDOVER,
    MessageType.HANDOVER_DONE,
)  # fmt: skip
LIMITS: Final = {**OPENING_LIMITS, **dict.fromkeys(map(int, _SMALL_ONES), _SMALL)} | {
    int(MessageType.RESTART): RESTART_BYTES_MAX,
    int(MessageType.CATALOGUE_CHUNK): CHUNK_BYTES + _SMALL,
    int(MessageType.DATA): MESSAGE_BYTES_MAX,
    int(MessageType.PARTS): MESSAGE_BYTES_MAX,
    int(MessageType.LARGE): FRAME_BYTES_MAX + _SMALL,
    int(MessageType.SEED_CHUNK): CHUNK_BYTES + _SMALL,
    int(MessageType.LOST_CHUNK): CHUNK_BYTES + _SMALL,
    int(MessageType.HANDOVER_ASK): HANDOVER_BYTES_MAX,
    int(MessageType.HANDOVER_READY): RESTART_BYTES_MAX,
    int(MessageType.SEED_REQUEST_REGIONS): 2 * _SMALL,
    int(MessageType.SEED_REQUEST_PARTITIONS): 2 * _SMALL,
    int(MessageType.CHECK): 4 * _SMALL,
}
"""The same, afterwards."""

assert LIMITS.keys() == {int(known) for known in MessageType}


class RefuseCode(StrEnum):
    """Why a connection is refused. A peer of a later release may send others; they are shown as they come."""

    PROTOCOL = "PROTOCOL"
    VERSION = "VERSION"
    WRONG_NETWORK = "WRONG_NETWORK"
    SAME_INSTANCE = "SAME_INSTANCE"
    NAME_TAKEN = "NAME_TAKEN"
    WRONG_INSTANCE = "WRONG_INSTANCE"
    WRONG_ROLE = "WRONG_ROLE"
    NOT_AUTHORISED = "NOT_AUTHORISED"
    NAME_NOT_PROVEN = "NAME_NOT_PROVEN"
    SECOND_SOURCE = "SECOND_SOURCE"
    SECONDARY_AHEAD = "SECONDARY_AHEAD"
    ROLLBACK_FIRST = "ROLLBACK_FIRST"
    JOURNAL_MISSING = "JOURNAL_MISSING"
    DIVERGED = "DIVERGED"
    GAP = "GAP"
    DAMAGED = "DAMAGED"
    SEED_FAILED = "SEED_FAILED"
    TOO_OLD = "TOO_OLD"
    FILTER_MISMATCH = "FILTER_MISMATCH"
    PARTITION_REFUSED = "PARTITION_REFUSED"
    ROWS_REFUSED = "ROWS_REFUSED"
    RETIRED = "RETIRED"
    TURNED_BACK = "TURNED_BACK"
    INTERNAL = "INTERNAL"


LOAD_REFUSED: Final = (RefuseCode.PARTITION_REFUSED, RefuseCode.ROWS_REFUSED)
"""A source that says so of a stream with a partition that is being loaded would stop all others, too."""


class Introduction(Struct, frozen=True):
    """Who speaks. `network` and `instance` are UUIDs of 16 bytes; `name` matches limits.NAME_PATTERN.

    `heartbeat_period_ms`: how often the speaker gives a sign of life; the listener waits for at least two of them.
    `filter`: the filters that what it sends has gone through, or that what it receives will; "" for none. `takeovers`:
    of a primary, the newest records by which origins of others were ended, oldest first. `rows`: of each table of which
    a secondary wants some, region, name, condition. `names`: of a source, of partitions from 2 on. Last, where any.
    """

    network: bytes
    instance: bytes
    name: str
    role: str
    incarnation: int
    release: str
    features: tuple[str, ...]
    batch_bytes_max: int
    heartbeat_period_ms: int
    wall_ns: int
    filter: str = ""
    takeovers: tuple[Takeover, ...] = ()
    rows: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class Hello(Struct, frozen=True):
    """The source's first message: the protocol that it speaks, and who it is."""

    major: int
    minor: int
    introduction: Introduction


class HelloReply(Struct, frozen=True):
    """The receiver's answer: the protocol that both will speak, and who it is."""

    major: int
    minor: int
    introduction: Introduction


class Restart(Struct, frozen=True):
    """The receiver asks for the stream.

    `next_seqno`: the first transaction that it has not safely taken over (everything below is applied or in its receive
    pool). `next_part` and `token`: how far the large transaction with that number has come (0, 0: nothing of it).
    `vector` and `chains` ({origin: (origin_seqno, chain hash)}) describe the position just before `next_seqno`.
    `partitions`: wanted ones, empty for all. `stop_filter`: as GT.M's restart flag. `window_bytes`: most bytes of
    journal frames that may be on the way; what XOFF leaves room for.
    """

    next_seqno: int
    vector: SynchronizationVector = field(default_factory=SynchronizationVector)
    chains: Chains = field(default_factory=dict)
    next_part: int = 0
    token: int = 0
    partitions: tuple[int, ...] = ()
    stop_filter: bool = False
    window_bytes: int = BATCH_BYTES_MAX


class Start(Struct, frozen=True):
    """The source's answer: the stream begins at `from_seqno` (its part `from_part`), after the catalogue's bytes."""

    from_seqno: int
    from_part: int
    last_seqno: int
    catalogue_bytes: int


class CatalogueChunk(Struct, frozen=True):
    """A piece of the packed catalogue that holds at `from_seqno`; `offset` is where it belongs."""

    offset: int
    data: bytes


class CatalogueEnd(Struct, frozen=True):
    """The catalogue is complete: its length and CRC-32C."""

    catalogue_bytes: int
    check: int


class Data(Struct, frozen=True):
    """Journal frames first_seqno..last_seqno, `count` of them, `raw_bytes` long; `data` is compressed if it says so."""

    first_seqno: int
    last_seqno: int
    count: int
    raw_bytes: int
    is_compressed: bool
    data: bytes


class Parts(Struct, frozen=True):
    """Part frames first_part..first_part+count-1 of the large transaction `seqno`, whose spool bears `token`."""

    seqno: int
    token: int
    first_part: int
    count: int
    raw_bytes: int
    is_compressed: bool
    data: bytes


class Large(Struct, frozen=True):
    """The commit frame of the large transaction `seqno`, after all its `parts`."""

    seqno: int
    token: int
    parts: int
    data: bytes


class Heartbeat(Struct, frozen=True):
    """The source's sign of life. Times are wall clock nanoseconds, for showing lag only, never for decisions.

    `received_bytes`: all bytes that the source has received on this connection; proves that the way back works.
    """

    number: int
    wall_ns: int
    last_seqno: int
    last_durable_seqno: int
    last_commit_wall_ns: int
    received_bytes: int


class UpdateState(IntEnum):
    """What a Receiver Server sees of its Update Process: `HeartbeatReply.update_state`. Unknown numbers may come."""

    NOT_RUNNING = 0
    RUNNING = 1
    NOT_ANSWERING = 2
    REGION_WAITS = 3
    """Running, and a region of the source waits there for its seed."""

    @property
    def text(self) -> str:
        """For status and log."""
        return ("not running", "running", "not answering", "running, and a region waits there for its seed")[self]


class HeartbeatReply(Struct, frozen=True):
    """The receiver's sign of life. `number`: of the last heartbeat received (0: none yet).

    `last_received_seqno` is in the receive pool, `last_applied_seqno` committed, `last_durable_seqno` there after a
    power loss. `received_bulk_bytes`: journal frames (before compression) taken from this connection, and
    BULK_OVERHEAD_BYTES for each message that brought them.
    """

    number: int
    wall_ns: int
    last_received_seqno: int
    last_applied_seqno: int
    last_durable_seqno: int
    update_state: int
    receiver_backlog: int
    received_bytes: int
    received_bulk_bytes: int


class Xoff(Struct, frozen=True):
    """Stop sending journal frames; heartbeats go on. `free_bytes` of the receive pool are left."""

    reason: str
    free_bytes: int


class Xon(Struct, frozen=True):
    """Go on from where you stopped."""

    free_bytes: int


class Refuse(Struct, frozen=True):
    """No, and why; the last word of the speaker. `facts`: names and numbers for the log."""

    code: str
    text: str
    facts: tuple[tuple[str, int | str], ...] = ()


class Bye(Struct, frozen=True):
    """An orderly end; the last word of the speaker."""

    reason: str


class SeedRequest(Struct, frozen=True):
    """The receiver asks for a seed. `request`: its own name for this wish (16 bytes), the same until it has been met.

    `seed`: the snapshot of which it has the first `offset` bytes already; zeros and 0 when it has nothing.
    """

    request: bytes
    seed: bytes
    offset: int


class SeedRequestRegions(SeedRequest, frozen=True):
    """The same of these regions, beside the stream."""

    regions: tuple[str, ...]


class SeedRequestPartitions(SeedRequest, frozen=True):
    """The same of the rows of these partitions, which the stream brings by now."""

    partitions: tuple[int, ...]


class SeedPreparing(Struct, frozen=True):
    """The seed is being made: so many of its pages are."""

    done: int
    pages: int


class SeedStart(Struct, frozen=True):
    """The file `seed` of `file_bytes` stands at transaction `seqno`; its bytes from `offset` on follow."""

    seed: bytes
    offset: int
    file_bytes: int
    seqno: int


class SeedChunk(Struct, frozen=True):
    """The bytes of the seed file at `offset`."""

    offset: int
    data: bytes


class SeedEnd(Struct, frozen=True):
    """All `file_bytes` have been sent."""

    file_bytes: int


class SeedAck(Struct, frozen=True):
    """The receiver has written everything before `offset`."""

    offset: int


class SeedDone(Struct, frozen=True):
    """The receiver has all of `seed` on its disk; the source need not keep the file."""

    seed: bytes


class LostOffer(Struct, frozen=True):
    """The receiver has a lost file: its XXH3, its length, and the numbers that it is about (`last_seqno` 0: nobody
    knows how far)."""

    check: int
    file_bytes: int
    first_seqno: int
    last_seqno: int


class LostChunk(Struct, frozen=True):
    """The bytes of the offered file at `offset`."""

    offset: int
    data: bytes


class LostTaken(Struct, frozen=True):
    """The source has the bytes of the file with that hash before `offset`; where that is all of them, durably, whole
    and under its name."""

    check: int
    offset: int


class HandoverStep(IntEnum):
    """What HANDOVER_ASK and HANDOVER_READY are about."""

    WISH = 0
    """The receiver wants to be primary."""
    TRY = 1
    """The receiver wants to know whether it could be."""
    CHECK = 2
    """Whether the receiver could be primary, and the way back works."""
    PROVE = 3
    """Where the receiver stands when it has all up to a number."""
    ENDED = 4
    """What the receiver has wished does not happen, or was only tried."""


class HandoverAsk(Struct, frozen=True):
    """The source asks, or tells what has become of a wish.

    `seqno`: of PROVE the number; of ENDED the exit code. `timeout_ms`: so long the source waits for the answer.
    `texts`: of ENDED, what bars it.
    """

    step: int
    seqno: int
    timeout_ms: int
    texts: tuple[str, ...] = ()


class HandoverReady(Struct, frozen=True):
    """The receiver wishes, or answers.

    `seqno`: up to there it has applied all, durably. `vector` and `chains`: its position there, of PROVE. `timeout_ms`:
    of a wish, how long it may take. `texts`: of CHECK, what bars it; it could be primary where there is none.
    """

    step: int
    seqno: int
    timeout_ms: int
    vector: SynchronizationVector = field(default_factory=SynchronizationVector)
    chains: Chains = field(default_factory=dict)
    texts: tuple[str, ...] = ()


class Handover(Struct, frozen=True):
    """The source has become secondary after transaction `seqno`: the receiver is to be primary from there on."""

    seqno: int


class HandoverDone(Struct, frozen=True):
    """The receiver is primary after transaction `seqno`; or is not, and `text` says why, with its `exit_code`."""

    seqno: int
    exit_code: int = 0
    text: str = ""


class Check(Struct, frozen=True):
    """What the source holds of one range of a table, at the transaction `seqno`, which was sent before.

    `round_wall_ns` names the round of the patrol, `number` counts its ranges from 1 on; with `is_last` it is over.
    `table`: "" for the schema. `after`, `upto`: packed keys (region/sqlite/range_digest.py), of at most KEYS_BYTES_MAX.
    """

    round_wall_ns: int
    number: int
    is_last: bool
    seqno: int
    region: str
    table: str
    after: bytes
    upto: bytes
    rows: int
    digest: bytes


Message: TypeAlias = (
    Hello
    | HelloReply
    | Restart
    | Start
    | CatalogueChunk
    | CatalogueEnd
    | Data
    | Parts
    | Large
    | Heartbeat
    | HeartbeatReply
    | Xoff
    | Xon
    | Refuse
    | Bye
    | SeedRequest
    | SeedRequestRegions
    | SeedRequestPartitions
    | Check
    | SeedPreparing
    | SeedStart
    | SeedChunk
    | SeedEnd
    | SeedAck
    | SeedDone
    | LostOffer
    | LostChunk
    | LostTaken
    | HandoverAsk
    | HandoverReady
    | Handover
    | HandoverDone
)

MESSAGE_TYPES: Final[dict[type, MessageType]] = {
    Hello: MessageType.HELLO,
    HelloReply: MessageType.HELLO_REPLY,
    Restart: MessageType.RESTART,
    Start: MessageType.START,
    CatalogueChunk: MessageType.CATALOGUE_CHUNK,
    CatalogueEnd: MessageType.CATALOGUE_END,
    Data: MessageType.DATA,
    Parts: MessageType.PARTS,
    Large: MessageType.LARGE,
    Heartbeat: MessageType.HEARTBEAT,
    HeartbeatReply: MessageType.HEARTBEAT_REPLY,
    Xoff: MessageType.XOFF,
    Xon: MessageType.XON,
    Refuse: MessageType.REFUSE,
    Bye: MessageType.BYE,
    SeedRequest: MessageType.SEED_REQUEST,
    SeedRequestRegions: MessageType.SEED_REQUEST_REGIONS,
    SeedRequestPartitions: MessageType.SEED_REQUEST_PARTITIONS,
    Check: MessageType.CHECK,
    SeedPreparing: MessageType.SEED_PREPARING,
    SeedStart: MessageType.SEED_START,
    SeedChunk: MessageType.SEED_CHUNK,
    SeedEnd: MessageType.SEED_END,
    SeedAck: MessageType.SEED_ACK,
    SeedDone: MessageType.SEED_DONE,
    LostOffer: MessageType.LOST_OFFER,
    LostChunk: MessageType.LOST_CHUNK,
    LostTaken: MessageType.LOST_TAKEN,
    HandoverAsk: MessageType.HANDOVER_ASK,
    HandoverReady: MessageType.HANDOVER_READY,
    Handover: MessageType.HANDOVER,
    HandoverDone: MessageType.HANDOVER_DONE,
}

assert set(MESSAGE_TYPES.values()) == set(MessageType)
assert CATALOGUE_BYTES_MAX < 2**32
