"""Every error that an operator can meet: one class, one stable code and one exit code each.

Guarantees: the text of an error names what happened, where, and what to do about it; `code` never changes
after its first release (alerts and scripts match on it); `exit_code` is one of the table in `EXIT_CODES`.
Leaves to others: how an error is logged or printed, and anything about files, sockets or clocks.

Sorted by who must act: the operator's words (usage, configuration), damage, the machine (I/O), the peer, ourselves.
"""

from __future__ import annotations

import re
import shlex
from typing import ClassVar, Final

EXIT_CODES: Final = {
    0: "well",
    1: "differs, or there is a finding",
    2: "usage",
    65: "damaged",
    69: "unreachable, or a prerequisite is missing",
    70: "our bug",
    73: "exists already",
    74: "input/output",
    75: "try again",
    76: "the peer refused",
    77: "permission",
    78: "configuration",
}

THIS_INSTANCE: Final = "-i INSTANCE"


class ReplicateError(Exception):
    """The root. `what` happened, `where` (a file, a table, a peer), what to `do`; `facts` go into the log as fields.

    After it is raised, the operation named by it has not taken place, unless its class says otherwise.
    """

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70
    remedy: ClassVar[str] = ""
    """What to do about errors of this code, in general, where `do` is not at hand: a row of the manual's table."""

    def __init__(self, what: str, *, where: str = "", do: str = "", **facts: object) -> None:
        self.what = what
        self.where = where
        self.do = do
        self.facts = facts
        text = f"{self.code}: {what}"
        if where:
            text += f" [{where}]"
        if do:
            text += f". {do}"
        super().__init__(text)


# The operator's words.


class UsageError(ReplicateError):
    """The command line makes no sense as it stands."""

    code = "USAGE"
    exit_code = 2
    remedy = "`replicate COMMAND --help` says what a command takes."


class ConfigurationError(ReplicateError):
    """A setting is unknown, out of range, or contradicts another."""

    code = "CONFIGURATION"
    exit_code = 78
    remedy = "Mend the setting that the error names with `config set`; `config check` tries all that a start needs."


class NotFoundError(ReplicateError):
    """An instance, region, peer or directory that was named does not exist."""

    code = "NOT_FOUND"
    exit_code = 69
    remedy = "Check the name after `-i` and `REPLICATE_HOME`; `region list` and `peer list` show what an instance has."


class AlreadyExistsError(ReplicateError):
    """What should be made is there already."""

    code = "EXISTS"
    exit_code = 73
    remedy = "Choose another name or place, or remove what is there if nobody needs it."


class AlreadyRunningError(AlreadyExistsError):
    """The daemon that should be started runs already."""

    code = "ALREADY_RUNNING"
    remedy = "Nothing, if it runs as it should; to start it again with other settings, `stop` it first."


class UndeliveredError(AlreadyExistsError):
    """What should go holds transactions that a peer has not got. `facts` say which. Nothing was removed."""

    code = "UNDELIVERED"
    remedy = (
        "Send it (`source start`), forget the peer (`peer remove`), or go on without (`--force` writes it to a file)."
    )


class PrerequisiteMissingError(ReplicateError):
    """Something that we need from the machine is not installed."""

    code = "PREREQUISITE_MISSING"
    exit_code = 69
    remedy = "Install what the error names, with the command that it shows."


class OtherPackageError(ConfigurationError):
    """The unrelated PyPI distribution `replicate` is installed in the same environment."""

    code = "OTHER_PACKAGE"
    remedy = "`pip uninstall replicate`, then install `dualsite` again."


class PermissionRefusedError(ReplicateError):
    """The operating system, or the instance's role, does not allow it."""

    code = "PERMISSION"
    exit_code = 77
    remedy = (
        "Run the command as the owner of the instance, or mend the modes with the `chmod` or `chown` that it shows."
    )


class NotPrimaryError(PermissionRefusedError):
    """A write was tried on an instance that is not primary."""

    code = "NOT_PRIMARY"
    remedy = "Write on the primary; where that is lost, `replicate help disaster`."


class NotWriterError(NotPrimaryError):
    """A write was tried on a supplier, in what another supplier writes."""

    code = "NOT_WRITER"
    remedy = "Write there; or have that one give it: `replicate partition give` (`replicate help suppliers`)."


class ClockAheadError(ReplicateError):
    """A transaction would bear a time that is too far ahead. Taken once, no later one could bear less."""

    code = "CLOCK_AHEAD"
    exit_code = 78
    remedy = "Set the clock right that is wrong, of this host or of the one that wrote it (`replicate help suppliers`)."


class NotSupportedError(ReplicateError):
    """A statement or schema that we could not replicate exactly; refused before anything was committed."""

    code = "NOT_SUPPORTED"
    exit_code = 78
    remedy = (
        "Write the statement or schema in another way; `replicate help application` has the table of what is refused."
    )


# Damage: bytes or numbers that do not verify.


class DamagedError(ReplicateError):
    """A file holds bytes that do not verify. Nothing was read past the damage."""

    code = "DAMAGED"
    exit_code = 65
    remedy = "Stop what uses the file, keep a copy of it, and bring it back from the other site or a backup."


class JournalDamagedError(DamagedError):
    """A journal frame or header that should verify does not."""

    code = "JOURNAL_DAMAGED"
    remedy = "`journal verify` names each bad place; `replicate help disaster` says how to go on."


class FrameDamaged(JournalDamagedError):
    """One frame's bytes do not verify: marker, length, check or content. `facts['offset']` says where it begins."""

    code = "FRAME_DAMAGED"
    remedy = "As JOURNAL_DAMAGED."


class FilterError(ReplicateError):
    """A filter could not be started, ended, was silent for too long, or said what is no transaction. Nothing of the
    transaction that it had was taken, and none was passed over."""

    code = "FILTER_FAILED"
    exit_code = 65
    remedy = "Mend the filter, which the error and its lines in the log name; the stream goes on by itself then."


class JournalMissingError(DamagedError):
    """A segment of the chain, or the wanted transaction, is not there."""

    code = "JOURNAL_MISSING"
    remedy = (
        "Bring the missing segment back from a copy or an archive; else fill the secondary again (`seed --restart`)."
    )


class FormatUnknownError(DamagedError):
    """A file or message of a kind or version that this release does not know."""

    code = "FORMAT_UNKNOWN"
    remedy = "Use the release that has written it, or a newer one; `replicate help upgrades`."


class RegionDamagedError(DamagedError):
    """The region's bookkeeping contradicts itself or the journal."""

    code = "REGION_DAMAGED"
    remedy = (
        "Fill a secondary again (`seed --restart`); on a primary, copy all files first, then `replicate help disaster`."
    )


class RegionReplacedError(DamagedError):
    """The file at a region's path is not the region that was registered there."""

    code = "REGION_REPLACED"
    remedy = "Put the file back that was registered, or say with `region move` where it is; `replicate help regions`."


class SchemaChangedError(DamagedError):
    """Another client changed the region's schema, past our guards."""

    code = "SCHEMA_CHANGED"
    remedy = "Do what the error says for that region; a secondary is filled again (`seed --restart`)."


class ConflictError(DamagedError):
    """A before-image does not match the secondary's row (or an insert finds a row, a delete none).

    `conflict` holds both images (region/sqlite/apply/rows.py: Conflict) where there are any; row values are nowhere
    else.
    """

    code = "CONFLICT"
    remedy = "Look at both images in the file that the error names; `replicate help disaster` says how to mend the row."
    conflict: object = None


class GapError(DamagedError):
    """A sequence number is missing, repeated or out of order."""

    code = "GAP"
    remedy = "Start the daemon again; if it comes back, fill the secondary again (`seed --restart`)."


class DivergedError(DamagedError):
    """Two instances claim the same position with different content."""

    code = "DIVERGED"
    remedy = "Find out which side is right (`journal show` on both); then fill the other one again (`seed --restart`)."


class TurnedBackError(DamagedError):
    """A supplier was sent what it should have written itself, and has not: its files are of an older state."""

    code = "TURNED_BACK"
    remedy = "Nothing at first: it takes no writes until the others have brought back what it had (`status` names who)."


# The machine.


class JournalIOError(ReplicateError):
    """A write or fsync failed. The first one is fatal to the process that met it: nothing is retried."""

    code = "IO"
    exit_code = 74
    remedy = "Look at the disk and the kernel's log; then restart all that use the instance."


class DiskFullError(JournalIOError):
    """No space is left."""

    code = "DISK_FULL"
    remedy = "Make room, outside of the instance first; `replicate help watching` for a journal that has grown."


class ExhaustedError(JournalIOError):
    """This process, or the machine, has no descriptor or no memory left. Nothing was written, and nothing is wrong with
    the disk: others go on, and the same may be tried again."""

    code = "EXHAUSTED"
    exit_code = 75
    remedy = "Try again; raise the limit of descriptors or memory if it comes back."


class OutcomeUnknownError(JournalIOError):
    """The transaction is in the journal or in a region, and we cannot say that it will stay there."""

    code = "OUTCOME_UNKNOWN"
    remedy = "Look whether the rows are there before you write them again."


class TryAgainError(ReplicateError):
    """A lock, a condition or a peer was not there within the time limit."""

    code = "TRY_AGAIN"
    exit_code = 75
    remedy = "Try again."


class CopyTooOldError(TryAgainError):
    """A copy of rows lacks something that the journal here does not have since."""

    code = "COPY_TOO_OLD"
    remedy = "Make a newer copy: the same command again; a file is to be made again first."


class PacketGapError(TryAgainError):
    """Packets are here that cannot be applied before others, which are missing."""

    code = "PACKET_GAP"
    remedy = (
        "Import the packets that are missing; if they are lost, have the sender make them again (`packet recover`)."
    )


class BusyError(TryAgainError):
    """Another writer held the lock for the whole time-out."""

    code = "BUSY"
    remedy = "Try again, with a longer time-out (`timeout`, `application.busy_timeout_s`) if writers wait long."


class FrozenError(BusyError):
    """An operator has frozen the instance, and it was not thawed within the writer's time-out."""

    code = "FROZEN"
    remedy = "`status` says since when and by whom; `instance freeze off` lets writers go on."


class SnapshotStaleError(TryAgainError):
    """A transaction began as a reader, and another one wrote before its first write."""

    code = "BUSY_SNAPSHOT"
    remedy = "Roll back and begin again; `BEGIN IMMEDIATE` before the first read avoids it."


class PoolReplacedError(TryAgainError):
    """The shared memory that we had mapped is not the instance's pool any more: attach again."""

    code = "POOL_REPLACED"
    remedy = "Start the process again, if it does not attach again by itself."


# The peer.


class PeerError(ReplicateError):
    """The other side refused us, or sent what we refuse."""

    code = "PEER"
    exit_code = 76
    remedy = "Look at the log of the other side, which says why."


class PeerUnreachableError(ReplicateError):
    """Nobody answers at the peer's address."""

    code = "UNREACHABLE"
    exit_code = 69
    remedy = "Start the daemon on the other side, and check its address and the firewall."


class PeerRefusedError(PeerError):
    """The peer refused the connection by name. `facts['reason']` carries its code."""

    code = "PEER_REFUSED"
    remedy = "The reason names what to mend: `replicate help two-hosts` has the list."


class ProtocolViolationError(PeerError):
    """The peer sent bytes that are no message, or a message out of its turn."""

    code = "PROTOCOL"
    remedy = "Install releases that fit (`replicate help upgrades`); if they do, something on the way changes bytes."


class NotAuthenticatedError(PeerError):
    """The peer has not proven who it is, or is nobody whom we let in. `facts['reason']` says why
    (peer_authority.py). Nothing that it sent was taken as a message."""

    code = "NOT_AUTHENTICATED"
    remedy = "Mend certificate, name or key as the reason says: `replicate help two-hosts`."


class WrongNetworkError(PeerError):
    """The peer belongs to another network."""

    code = "WRONG_NETWORK"
    remedy = "Connect instances of one network only: `instance show` says which one each is in."


class WrongInstanceError(PeerError):
    """The peer is not the instance that it should be, or bears the name of another one."""

    code = "WRONG_INSTANCE"
    remedy = "Check the address in `peer list`, and which instance listens there."


class HardResyncNeededError(PeerError):
    """Soft resynchronization cannot work; the secondary must be seeded again."""

    code = "HARD_RESYNC_NEEDED"
    remedy = "Fill the secondary again: `update stop`, `seed --restart`, `update start`."


class RollbackNeededError(PeerError):
    """The secondary holds transactions that the primary does not have."""

    code = "ROLLBACK_NEEDED"
    remedy = (
        "Look at what the secondary alone holds (`journal show`), then take it back (`rollback`, which keeps it in a "
        "file), or fill it again (`seed --restart`)."
    )


# Ourselves.


class InternalError(ReplicateError):
    """A state that should be impossible. The process stops; the journal is the truth."""

    code = "INTERNAL"
    exit_code = 70
    remedy = "Start it again, and report it with the traceback from the log."


class ForkedError(InternalError):
    """A connection was used in a child process that inherited it by fork."""

    code = "FORKED"
    remedy = "Open a new connection in the child process."


ERRORS: Final = {
    kind.code: kind
    for kind in tuple(globals().values())
    if isinstance(kind, type) and issubclass(kind, ReplicateError) and "code" in vars(kind)
}
"""By code, the class that has it."""


def pasteable(text: str, named: str, path: str = "") -> str:
    """`text` with the instance's name, quoted for a shell, wherever it stands for one; and for `path`, the instance's
    full path, if that is given: a daemon names it so. Nothing else of it is changed.

    So commands in errors and findings can be pasted as they stand. A text that knows no instance writes `replicate -i
    INSTANCE VERB` for the instance that it is about, and a name of its own (`-i PRIMARY`, a peer's name) for any other
    one. A process that knows how the instance was named puts that in: the command line for its errors (cli/main.py),
    `replicate status` for its findings, an `Instance` for texts that are about it. A daemon has none but the full path;
    the process that passes its error on says where that is.
    """
    if path:
        text = re.sub(rf"-i {re.escape(shlex.quote(path))}(?=\s|\Z)", THIS_INSTANCE, text)
    return text.replace(THIS_INSTANCE, f"-i {named}")
