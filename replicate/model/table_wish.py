"""What a secondary wants of one table: the rows of a condition, some of the columns, or both; as one text.

    size > 3 · COLUMNS (id, name) · COLUMNS (id, "two words") WHERE size > 3

Guarantees: what `text` writes, `read_wish` reads; two texts are equal when the same was said. A condition alone is its
own text, as it was before there were column lists. No condition begins with COLUMNS and a parenthesis.
Leaves to others: what a condition says (filters/row_filter.py), and whether a table has such columns. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from replicate.errors import UsageError
from replicate.limits import COLUMNS_MAX

_PLAIN: Final = r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*"
"""Compiled where it is asked for, and kept by `re`: that takes 5 ms, and most processes read no wish."""
_NAME: Final = rf""" *(?:("(?:[^"]|"")+")|({_PLAIN})) *(,|\)|\Z)"""
_HEAD: Final = "COLUMNS ("
_UNSHOWN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_DO: Final = "Write the columns with commas between them, a name with other characters in double quotes"


class TableWish(Struct, frozen=True):
    """`columns`: as they were named; none means all of them. `condition`: "" for all rows."""

    columns: tuple[str, ...] = ()
    condition: str = ""

    @property
    def text(self) -> str:
        """As it is kept, and told to peers."""
        if not self.columns:
            return self.condition
        return f"{_HEAD}{', '.join(map(_written, self.columns))})" + f" WHERE {self.condition}" * bool(self.condition)

    @property
    def told(self) -> str:
        """For people, after the name of the table."""
        where = f"where {self.condition}" if self.condition else ""
        if not self.columns:
            return where
        return f"the columns {', '.join(map(_written, self.columns))}" + f" {where}" * bool(where)


def has_list(text: str) -> bool:
    """Whether that text lists columns."""
    return text.startswith(_HEAD)


def told_wish(text: str) -> str:
    """What `TableWish.told` says of that text, also where it cannot be read: a peer may have sent it."""
    try:
        return read_wish(text).told
    except UsageError:
        return text


def told_what(text: str) -> str:
    """The same where no table was named before it."""
    return told_wish(text) if has_list(text) else f"the rows {told_wish(text)}"


def read_wish(text: str) -> TableWish:
    """The wish that `TableWish.text` wrote. UsageError for a list that cannot be read; a condition is not looked at."""
    text = text.strip()
    if not has_list(text):
        return TableWish((), text)
    columns, end = _names(text, len(_HEAD), ")")
    rest = text[end:].strip()
    if rest and not rest.startswith("WHERE "):
        raise UsageError(f"WHERE was expected after the columns, not {rest[:12]!r}", where=repr(text[:80]), do=_DO)
    return TableWish(columns, rest.removeprefix("WHERE ").strip())


def named_columns(text: str) -> tuple[str, ...]:
    """The names in a list with commas. UsageError for none, one that cannot be read, and one that is there twice."""
    return _names(text, 0, "")[0]


def _names(text: str, at: int, closing: str) -> tuple[tuple[str, ...], int]:
    found: list[str] = []
    pattern = re.compile(_NAME)
    while True:
        token = pattern.match(text, at)
        if token is None or (token[3] != "," and token[3] != closing) or _UNSHOWN.search(token[0].strip()):
            raise UsageError(
                f"the columns cannot be read at {text[at:].strip()[:12]!r}", where=f"character {at + 1}", do=_DO
            )
        name = token[2] or token[1][1:-1].replace('""', '"')
        if any(fold(name) == fold(one) for one in found):
            raise UsageError(f"column {name} is named twice", where=f"character {at + 1}", do="Name it once")
        found.append(name)
        at = token.end()
        if token[3] != ",":
            break
    if len(found) > COLUMNS_MAX:
        raise UsageError(f"{len(found)} columns are named; {COLUMNS_MAX} are the most", do="Name fewer")
    return tuple(found), at


def told_wishes(wishes: Sequence[tuple[str, str]]) -> str:
    """Tables, each with the text of what is wanted of it, for the end of a sentence; "" for none."""
    end = "no others" if any(has_list(text) for _, text in wishes) else "no other rows"
    return (
        f"of table {', and of '.join(f'{table} {told_wish(text)}' for table, text in wishes)}, {end}" if wishes else ""
    )


def _written(name: str) -> str:
    return name if re.fullmatch(_PLAIN, name) else '"' + name.replace('"', '""') + '"'


def fold(name: str) -> str:
    """A name as SQLite compares it: without case in letters of ASCII, and in no other letter."""
    return "".join(one.lower() if one.isascii() else one for one in name)
