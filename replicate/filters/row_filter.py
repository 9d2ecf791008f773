"""A condition on the rows of one table, as it stands in the WHERE of SQL, and what it says of an image.

    column = literal, and <> < <= > >= · [NOT] IN (…) · [NOT] BETWEEN … AND … · IS [NOT] NULL · AND, OR, NOT, (…)

Guarantees: bound to a table's definition, the predicate says of each image exactly what SQLite says of that row by
the condition's SQL: storage classes, affinities, BINARY, NOCASE and RTRIM, and what NULL comes to. What it could not
say so is refused by name, with the place where it stands: a column that is not there, a collation of an application's
own, a REAL that is not exact.
Leaves to others: whose condition it is, and changes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
from msgspec import Struct

from replicate.errors import UsageError
from replicate.model.column_list import affinity_of
from replicate.model.table_wish import fold
from replicate.model.transaction import Column, TableDefinition

CHARACTERS_MAX: Final = 1_000
DEPTH_MAX: Final = 32
DIGITS_MAX: Final = 15
"""A REAL of more digits, or beyond 1e22, is not read alike by everybody."""
GRAMMAR: Final = (
    "Write column = literal (or <>, <, <=, >, >=, IN, NOT IN, BETWEEN, IS NULL, IS NOT NULL), joined by AND, OR, NOT "
    "and parentheses: replicate help partitions"
)

Image: TypeAlias = Sequence[Any]
Truth: TypeAlias = bool | None
"""None: neither, for a NULL is in it."""
Judge: TypeAlias = Callable[[Image], Truth]

_NUMBER, _TEXT, _BLOB = 1, 2, 3
"""The order of storage classes, after NULL."""
_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<real>[+-]?\s*(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?\s*\d+[eE][+-]?\d+)
    | (?P<int>[+-]?\s*\d+)
    | (?P<blob>[xX]'[^']*')
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+")
    | (?P<word>[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*)
    | (?P<sign><=|>=|<>|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE | re.ASCII,
)
_WORDS: Final = frozenset(("AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL"))
_NUMERAL: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?)[ \t\n\v\f\r]*", re.ASCII)
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {"=": eq, "<>": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_UNSHOWN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_COLLATIONS: Final = ("BINARY", "NOCASE", "RTRIM")


class _Literal(NamedTuple):
    """As it was written, at which character, and its value."""

    sql: str
    at: int
    value: int | float | str | bytes


class _Test(Struct, frozen=True):
    """`op`: as in SQL, with the literals in `values`."""

    column: str
    at: int
    op: str
    values: tuple[_Literal, ...] = ()


class _Joined(Struct, frozen=True):
    """`word`: AND, OR, or NOT of one."""

    word: str
    parts: tuple[_Tree, ...]


_Tree: TypeAlias = _Test | _Joined


class BoundFilter(Struct, frozen=True):
    """Of one definition of its table. `sql`: the condition, for a WHERE over that table."""

    judge: Judge
    sql: str

    def keeps(self, image: Image) -> bool:
        """Whether the row with that image is one of them."""
        return self.judge(image) is True


class RowFilter(Struct, frozen=True):
    """A condition that could be read. `text`: as it was written."""

    text: str
    tree: _Tree

    def bind(self, definition: TableDefinition) -> BoundFilter:
        """The condition on rows of that table. UsageError, which names the column, where it has no such column, or one
        of a collation that only an application knows, or where a literal can never be read alike."""
        return BoundFilter(_judge(self.tree, definition), _sql(self.tree))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it names, in order, as they are written there."""
        return tuple(dict.fromkeys(_named(self.tree)))


def parse(text: str) -> RowFilter:
    """The condition in that text. UsageError, which says where, when it is none."""
    text = text.strip()
    if len(text) > CHARACTERS_MAX:
        raise UsageError(f"the condition has {len(text)} characters; {CHARACTERS_MAX} are the most", do="Shorten it")
    if _UNSHOWN.search(text):
        raise UsageError("the condition holds a character that cannot be shown", do="Write it in one line")
    reader = _Reader(text)
    tree = reader.either(0)
    reader.end()
    return RowFilter(text, tree)


# Reading.


class _Lexeme(NamedTuple):
    kind: str
    text: str
    at: int


class _Reader:
    """Reads one text, from its first token to its last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0

    def either(self, depth: int) -> _Tree:
        self._refuse_deep(depth)
        return self._joined("OR", self._both, depth)

    def _both(self, depth: int) -> _Tree:
        return self._joined("AND", self._one, depth)

    def _joined(self, word: str, part: Callable[[int], _Tree], depth: int) -> _Tree:
        parts = [part(depth)]
        while self._takes(word):
            parts.append(part(depth))
        return parts[0] if len(parts) == 1 else _Joined(word, tuple(parts))

    def _one(self, depth: int) -> _Tree:
        if self._takes("NOT"):
            self._refuse_deep(depth)
            return _Joined("NOT", (self._one(depth + 1),))
        if self._takes("("):
            inner = self.either(depth + 1)
            self._must(")")
            return inner
        return self._test()

    def _test(self) -> _Test:
        token = self._token
        if token.kind not in ("word", "quoted"):
            raise self._bad("a column")
        self._next += 1
        name = token.text if token.kind == "word" else token.text[1:-1].replace('""', '"')
        if self._takes("IS"):
            negated = " NOT" * self._takes("NOT")
            self._must("NULL")
            return _Test(name, token.at, f"IS{negated} NULL")
        negated = "NOT " * self._takes("NOT")
        if self._takes("IN"):
            self._must("(")
            values = [self._literal()]
            while self._takes(","):
                values.append(self._literal())
            self._must(")")
            return _Test(name, token.at, f"{negated}IN", tuple(values))
        if self._takes("BETWEEN"):
            low = self._literal()
            self._must("AND")
            return _Test(name, token.at, f"{negated}BETWEEN", (low, self._literal()))
        sign = self._token
        if negated or sign.text not in _ORDERS:
            raise self._bad("IN or BETWEEN" if negated else "=, <>, <, <=, >, >=, IN, BETWEEN, IS or NOT")
        self._next += 1
        return _Test(name, token.at, sign.text, (self._literal(),))

    def _literal(self) -> _Literal:
        token = self._token
        made: int | float | str | bytes
        if token.kind == "int":
            made = int("".join(token.text.split()))
            if not -(2**63) <= made < 2**63:
                raise self._bad("a number of 64 bits")
        elif token.kind == "real":
            made = _real("".join(token.text.split()), token.at)
        elif token.kind == "text":
            made = token.text[1:-1].replace("''", "'")
        elif token.kind == "blob":
            digits = token.text[2:-1]
            if len(digits) % 2 or not re.fullmatch("[0-9A-Fa-f]*", digits):
                raise self._bad("an even number of hexadecimal digits")
            made = bytes.fromhex(digits)
        elif token.text.upper() == "NULL":
            raise UsageError(
                "nothing is equal to NULL, nor unequal",
                where=f"character {token.at + 1} of {self._text!r}",
                do="Write IS NULL or IS NOT NULL",
            )
        else:
            raise self._bad("a literal: a number, 'text' or X'bytes'")
        self._next += 1
        return _Literal(token.text, token.at, made)

    def end(self) -> None:
        if self._token.kind != "end":
            raise self._bad("AND, OR or the end")

    @property
    def _token(self) -> _Lexeme:
        return self._tokens[self._next]

    def _takes(self, what: str) -> bool:
        token = self._token
        is_it = token.kind in ("keyword", "sign") and token.text.upper() == what
        self._next += is_it
        return is_it

    def _must(self, what: str) -> None:
        if not self._takes(what):
            raise self._bad(what)

    def _refuse_deep(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise UsageError(
                f"the condition has more than {DEPTH_MAX} parentheses and NOTs within each other",
                where=f"character {self._token.at + 1} of {self._text!r}",
                do="Write it flatter",
            )

    def _bad(self, wanted: str) -> UsageError:
        token = self._token
        found = repr(token.text) if token.kind != "end" else "its end"
        return UsageError(
            f"the condition cannot be read: {wanted} was expected, not {found}",
            where=f"character {token.at + 1} of {self._text!r}",
            do=GRAMMAR,
        )


def _tokens(text: str) -> Iterable[_Lexeme]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            raise UsageError(
                f"the condition cannot be read at {text[start : start + 12]!r}",
                where=f"character {start + 1} of {text!r}",
                do=GRAMMAR,
            )
        kind, token = found.lastgroup, found[found.lastgroup]
        if kind == "word" and token.upper() in _WORDS:
            kind = "keyword"
        yield _Lexeme(kind, token, found.start(found.lastgroup))
        at = found.end()
    yield _Lexeme("end", "", len(text))


def _real(text: str, at: int) -> float:
    """The number in that text. UsageError for one that is not exact."""
    mantissa, _, exponent = text.lstrip("+-").lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) - len(fraction)
    if len(digits) > DIGITS_MAX or len(exponent) > 4 or abs(power) > 22 or abs(power + len(digits)) > 22:
        raise UsageError(
            f"{text} has more than {DIGITS_MAX} digits, or is beyond 1e22",
            where=f"character {at + 1}",
            do="Write a number that every release reads alike",
        )
    return float(text)


# Writing.


def _named(tree: _Tree) -> Iterator[str]:
    if isinstance(tree, _Test):
        yield tree.column
    else:
        for one in tree.parts:
            yield from _named(one)


def _sql(tree: _Tree) -> str:
    if isinstance(tree, _Joined):
        if tree.word == "NOT":
            return f"NOT ({_sql(tree.parts[0])})"
        return f" {tree.word} ".join(f"({_sql(one)})" for one in tree.parts)
    column, values = '"' + tree.column.replace('"', '""') + '"', [one.sql for one in tree.values]
    if tree.op.endswith("IN"):
        return f"{column} {tree.op} ({', '.join(values)})"
    return " ".join((column, tree.op, " AND ".join(values))).rstrip()


# Judging.


def _judge(tree: _Tree, definition: TableDefinition) -> Judge:
    if isinstance(tree, _Test):
        return _judge_test(tree, definition)
    parts = [_judge(one, definition) for one in tree.parts]
    if tree.word == "NOT":
        (inner,) = parts

        def opposite(image: Image) -> Truth:
            found = inner(image)
            return None if found is None else not found

        return opposite
    settles = tree.word == "OR"

    def joined(image: Image) -> Truth:
        last: Truth = not settles
        for one in parts:
            found = one(image)
            if found is settles:
                return settles
            if found is None:
                last = None
        return last

    return joined


def _judge_test(test: _Test, definition: TableDefinition) -> Judge:
    place, column = _column(test, definition)
    ordinal = place + definition.rowid
    if not test.values:
        is_null = test.op == "IS NULL"
        return lambda image: (image[ordinal] is None) is is_null
    affinity = affinity_of(column, strict=definition.strict)
    key_of = _key_of(column, definition)
    keys = [key_of(_converted(one, affinity, test)) for one in test.values]
    negated, op = test.op.startswith("NOT "), test.op.removeprefix("NOT ")
    if op == "IN":
        decides: Callable[[tuple[int, Any]], bool] = lambda key: any(key == one for one in keys)  # noqa: E731
    elif op == "BETWEEN":
        low, high = keys
        decides = lambda key: low <= key <= high  # noqa: E731
    else:
        order, (literal,) = _ORDERS[op], keys
        decides = lambda key: order(key, literal)  # noqa: E731

    def judge(image: Image) -> Truth:
        value = image[ordinal]
        return None if value is None else decides(key_of(value)) is not negated

    return judge


def _column(test: _Test, definition: TableDefinition) -> tuple[int, Column]:
    for place, column in enumerate(definition.columns):
        if fold(column.name) == fold(test.column):
            return place, column
    raise UsageError(
        f"table {definition.table} has no column {test.column}, or computes it",
        where=f"{definition.region}.{definition.table}",
        do=f"Name one of these: {', '.join(column.name for column in definition.columns)}",
    )


def _key_of(column: Column, definition: TableDefinition) -> Callable[[Any], tuple[int, Any]]:
    """What values of that column are ordered by, as SQLite orders them."""
    if column.collation not in _COLLATIONS:
        raise UsageError(
            f"column {column.name} of table {definition.table} is ordered by {column.collation}, which only an "
            "application knows",
            where=f"{definition.region}.{definition.table}",
            do=f"Name a column whose collation is one of {', '.join(_COLLATIONS)}",
        )
    text_key: Callable[[bytes], Any] = bytes
    if column.collation == "NOCASE":
        text_key = _nocase
    elif column.collation == "RTRIM":
        text_key = lambda text: text.rstrip(b" ")  # noqa: E731

    def key_of(value: Any) -> tuple[int, Any]:
        if type(value) is str:
            return _TEXT, text_key(value.encode())
        if type(value) is bytes:
            return _BLOB, value
        if isinstance(value, msgpack.ExtType):  # text that is not UTF-8
            return _TEXT, text_key(value.data)
        return _NUMBER, value

    return key_of


def _nocase(text: bytes) -> tuple[bytes, int]:
    """SQLite's NOCASE looks at a text up to a NUL in it, and at its length."""
    return text.lower().partition(b"\0")[0], len(text)


def _converted(literal: _Literal, affinity: str, test: _Test) -> int | float | str | bytes:
    """What the comparison with a column of that affinity makes of the literal."""
    value = literal.value
    if affinity == "TEXT" and type(value) is int:
        return str(value)
    if affinity == "TEXT" and type(value) is float:
        raise UsageError(
            f"column {test.column} is text, and {literal.sql} a number with a fraction",
            where=f"character {literal.at + 1}",
            do=f"Write it as the text that it is compared with: '{literal.sql}'",
        )
    if affinity in ("INTEGER", "REAL", "NUMERIC") and type(value) is str and (found := _NUMERAL.fullmatch(value)):
        text, *parts = found.groups()
        if not any(parts) and -(2**63) <= int(text) < 2**63:
            return int(text)
        return _real(text, literal.at)
    return value
