"""Every error that an operator can meet: one class, one stable code and one exit code each.

Guarantees: the text of an error names what happened, where, and what to do about it; `code` never changes once
landed (alerts and scripts match on it); `exit_code` is one of the table in `EXIT_CODES`.
Refuses to know: how an error is logged or printed, and anything about files, sockets or clocks.

Sorted by who must act: the operator's words (usage, configuration), damage, the machine (I/O), the peer, ourselves.
"""

from __future__ import annotations

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


class ReplicateError(Exception):
    """The root. `what` happened, `where` (a file, a table, a peer), what to `do`; `facts` go into the log as fields.

    After it is raised, the operation named by it has not taken place, unless its class says otherwise.
    """

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70

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


class ConfigurationError(ReplicateError):
    """A setting is unknown, out of range, or contradicts another."""

    code = "CONFIGURATION"
    exit_code = 78


class NotFoundError(ReplicateError):
    """An instance, region, peer or directory that was named does not exist."""

    code = "NOT_FOUND"
    exit_code = 69


class AlreadyExistsError(ReplicateError):
    """What should be made is there already."""

    code = "EXISTS"
    exit_code = 73


class AlreadyRunningError(AlreadyExistsError):
    """The daemon that should be started runs already."""

    code = "ALREADY_RUNNING"


class PrerequisiteMissingError(ReplicateError):
    """Something that we need from the machine is not installed."""

    code = "PREREQUISITE_MISSING"
    exit_code = 69


class OtherPackageError(ConfigurationError):
    """The unrelated PyPI distribution `replicate` is installed in the same environment."""

    code = "OTHER_PACKAGE"


class PermissionRefusedError(ReplicateError):
    """The operating system, or the instance's role, does not allow it."""

    code = "PERMISSION"
    exit_code = 77


class NotPrimaryError(PermissionRefusedError):
    """A write was tried on an instance that is not primary."""

    code = "NOT_PRIMARY"


class NotSupportedError(ReplicateError):
    """A statement or schema that we could not replicate exactly; refused before anything was committed."""

    code = "NOT_SUPPORTED"
    exit_code = 78


# Damage: bytes or numbers that do not verify.


class DamagedError(ReplicateError):
    """A file holds bytes that do not verify. Nothing was read past the damage."""

    code = "DAMAGED"
    exit_code = 65


class JournalDamagedError(DamagedError):
    """A journal frame or header that should verify does not."""

    code = "JOURNAL_DAMAGED"


class FrameDamaged(JournalDamagedError):
    """One frame's bytes do not verify: marker, length, check or content. `facts['offset']` says where it begins."""

    code = "FRAME_DAMAGED"


class JournalMissingError(DamagedError):
    """A segment of the chain, or the wanted transaction, is not there."""

    code = "JOURNAL_MISSING"


class FormatUnknownError(DamagedError):
    """A file or message of a kind or version that this release does not know."""

    code = "FORMAT_UNKNOWN"


class RegionDamagedError(DamagedError):
    """The region's bookkeeping contradicts itself or the journal."""

    code = "REGION_DAMAGED"


class RegionReplacedError(DamagedError):
    """The file at a region's path is not the region that was registered there."""

    code = "REGION_REPLACED"


class SchemaChangedError(DamagedError):
    """Another client changed the region's schema behind our back."""

    code = "SCHEMA_CHANGED"


class ConflictError(DamagedError):
    """A before-image does not match the secondary's row (or an insert finds a row, a delete none).

    `conflict` holds both images (replicate.database.rows.Conflict) where there are any; row values are nowhere else.
    """

    code = "CONFLICT"
    conflict: object = None


class GapError(DamagedError):
    """A sequence number is missing, repeated or out of order."""

    code = "GAP"


class DivergedError(DamagedError):
    """Two instances claim the same position with different content."""

    code = "DIVERGED"


# The machine.


class JournalIOError(ReplicateError):
    """A write or fsync failed. The first one is fatal to the process that met it: nothing is retried."""

    code = "IO"
    exit_code = 74


class DiskFullError(JournalIOError):
    """No space is left."""

    code = "DISK_FULL"


class ExhaustedError(JournalIOError):
    """This process, or the machine, has no descriptor or no memory left. Nothing was written, and nothing is wrong with
    the disk: others go on, and the same may be tried again."""

    code = "EXHAUSTED"
    exit_code = 75


class OutcomeUnknownError(JournalIOError):
    """The transaction is in the journal or in a region, and we can not say that it will stay there."""

    code = "OUTCOME_UNKNOWN"


class TryAgainError(ReplicateError):
    """A lock, a condition or a peer was not there within the time limit."""

    code = "TRY_AGAIN"
    exit_code = 75


class BusyError(TryAgainError):
    """Another writer held the lock for the whole time-out."""

    code = "BUSY"


class SnapshotStaleError(TryAgainError):
    """A transaction began as a reader, and another one wrote before its first write."""

    code = "BUSY_SNAPSHOT"


class PoolReplacedError(TryAgainError):
    """The shared memory that we had mapped is not the instance's pool any more: attach again."""

    code = "POOL_REPLACED"


# The peer.


class PeerError(ReplicateError):
    """The other side refused us, or sent what we refuse."""

    code = "PEER"
    exit_code = 76


class PeerUnreachableError(ReplicateError):
    """Nobody answers at the peer's address."""

    code = "UNREACHABLE"
    exit_code = 69


class PeerRefusedError(PeerError):
    """The peer refused the connection by name; `facts['reason']` carries its code."""

    code = "PEER_REFUSED"


class ProtocolViolationError(PeerError):
    """The peer sent bytes that are no message, or a message out of its turn."""

    code = "PROTOCOL"


class NotAuthenticatedError(PeerError):
    """The peer has not proven who it is, or is nobody whom we let in; `facts['reason']` says why
    (peer_authority.py). Nothing that it sent was taken as a message."""

    code = "NOT_AUTHENTICATED"


class WrongNetworkError(PeerError):
    """The peer belongs to another network."""

    code = "WRONG_NETWORK"


class WrongInstanceError(PeerError):
    """The peer is not the instance that it should be, or bears the name of another one."""

    code = "WRONG_INSTANCE"


class HardResyncNeededError(PeerError):
    """Soft resynchronization can not work; the secondary must be seeded anew."""

    code = "HARD_RESYNC_NEEDED"


class RollbackNeededError(PeerError):
    """The secondary holds transactions that the primary does not have."""

    code = "ROLLBACK_NEEDED"


# Ourselves.


class InternalError(ReplicateError):
    """A state that should be impossible. The process stops; the journal is the truth."""

    code = "INTERNAL"
    exit_code = 70


class ForkedError(InternalError):
    """A connection was used in a child process that inherited it by fork."""

    code = "FORKED"
