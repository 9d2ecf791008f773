"""Which transactions of a journal somebody asks for, by time and by table, and which of their changes.

Guarantees: the answer depends on the arguments alone, and a frame for which `may_touch` is False holds no change of a
table asked for. Refuses to know: where transactions are read, in which order, and how they are shown. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from replicate.errors import NotFoundError, UsageError
from replicate.model.transaction import Content, DefinitionChange, RowChange, SequenceChange, TableDefinition
from replicate.model.vector import U64_MAX

TableName = tuple[str, str, str]
"""Region, owner, table."""
_TABLES_NAMED_MAX = 12


@dataclass(frozen=True, slots=True)
class Selection:
    """Transactions with a csn from `first_csn` to `last_csn`, that touch one of `tables` (none: all)."""

    first_csn: int = 0
    last_csn: int = U64_MAX
    tables: frozenset[TableName] = frozenset()

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self == EVERYTHING

    def is_in_time(self, csn: int) -> bool:
        """Whether a transaction of that csn may be one."""
        return self.first_csn <= csn <= self.last_csn

    def marks(self, definitions: Mapping[int, TableDefinition]) -> tuple[bytes, ...]:
        """What stands in every frame that touches a table asked for, as far as `definitions` know it: its id."""
        # An id is always packed in five bytes, the last four of which are its own (transaction.TableDefinition).
        return tuple(key.to_bytes(4, "big") for key, one in definitions.items() if one.name in self.tables)

    def takes(self, change: Content, definitions: Mapping[int, TableDefinition]) -> bool:
        """Whether a change is of a table asked for; `definitions`: those in force, the change's own included."""
        if not self.tables:
            return True
        if isinstance(change, RowChange | SequenceChange):
            definition = definitions.get(change.table_id)
            return definition is not None and definition.name in self.tables
        return isinstance(change, DefinitionChange) and change.definition.name in self.tables


EVERYTHING = Selection()


def may_touch(frame: bytes, marks: Iterable[bytes]) -> bool:
    """Whether a frame that defines nothing may touch a table of those marks."""
    return any(mark in frame for mark in marks)


def tables_named(wanted: Collection[str], known: Collection[TableName]) -> frozenset[TableName]:
    """The tables that an operator means: TABLE, REGION.TABLE or REGION.OWNER.TABLE, small and capital letters alike.

    NotFoundError for one that is not known; UsageError for one that several regions have.
    """
    return frozenset(_named(one, known) for one in wanted)


def _named(wanted: str, known: Collection[TableName]) -> TableName:
    ways = [(".".join(parts).lower(), name) for name in known for parts in _ways(name)]
    found = sorted({name for text, name in ways if text == wanted.lower()})
    if not found:
        raise NotFoundError(f"the journal knows no table {wanted!r}", do=_there_are(known))
    if len(found) > 1:
        raise UsageError(f"{wanted!r} may be each of {len(found)} tables", do=f"Say {' or '.join(map(_short, found))}")
    return found[0]


def shortest_names(known: Collection[TableName]) -> list[str]:
    """How an operator may name each of them in the fewest words: TABLE, or REGION.TABLE where several regions have
    one."""
    regions = Counter(table.lower() for _, _, table in known)
    return [_short(name) if regions[name[2].lower()] > 1 else name[2] for name in known]


def _ways(name: TableName) -> tuple[tuple[str, ...], ...]:
    region, owner, table = name
    return ((table,), (region, table), (region, owner, table))


def _short(name: TableName) -> str:
    return f"{name[0]}.{name[2]}"


def _there_are(known: Collection[TableName]) -> str:
    names = sorted(map(_short, known))
    if not names:
        return "It knows none yet"
    more = f" and {len(names) - _TABLES_NAMED_MAX} more" if len(names) > _TABLES_NAMED_MAX else ""
    return f"There is {', '.join(names[:_TABLES_NAMED_MAX])}{more}"
