"""The table of settings: default, unit, bounds and one sentence for each. A field is a setting, a class its section.

Guarantees: whatever is said of a setting anywhere (checks, default file, `config show`) comes from here.
Leaves to others: the file they are read from, who uses them, and which combinations cannot work (that is config.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from replicate.limits import (
    BATCH_BYTES_MAX,
    DEFAULT_PORT,
    FRAME_BYTES_MAX,
    KIB,
    MIB,
    POOL_BYTES_DEFAULT,
    POOL_BYTES_MIN,
    RECEIVE_POOL_BYTES_DEFAULT,
    RECEIVE_POOL_BYTES_MIN,
)

GIB: Final = 1024 * MIB

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What the table says of a setting besides its default."""

    sentence: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table: `key` is `section.name`; `kind` is the type of its default."""

    key: str
    default: Scalar
    facts: Facts

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    @property
    def kind(self) -> type:
        return type(self.default)


def _setting(default: Scalar, sentence: str, **facts: Any) -> Any:
    return field(default=default, metadata={"facts": Facts(sentence, **facts)})


# Rows that several sections have.


def _filter_format() -> Any:
    return _setting(
        "json",
        "What the filter reads and writes: a line of JSON, or a map of msgpack, for each event; of a function always "
        "msgpack.",
        choices=("json", "msgpack"),
    )


def _filter_timeout_s() -> Any:
    return _setting(
        64.0, "A filter that has read and said nothing for this long has failed.", unit="s", least=0.1, most=86400
    )


def _patrol_round_s() -> Any:
    return _setting(
        3600.0, "Least time from the beginning of a round to that of the next.", unit="s", least=0.1, most=31_536_000
    )


def _metrics_listen() -> Any:
    return _setting(
        "",
        "HOST:PORT to serve /metrics, /livez and /readyz on; '' for none, port 0 takes a free one and reports it. "
        "Loopback only.",
    )


def _statistics_period_s() -> Any:
    return _setting(300.0, "Time between two statistics events in the log.", unit="s", least=0.1, most=86400)


def _statistics() -> Any:
    return _setting(
        True,
        "Whether statistics events are logged; `replicate statistics` orders otherwise until it ends.",
    )


def _statistics_transactions() -> Any:
    return _setting(
        0,
        "A statistics event after so many transactions too, one a second at most; 0: by time only.",
        least=0,
        most=1_000_000_000,
    )


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """[journal]"""

    durability: Literal["durable", "interval", "off"] = _setting(
        "durable",
        "A commit returns when it is on the disk, or before (synced within sync_interval_s), or is never synced.",
        choices=("durable", "interval", "off"),
    )
    sync_interval_s: float = _setting(
        1.0, "Longest time until a commit is on the disk under 'interval'.", unit="s", least=0.001, most=1.0
    )
    segment_bytes: int = _setting(
        64 * MIB, "Size at which a new journal file is begun.", unit="bytes", least=2 * FRAME_BYTES_MAX, most=4 * GIB
    )
    cap_bytes: int = _setting(
        10 * GIB,
        "Most bytes of journal files kept; status warns at 70, 85 and 95 %.",
        unit="bytes",
        least=4 * FRAME_BYTES_MAX,
        most=2**50,
    )
    cap_policy: Literal["keep", "drop-consumer", "prune-archived"] = _setting(
        "keep",
        "At the cap: keep the journal for all consumers (status alarms; only a full disk refuses commits), or drop the "
        "slowest consumer, which must then be seeded again, or remove what is archived, which a consumer that still "
        "needs it then replays from there.",
        choices=("keep", "drop-consumer", "prune-archived"),
    )
    archive: str = _setting(
        "", "Directory or URI of the archive that journal files are kept for until they are in it; '' for none."
    )
    archive_lag_bytes: int = _setting(
        GIB,
        "status warns when more finished journal than this is not in the archive.",
        unit="bytes",
        least=FRAME_BYTES_MAX,
        most=2**50,
    )
    reserve_bytes: int = _setting(
        64 * MIB,
        "Room that is kept beside the journal, and given up when its disk is full for the first time: commits go on, "
        "and status says it; 0 for none.",
        unit="bytes",
        least=0,
        most=64 * GIB,
    )
    rollback_bytes: int = _setting(
        GIB,
        "A secondary keeps its newest journal files up to this size, though nobody needs them: it can be taken back as "
        "far when a site that has less becomes primary.",
        unit="bytes",
        least=0,
        most=2**50,
    )
    pool_bytes: int = _setting(
        POOL_BYTES_DEFAULT,
        "Size of the journal pool in shared memory; at most a quarter of what is free there is taken.",
        unit="bytes",
        least=POOL_BYTES_MIN,
        most=64 * GIB,
    )


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """[source]"""

    heartbeat_period_s: float = _setting(
        15.0, "Time between two heartbeats to the secondary.", unit="s", least=0.05, most=3600
    )
    dead_after_s: float = _setting(
        60.0, "A peer that has sent nothing for this long is taken for dead.", unit="s", least=0.1, most=86400
    )
    hard_tries: int = _setting(5, "First attempts to connect, made quickly; 0 for none.", least=0, most=10_000)
    hard_period_s: float = _setting(0.5, "Time between two hard attempts.", unit="s", least=0.01, most=3600)
    soft_period_s: float = _setting(
        5.0, "Time between two attempts once the hard ones have failed.", unit="s", least=0.05, most=86400
    )
    connect_timeout_s: float = _setting(
        5.0, "Longest time for one attempt, the hello included.", unit="s", least=0.05, most=3600
    )
    compression: Literal["none", "zstd"] = _setting(
        "none", "Compress batches on the wire, if the peer can.", choices=("none", "zstd")
    )
    batch_bytes: int = _setting(
        256 * KIB,
        "Most bytes of journal frames sent as one message.",
        unit="bytes",
        least=4 * KIB,
        most=BATCH_BYTES_MAX,
    )
    filter: str = _setting(
        "",
        "A program, or package.module:function, that each transaction goes through before it is sent (`replicate "
        "help filters`); '' for none.",
    )
    filter_format: Literal["json", "msgpack"] = _filter_format()
    filter_timeout_s: float = _filter_timeout_s()
    filter_schema: str = _setting(
        "",
        "A script of the CREATE TABLE statements that the peer's region has, for what the filter makes; REGION=FILE, … "
        "for several; '' where it has our tables. Relative to the instance's directory.",
    )
    patrol_percent: float = _setting(
        1.0,
        "How much of a core the patrol may take, which proves to the peer that its rows are ours, and looks through "
        "the indexes here; 0: there is none.",
        unit="%",
        least=0,
        most=100,
    )
    patrol_speed_mb: float = _setting(
        8.0, "Most megabytes that the patrol reads a second.", unit="MB", least=0.001, most=100_000
    )
    patrol_hours: str = _setting("", "When the patrol goes, by the local clock, such as 22-6; '' for always.")
    patrol_round_s: float = _patrol_round_s()
    metrics_listen: str = _metrics_listen()
    statistics_period_s: float = _statistics_period_s()
    statistics: bool = _statistics()
    statistics_transactions: int = _statistics_transactions()


@dataclass(frozen=True, slots=True)
class ReceiverConfig:
    """[receiver]"""

    listen: str = _setting(
        f"127.0.0.1:{DEFAULT_PORT}",
        "HOST:PORT to wait on for the source; port 0 takes a free one and reports it. Not on loopback: TLS only.",
    )
    allow: str = _setting(
        "",
        "The instances that may send to this one, separated by commas; NAME=CERTIFICATE-NAME where the certificate "
        "bears another name. Needed for TLS; '' on loopback: any that holds the key.",
    )
    auto_rollback: bool = _setting(
        False,
        "Whether a secondary that has more than the site that took over goes back by itself to where that happened, as "
        "`rollback` does: what it has more is written to a file first.",
    )
    auto_seed: bool = _setting(
        False,
        "With auto_rollback: whether one that cannot go back, since what it has more changes the schema, is filled "
        "again from its source by itself, as `seed --restart` does: what it has more is written to a file first.",
    )
    stop_source_filter: bool = _setting(
        False, "Whether the source is asked to turn its filter off, until it is started again."
    )
    connections_max: int = _setting(
        32, "Most connections at once; one more closes one that is not served.", least=1, most=10_000
    )
    connections_per_address_max: int = _setting(
        16, "Most connections at once from one address, as above.", least=1, most=10_000
    )
    pool_bytes: int = _setting(
        RECEIVE_POOL_BYTES_DEFAULT,
        "Size of the receive pool in shared memory; at most a quarter of what is free there is taken.",
        unit="bytes",
        least=RECEIVE_POOL_BYTES_MIN,
        most=64 * GIB,
    )
    xoff_percent: int = _setting(
        90, "The source is told to pause when the receive pool is fuller than this.", unit="%", least=10, most=95
    )
    xon_percent: int = _setting(
        80, "The source may go on when the receive pool is emptier than this.", unit="%", least=1, most=94
    )
    heartbeat_period_s: float = _setting(
        15.0, "Time after which a silent line is asked for a sign of life.", unit="s", least=0.05, most=3600
    )
    dead_after_s: float = _setting(
        60.0, "A source that has sent nothing for this long is taken for dead.", unit="s", least=0.1, most=86400
    )
    hello_timeout_s: float = _setting(
        5.0, "A connection that has not said who it is by then is closed.", unit="s", least=0.05, most=3600
    )
    filter: str = _setting(
        "",
        "A program, or package.module:function, that each transaction goes through before the receive pool (`replicate "
        "help filters`); '' for none.",
    )
    filter_format: Literal["json", "msgpack"] = _filter_format()
    filter_timeout_s: float = _filter_timeout_s()
    patrol_percent: float = _setting(
        1.0,
        "How much of a core the patrol may take, which looks through the indexes here; 0: there is none.",
        unit="%",
        least=0,
        most=100,
    )
    patrol_speed_mb: float = _setting(
        8.0, "Most megabytes that it reads a second.", unit="MB", least=0.001, most=100_000
    )
    patrol_hours: str = _setting("", "When it goes, by the local clock, such as 22-6; '' for always.")
    patrol_round_s: float = _patrol_round_s()
    on_divergence: Literal["continue", "stop"] = _setting(
        "continue",
        "Whether the stream goes on, or stops until it is mended, when the patrol finds rows that differ.",
        choices=("continue", "stop"),
    )
    metrics_listen: str = _metrics_listen()
    statistics_period_s: float = _statistics_period_s()
    statistics: bool = _statistics()
    statistics_transactions: int = _statistics_transactions()


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """[update]"""

    batch_transactions: int = _setting(
        250_000, "Most transactions applied in one local commit.", least=1, most=1_000_000
    )
    batch_bytes: int = _setting(
        64 * MIB,
        "Most bytes of frames applied in one local commit; at most 0.48 of the receive pool up to xoff_percent, "
        "and fifteen sixteenths of a journal segment.",
        unit="bytes",
        least=4 * KIB,
        most=GIB,
    )
    lock_timeout_s: float = _setting(
        5.0, "Longest time to wait for a region's lock before it is reported.", unit="s", least=0.05, most=3600
    )
    clock_ahead_max_s: float = _setting(
        86_400.0,
        "On a supplier: how far ahead of this host's clock a transaction of another one may be, and how far ahead of "
        "all others' clocks this host's for a commit here.",
        unit="s",
        least=1,
        most=3_200_000_000,
    )
    tell_seen_s: float = _setting(
        10.0,
        "On a supplier that writes nothing itself: how long it may wait to tell the others what it has applied of "
        "partitions that several write; until then they remember who wrote what there.",
        unit="s",
        least=0.1,
        most=3600,
    )
    metrics_listen: str = _metrics_listen()
    statistics_period_s: float = _statistics_period_s()
    statistics: bool = _statistics()
    statistics_transactions: int = _statistics_transactions()
    comment_hook: str = _setting(
        "",
        "module:function that is called for each comment in the log, after its commit, at least once, in a process of "
        "its own: function(text, about). '' for none.",
    )


@dataclass(frozen=True, slots=True)
class PacketsConfig:
    """[packets]"""

    outbox: str = _setting(
        "packets/outbox", "Where `packet export` puts packets; relative to the instance's directory."
    )
    inbox: str = _setting(
        "packets/inbox", "Where `packet import` looks for packets; relative to the instance's directory."
    )
    max_bytes: int = _setting(
        256 * MIB, "Most bytes of one packet; what is more goes into the next.", unit="bytes", least=8 * MIB, most=2**50
    )
    unsigned: Literal["refuse", "accept"] = _setting(
        "refuse",
        "What an instance with a certificate does with packets that nobody has signed.",
        choices=("refuse", "accept"),
    )
    keep_days: int = _setting(
        0,
        "So long after its export a packet's content is kept for a replica that has not confirmed it; 0: until it "
        "does.",
        unit="days",
        least=0,
        most=36_500,
    )
    confirm_within_s: float = _setting(
        7 * 86_400.0,
        "status warns when a replica that gets packets has confirmed nothing for so long; 0: it never does.",
        unit="s",
        least=0.0,
        most=3.2e9,
    )
    hook: str = _setting(
        "",
        "A command that is run after each export, with the packet's file as its last argument; no shell; '' for none.",
    )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """[tls]"""

    ca: str = _setting(
        "tls/ca.pem", "The CA's certificate, which those of all peers must bear; relative to the instance's directory."
    )
    certificate: str = _setting("tls/certificate.pem", "This instance's certificate.")
    key: str = _setting("tls/key.pem", "Its private key: mode 0600, ours or root's, no symbolic link.")
    warn_days: int = _setting(
        30, "status and log warn when a certificate ends within this time.", unit="days", least=0, most=3650
    )
    loopback: bool = _setting(False, "Whether connections on loopback speak TLS too (set it on both sides).")


@dataclass(frozen=True, slots=True)
class LoopbackConfig:
    """[loopback]"""

    key_file: str = _setting(
        "",
        "Key that both sides of a plain loopback connection prove, mode 0600; '' for one that instances of one user "
        "share by themselves.",
    )


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """[daemon]"""

    start_timeout_s: float = _setting(
        30.0, "`start` gives up when the daemon does not serve within this time.", unit="s", least=0.1, most=3600
    )
    stop_timeout_s: float = _setting(
        120.0, "`stop` drains for at most this long, then ends the daemon.", unit="s", least=0, most=3600
    )


@dataclass(frozen=True, slots=True)
class StatusConfig:
    """[status]"""

    compared_warn_days: int = _setting(
        15,
        "status of a secondary warns when its last compare with the primary is older, or when there was none for so "
        "long since it was made or seeded; 0: never.",
        unit="days",
        least=0,
        most=3650,
    )
    silent_warn_s: float = _setting(
        3600.0,
        "status of a supplier warns when another one has not told for so long that it has what all write.",
        unit="s",
        least=1,
        most=864000,
    )
    fence_warn_s: float = _setting(
        300.0,
        "status of a supplier warns when others have stood aside for longer, so that the schema may change.",
        unit="s",
        least=0,
        most=86400,
    )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """[log]"""

    level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Least severe event that is written.", choices=("debug", "info", "warning", "error")
    )
    row_values: bool = _setting(False, "Whether values of rows may stand in a log.")


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """[region]"""

    init: str = _setting(
        "",
        "MODULE:FUNCTION, called with each connection to a region: registers the functions and collations of the "
        "application that its schema uses. The same on both sides. NAME=MODULE:FUNCTION, NAME=… is for single regions.",
    )


@dataclass(frozen=True, slots=True)
class ApplicationConfig:
    """[application]"""

    busy_timeout_s: float = _setting(
        5.0, "How long a writer waits for another before it gets 'database is locked'.", unit="s", least=0, most=86400
    )
