"""What may become of a PRAGMA on a replicated region: run as it is, captured as a statement, left undone, or refused
by name.

Guarantees: a pragma that takes an argument and is not in the table below is refused: SQLite ignores what it does not
know, we cannot. One that asks for what the database has already changes nothing, and is left undone. Without an
argument a pragma only reads (but for the few in `_ACTIONS`).
Leaves to others: connections. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from msgspec import Struct

from replicate.errors import NotSupportedError


class Verdict(Enum):
    """How a pragma is to be run."""

    READ = "outside of any lock"
    CAPTURE = "as a write, travelling as a statement"
    NOTHING = "not at all: it is advice, or so already"


class _Refusal(Struct, frozen=True):
    why: str
    do: str


# With an argument these change this connection only, or nothing that the other site could miss.
_SETTINGS: Final = frozenset(
    [
        "analysis_limit",
        "automatic_index",
        "busy_timeout",
        "cache_size",
        "cache_spill",
        "case_sensitive_like",
        "cell_size_check",
        "checkpoint_fullfsync",
        "count_changes",
        "defer_foreign_keys",
        "empty_result_callbacks",
        "foreign_keys",
        "full_column_names",
        "fullfsync",
        "hard_heap_limit",
        "ignore_check_constraints",
        "journal_size_limit",
        "max_page_count",
        "mmap_size",
        "query_only",
        "read_uncommitted",
        "recursive_triggers",
        "reverse_unordered_selects",
        "secure_delete",
        "short_column_names",
        "soft_heap_limit",
        "temp_store",
        "threads",
        "trusted_schema",
        "wal_autocheckpoint",
        "legacy_alter_table",
    ]
)
# The argument names an object, a mode of asking, or nothing is changed that counts.
_QUESTIONS: Final = frozenset(
    [
        "collation_list",
        "compile_options",
        "data_version",
        "database_list",
        "foreign_key_check",
        "foreign_key_list",
        "freelist_count",
        "function_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "module_list",
        "page_count",
        "page_size",  # of a file that has pages SQLite leaves it as it is; many programs say it with each connection
        "pragma_list",
        "quick_check",
        "stats",
        "table_info",
        "table_list",
        "table_xinfo",
        "wal_checkpoint",
        "encoding",
        "shrink_memory",
    ]
)
_CAPTURED: Final = frozenset(("user_version", "application_id"))
_ACTIONS: Final = {"optimize": Verdict.NOTHING}
_REFUSED: Final = {
    "journal_mode": _Refusal("a region stays in WAL mode", "Leave the journal mode alone"),
    "locking_mode": _Refusal("an exclusive lock would shut out the Update Process and recovery", "Leave it NORMAL"),
    "synchronous": _Refusal("OFF would let a power cut damage the region", "Set NORMAL or FULL"),
    "writable_schema": _Refusal("schema changes made behind SQLite's back cannot be captured", "Use ALTER TABLE"),
    "schema_version": _Refusal("it is what tells us that another client changed the schema", "Leave it alone"),
    "incremental_vacuum": _Refusal("it renumbers pages past the commit door", "Leave free pages to be used again"),
}
_HARMLESS_VALUES: Final = {
    "journal_mode": frozenset(("wal",)),
    "locking_mode": frozenset(("normal",)),
    "synchronous": frozenset(("1", "2", "3", "normal", "full", "extra", "on", "yes", "true")),
    "writable_schema": frozenset(("0", "off", "no", "false", "reset")),
}
_OF_THE_FILE: Final = {"auto_vacuum": {"none": "0", "full": "1", "incremental": "2"}}
"""Settings that are the database's own, and the words for their values."""


def _nothing() -> object:
    return None


def judge(name: str, argument: str | None, present: Callable[[], object] = _nothing) -> Verdict:
    """What to do with `PRAGMA name = argument` (argument None: the pragma has none), names in lower case. `present`
    is asked for the value that the database has, if that counts.

    Raises NotSupportedError naming the pragma; nothing has been run then.
    """
    if name in _ACTIONS:
        return _ACTIONS[name]
    if argument is not None and name in _OF_THE_FILE:
        if _OF_THE_FILE[name].get(argument.lower(), argument) == str(present()):
            return Verdict.NOTHING
        raise NotSupportedError(
            f"PRAGMA {name} = {argument} is refused on a region: it moves pages past the commit door",
            do=f"Leave it as it is; or change it between region release and region add: PRAGMA {name}, then VACUUM",
            pragma=name,
        )
    if name == "incremental_vacuum" or (argument is not None and name in _REFUSED):
        if argument is not None and argument.lower() in _HARMLESS_VALUES.get(name, ()):
            return Verdict.READ
        refusal = _REFUSED[name]
        raise NotSupportedError(
            f"PRAGMA {name}{'' if argument is None else f' = {argument}'} is refused on a region: {refusal.why}",
            do=refusal.do,
            pragma=name,
        )
    if argument is None or name in _SETTINGS or name in _QUESTIONS:
        return Verdict.READ
    if name in _CAPTURED:
        return Verdict.CAPTURE
    raise NotSupportedError(
        f"PRAGMA {name} = {argument} is not known to be harmless to replication", do="Leave it out", pragma=name
    )
