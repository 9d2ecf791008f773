"""The table of settings: default, unit, bounds and one sentence for each. A field is a setting, a class its section.

Guarantees: whatever is said of a setting anywhere (checks, default file, `config show`) comes from here.
Leaves to others: the file they are read from, who uses them, and which combinations cannot work (that is config.py).
"""

from typing import Annotated, Final, Literal

from msgspec import Struct

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


class Facts(Struct, frozen=True):
    """What the table says of a setting besides its default."""

    sentence: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


class Setting(Struct, frozen=True):
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


# Rows that several sections have. What is annotated is read as the module is: there are no annotations as texts here.

FilterFormat = Annotated[
    Literal["json", "msgpack"],
    Facts(
        "What the filter reads and writes: a line of JSON, or a map of msgpack, for each event; of a function always "
        "msgpack.",
        choices=("json", "msgpack"),
    ),
]

FilterTimeoutS = Annotated[
    float, Facts("A filter that has read and said nothing for this long has failed.", unit="s", least=0.1, most=86400)
]

PatrolRoundS = Annotated[
    float, Facts("Least time from the beginning of a round to that of the next.", unit="s", least=0.1, most=31_536_000)
]

MetricsListen = Annotated[
    str,
    Facts(
        "HOST:PORT to serve /metrics, /livez and /readyz on; '' for none, port 0 takes a free one and reports it. "
        "Loopback only."
    ),
]

StatisticsPeriodS = Annotated[
    float, Facts("Time between two statistics events in the log.", unit="s", least=0.1, most=86400)
]

Statistics = Annotated[
    bool, Facts("Whether statistics events are logged; `replicate statistics` orders otherwise until it ends.")
]

StatisticsTransactions = Annotated[
    int,
    Facts(
        "A statistics event after so many transactions too, one a second at most; 0: by time only.",
        least=0,
        most=1_000_000_000,
    ),
]


class JournalConfig(Struct, frozen=True):
    """[journal]"""

    durability: Annotated[
        Literal["durable", "interval", "off"],
        Facts(
            "A commit returns when it is on the disk, or before (synced within sync_interval_s), or is never synced.",
            choices=("durable", "interval", "off"),
        ),
    ] = "durable"
    sync_interval_s: Annotated[
        float, Facts("Longest time until a commit is on the disk under 'interval'.", unit="s", least=0.001, most=1.0)
    ] = 1.0
    segment_bytes: Annotated[
        int, Facts("Size at which a new journal file is begun.", unit="bytes", least=2 * FRAME_BYTES_MAX, most=4 * GIB)
    ] = 64 * MIB
    cap_bytes: Annotated[
        int,
        Facts(
            "Most bytes of journal files kept; status warns at 70, 85 and 95 %.",
            unit="bytes",
            least=4 * FRAME_BYTES_MAX,
            most=2**50,
        ),
    ] = 10 * GIB
    cap_policy: Annotated[
        Literal["keep", "drop-consumer", "prune-archived"],
        Facts(
            "At the cap: keep the journal for all consumers (status alarms; only a full disk refuses commits), or "
            "drop the slowest consumer, which must then be seeded again, or remove what is archived, which a consumer "
            "that still needs it then replays from there.",
            choices=("keep", "drop-consumer", "prune-archived"),
        ),
    ] = "keep"
    archive: Annotated[
        str, Facts("Directory or URI of the archive that journal files are kept for until they are in it; '' for none.")
    ] = ""
    archive_lag_bytes: Annotated[
        int,
        Facts(
            "status warns when more finished journal than this is not in the archive.",
            unit="bytes",
            least=FRAME_BYTES_MAX,
            most=2**50,
        ),
    ] = GIB
    reserve_bytes: Annotated[
        int,
        Facts(
            "Room that is kept beside the journal, and given up when its disk is full for the first time: commits go "
            "on, and status says it; 0 for none.",
            unit="bytes",
            least=0,
            most=64 * GIB,
        ),
    ] = 64 * MIB
    rollback_bytes: Annotated[
        int,
        Facts(
            "A secondary keeps its newest journal files up to this size, though nobody needs them: it can be taken "
            "back as far when a site that has less becomes primary.",
            unit="bytes",
            least=0,
            most=2**50,
        ),
    ] = GIB
    pool_bytes: Annotated[
        int,
        Facts(
            "Size of the journal pool in shared memory; at most a quarter of what is free there is taken.",
            unit="bytes",
            least=POOL_BYTES_MIN,
            most=64 * GIB,
        ),
    ] = POOL_BYTES_DEFAULT


class SourceConfig(Struct, frozen=True):
    """[source]"""

    heartbeat_period_s: Annotated[
        float, Facts("Time between two heartbeats to the secondary.", unit="s", least=0.05, most=3600)
    ] = 15.0
    dead_after_s: Annotated[
        float, Facts("A peer that has sent nothing for this long is taken for dead.", unit="s", least=0.1, most=86400)
    ] = 60.0
    hard_tries: Annotated[int, Facts("First attempts to connect, made quickly; 0 for none.", least=0, most=10_000)] = 5
    hard_period_s: Annotated[float, Facts("Time between two hard attempts.", unit="s", least=0.01, most=3600)] = 0.5
    soft_period_s: Annotated[
        float, Facts("Time between two attempts once the hard ones have failed.", unit="s", least=0.05, most=86400)
    ] = 5.0
    connect_timeout_s: Annotated[
        float, Facts("Longest time for one attempt, the hello included.", unit="s", least=0.05, most=3600)
    ] = 5.0
    compression: Annotated[
        Literal["none", "zstd"], Facts("Compress batches on the wire, if the peer can.", choices=("none", "zstd"))
    ] = "none"
    batch_bytes: Annotated[
        int,
        Facts("Most bytes of journal frames sent as one message.", unit="bytes", least=4 * KIB, most=BATCH_BYTES_MAX),
    ] = 256 * KIB
    filter: Annotated[
        str,
        Facts(
            "A program, or package.module:function, that each transaction goes through before it is sent (`replicate "
            "help filters`); '' for none."
        ),
    ] = ""
    filter_format: FilterFormat = "json"
    filter_timeout_s: FilterTimeoutS = 64.0
    filter_schema: Annotated[
        str,
        Facts(
            "A script of the CREATE TABLE statements that the peer's region has, for what the filter makes; "
            "REGION=FILE, … for several; '' where it has our tables. Relative to the instance's directory."
        ),
    ] = ""
    patrol_percent: Annotated[
        float,
        Facts(
            "How much of a core the patrol may take, which proves to the peer that its rows are ours, and looks "
            "through the indexes here; 0: there is none.",
            unit="%",
            least=0,
            most=100,
        ),
    ] = 1.0
    patrol_speed_mb: Annotated[
        float, Facts("Most megabytes that the patrol reads a second.", unit="MB", least=0.001, most=100_000)
    ] = 8.0
    patrol_hours: Annotated[str, Facts("When the patrol goes, by the local clock, such as 22-6; '' for always.")] = ""
    patrol_round_s: PatrolRoundS = 3600.0
    metrics_listen: MetricsListen = ""
    statistics_period_s: StatisticsPeriodS = 300.0
    statistics: Statistics = True
    statistics_transactions: StatisticsTransactions = 0


class ReceiverConfig(Struct, frozen=True):
    """[receiver]"""

    listen: Annotated[
        str,
        Facts(
            "HOST:PORT to wait on for the source; port 0 takes a free one and reports it. Not on loopback: TLS only."
        ),
    ] = f"127.0.0.1:{DEFAULT_PORT}"
    allow: Annotated[
        str,
        Facts(
            "The instances that may send to this one, separated by commas; NAME=CERTIFICATE-NAME where the certificate "
            "bears another name. Needed for TLS; '' on loopback: any that holds the key."
        ),
    ] = ""
    auto_rollback: Annotated[
        bool,
        Facts(
            "Whether a secondary that has more than the site that took over goes back by itself to where that "
            "happened, as `rollback` does: what it has more is written to a file first."
        ),
    ] = False
    auto_seed: Annotated[
        bool,
        Facts(
            "With auto_rollback: whether one that cannot go back, since what it has more changes the schema, is filled "
            "again from its source by itself, as `seed --restart` does: what it has more is written to a file first."
        ),
    ] = False
    stop_source_filter: Annotated[
        bool, Facts("Whether the source is asked to turn its filter off, until it is started again.")
    ] = False
    connections_max: Annotated[
        int, Facts("Most connections at once; one more closes one that is not served.", least=1, most=10_000)
    ] = 32
    connections_per_address_max: Annotated[
        int, Facts("Most connections at once from one address, as above.", least=1, most=10_000)
    ] = 16
    pool_bytes: Annotated[
        int,
        Facts(
            "Size of the receive pool in shared memory; at most a quarter of what is free there is taken. A supplier's "
            "is shared out among its sources.",
            unit="bytes",
            least=RECEIVE_POOL_BYTES_MIN,
            most=64 * GIB,
        ),
    ] = RECEIVE_POOL_BYTES_DEFAULT
    xoff_percent: Annotated[
        int,
        Facts("The source is told to pause when the receive pool is fuller than this.", unit="%", least=10, most=95),
    ] = 90
    xon_percent: Annotated[
        int, Facts("The source may go on when the receive pool is emptier than this.", unit="%", least=1, most=94)
    ] = 80
    heartbeat_period_s: Annotated[
        float, Facts("Time after which a silent line is asked for a sign of life.", unit="s", least=0.05, most=3600)
    ] = 15.0
    dead_after_s: Annotated[
        float, Facts("A source that has sent nothing for this long is taken for dead.", unit="s", least=0.1, most=86400)
    ] = 60.0
    hello_timeout_s: Annotated[
        float, Facts("A connection that has not said who it is by then is closed.", unit="s", least=0.05, most=3600)
    ] = 5.0
    filter: Annotated[
        str,
        Facts(
            "A program, or package.module:function, that each transaction goes through before the receive pool "
            "(`replicate help filters`); '' for none."
        ),
    ] = ""
    filter_format: FilterFormat = "json"
    filter_timeout_s: FilterTimeoutS = 64.0
    patrol_percent: Annotated[
        float,
        Facts(
            "How much of a core the patrol may take, which looks through the indexes here; 0: there is none.",
            unit="%",
            least=0,
            most=100,
        ),
    ] = 1.0
    patrol_speed_mb: Annotated[
        float, Facts("Most megabytes that it reads a second.", unit="MB", least=0.001, most=100_000)
    ] = 8.0
    patrol_hours: Annotated[str, Facts("When it goes, by the local clock, such as 22-6; '' for always.")] = ""
    patrol_round_s: PatrolRoundS = 3600.0
    on_divergence: Annotated[
        Literal["continue", "stop"],
        Facts(
            "Whether the stream goes on, or stops until it is mended, when the patrol finds rows that differ.",
            choices=("continue", "stop"),
        ),
    ] = "continue"
    metrics_listen: MetricsListen = ""
    statistics_period_s: StatisticsPeriodS = 300.0
    statistics: Statistics = True
    statistics_transactions: StatisticsTransactions = 0


class UpdateConfig(Struct, frozen=True):
    """[update]"""

    batch_transactions: Annotated[
        int, Facts("Most transactions applied in one local commit.", least=1, most=1_000_000)
    ] = 250_000
    batch_bytes: Annotated[
        int,
        Facts(
            "Most bytes of frames applied in one local commit; at most 0.48 of the receive pool up to xoff_percent, "
            "and fifteen sixteenths of a journal segment.",
            unit="bytes",
            least=4 * KIB,
            most=GIB,
        ),
    ] = 64 * MIB
    lock_timeout_s: Annotated[
        float, Facts("Longest time to wait for a region's lock before it is reported.", unit="s", least=0.05, most=3600)
    ] = 5.0
    clock_ahead_max_s: Annotated[
        float,
        Facts(
            "On a supplier: how far ahead of this host's clock a transaction of another one may be, and how far ahead "
            "of all others' clocks this host's for a commit here.",
            unit="s",
            least=1,
            most=3_200_000_000,
        ),
    ] = 86_400.0
    tell_seen_s: Annotated[
        float,
        Facts(
            "On a supplier that writes nothing itself: how long it may wait to tell the others what it has applied of "
            "partitions that several write; until then they remember who wrote what there.",
            unit="s",
            least=0.1,
            most=3600,
        ),
    ] = 10.0
    metrics_listen: MetricsListen = ""
    statistics_period_s: StatisticsPeriodS = 300.0
    statistics: Statistics = True
    statistics_transactions: StatisticsTransactions = 0
    comment_hook: Annotated[
        str,
        Facts(
            "module:function that is called for each comment in the log, after its commit, at least once, in a "
            "process of its own: function(text, about). '' for none."
        ),
    ] = ""


class PacketsConfig(Struct, frozen=True):
    """[packets]"""

    outbox: Annotated[str, Facts("Where `packet export` puts packets; relative to the instance's directory.")] = (
        "packets/outbox"
    )
    inbox: Annotated[str, Facts("Where `packet import` looks for packets; relative to the instance's directory.")] = (
        "packets/inbox"
    )
    max_bytes: Annotated[
        int,
        Facts("Most bytes of one packet; what is more goes into the next.", unit="bytes", least=8 * MIB, most=2**50),
    ] = 256 * MIB
    unsigned: Annotated[
        Literal["refuse", "accept"],
        Facts(
            "What an instance with a certificate does with packets that nobody has signed.",
            choices=("refuse", "accept"),
        ),
    ] = "refuse"
    keep_days: Annotated[
        int,
        Facts(
            "So long after its export a packet's content is kept for a replica that has not confirmed it; 0: until it "
            "does.",
            unit="days",
            least=0,
            most=36_500,
        ),
    ] = 0
    confirm_within_s: Annotated[
        float,
        Facts(
            "status warns when a replica that gets packets has confirmed nothing for so long; 0: it never does.",
            unit="s",
            least=0.0,
            most=3.2e9,
        ),
    ] = 7 * 86_400.0
    hook: Annotated[
        str,
        Facts(
            "A command that is run after each export, with the packet's file as its last argument; no shell; '' for "
            "none."
        ),
    ] = ""


class TlsConfig(Struct, frozen=True):
    """[tls]"""

    ca: Annotated[
        str, Facts("The CA's certificate, which those of all peers must bear; relative to the instance's directory.")
    ] = "tls/ca.pem"
    certificate: Annotated[str, Facts("This instance's certificate.")] = "tls/certificate.pem"
    key: Annotated[str, Facts("Its private key: mode 0600, ours or root's, no symbolic link.")] = "tls/key.pem"
    warn_days: Annotated[
        int, Facts("status and log warn when a certificate ends within this time.", unit="days", least=0, most=3650)
    ] = 30
    loopback: Annotated[bool, Facts("Whether connections on loopback speak TLS too (set it on both sides).")] = False


class LoopbackConfig(Struct, frozen=True):
    """[loopback]"""

    key_file: Annotated[
        str,
        Facts(
            "Key that both sides of a plain loopback connection prove, mode 0600; '' for one that instances of one "
            "user share by themselves."
        ),
    ] = ""


class DaemonConfig(Struct, frozen=True):
    """[daemon]"""

    start_timeout_s: Annotated[
        float,
        Facts("`start` gives up when the daemon does not serve within this time.", unit="s", least=0.1, most=3600),
    ] = 30.0
    stop_timeout_s: Annotated[
        float, Facts("`stop` drains for at most this long, then ends the daemon.", unit="s", least=0, most=3600)
    ] = 120.0


class StatusConfig(Struct, frozen=True):
    """[status]"""

    compared_warn_days: Annotated[
        int,
        Facts(
            "status of a secondary warns when its last compare with the primary is older, or when there was none for "
            "so long since it was made or seeded; 0: never.",
            unit="days",
            least=0,
            most=3650,
        ),
    ] = 15
    silent_warn_s: Annotated[
        float,
        Facts(
            "status of a supplier warns when another one has not told for so long that it has what all write.",
            unit="s",
            least=1,
            most=864000,
        ),
    ] = 3600.0
    fence_warn_s: Annotated[
        float,
        Facts(
            "status of a supplier warns when others have stood aside for longer, so that the schema may change.",
            unit="s",
            least=0,
            most=86400,
        ),
    ] = 300.0


class LogConfig(Struct, frozen=True):
    """[log]"""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Facts("Least severe event that is written.", choices=("debug", "info", "warning", "error")),
    ] = "info"
    row_values: Annotated[bool, Facts("Whether values of rows may stand in a log.")] = False


class RegionConfig(Struct, frozen=True):
    """[region]"""

    init: Annotated[
        str,
        Facts(
            "MODULE:FUNCTION, called with each connection to a region: registers the functions and collations of the "
            "application that its schema uses. The same on both sides. NAME=MODULE:FUNCTION, NAME=… is for single "
            "regions."
        ),
    ] = ""


class ApplicationConfig(Struct, frozen=True):
    """[application]"""

    busy_timeout_s: Annotated[
        float,
        Facts(
            "How long a writer waits for another before it gets 'database is locked'.", unit="s", least=0, most=86400
        ),
    ] = 5.0
