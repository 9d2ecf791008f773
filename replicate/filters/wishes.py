"""What is wanted of a table, bound to its definition: which rows go, and what of them.

Guarantees: condition and columns of one text are bound together, and one reading of them serves the stream, copies and
comparisons. A condition on a column that is left out is refused by name: there nobody could tell whether a row fits.
Leaves to others: conditions (row_filter.py), what is left out (model/column_list.py). Pure.
"""

from __future__ import annotations

from msgspec import Struct

from replicate.errors import UsageError
from replicate.filters.row_filter import BoundFilter, Image, RowFilter, parse
from replicate.model.column_list import ALL_SHOWN, BlankedColumns, TableShare, blanked
from replicate.model.table_wish import TableWish, fold, read_wish
from replicate.model.transaction import TableDefinition


class BoundWish(Struct, frozen=True):
    """Of one definition of its table."""

    rows: BoundFilter | None
    columns: BlankedColumns
    listed: tuple[str, ...] = ()

    def keeps(self, image: Image) -> bool:
        """Whether the row with that image is one of those that are wanted."""
        return self.rows is None or self.rows.keeps(image)

    @property
    def share(self) -> TableShare:
        """The same for SQL."""
        return TableShare("" if self.rows is None else self.rows.sql, self.columns.sql, self.listed)


class ParsedWish(Struct, frozen=True):
    """One that could be read."""

    wish: TableWish
    rows: RowFilter | None

    @property
    def text(self) -> str:
        """As it is kept, and told to peers."""
        return self.wish.text

    def bind(self, definition: TableDefinition) -> BoundWish:
        """UsageError, which names the column, where the table has it not, or not so."""
        columns = blanked(definition, self.wish.columns) if self.wish.columns else ALL_SHOWN
        if self.rows is None:
            return BoundWish(None, columns, self.wish.columns)
        bound = self.rows.bind(definition)
        for name in self.rows.columns if self.wish.columns else ():
            if fold(name) in columns.by_name:
                raise UsageError(
                    f"the condition names column {name} of table {definition.table}, which is not listed",
                    where=f"{definition.region}.{definition.table}",
                    do="List it, too; or name another one",
                )
        return BoundWish(bound, columns, self.wish.columns)


def parse_wish(text: str) -> ParsedWish:
    """What that text says. UsageError, which says where, when it cannot be read."""
    wish = read_wish(text)
    if wish.columns and not wish.condition:
        return ParsedWish(wish, None)
    rows = parse(wish.condition)
    return ParsedWish(TableWish(wish.columns, rows.text), rows)
