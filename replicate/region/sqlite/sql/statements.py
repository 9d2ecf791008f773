"""What an SQL text is: one statement or several, reader or writer, which transaction control, which schema change.

Guarantees: one pass over tokens, never over a grammar. A text that no release of SQLite understands counts as a
reader, since SQLite refuses it; the commit hook of dbapi/transaction.py stands guard after it and lets no captured
change pass the door by. Results are immutable and cached by text. Leaves to others: any connection. Pure: nothing is
executed or looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from replicate.region.sqlite.sql.names import fold, quote_text

TEXT_CACHED_MAX: Final = 16_384
"""Longer texts are classified again each time: they are scripts or literals, seldom repeated."""

STATEMENTS_KEPT: Final = 512

LOG_COMMENT: Final = "replicate_log_comment"
"""The SQL function that writes a comment into the journal."""

_TOKEN: Final = r"""
    (?P<space>[\s\ufeff]+ | --[^\n]*(?:\n|\Z) | /\*.*?(?:\*/|\Z))
  | (?P<quoted>'(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z) | `(?:[^`]|``)*(?:`|\Z) | \[[^\]]*(?:\]|\Z))
  | (?P<param>\?\d* | [:@\#$][\w$:]+(?:\([^)\s]*\))?)
  | (?P<number>\d[\w.]*)
  | (?P<word>[\w$\x80-\U0010ffff]+)
  | (?P<semi>;)
  | (?P<other>.)
    """
"""Compiled when a text is read: that takes 2 ms, and most daemons read none."""
_SPACE: Final = re.compile(r"(?:[\s\ufeff]+|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))+", re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z]+")


class Verb(Enum):
    """What a statement does, as far as locks and capture are concerned."""

    EMPTY = "empty"
    READ = "read"
    WRITE = "write"
    DEFINE = "define"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    RELEASE = "release"
    ROLLBACK_TO = "rollback to"
    PRAGMA = "pragma"
    ATTACH = "attach"
    DETACH = "detach"
    VACUUM = "vacuum"


class Statement(Struct, frozen=True):
    """One classified statement. `text` is as given; `keyword` is its first word in capitals.

    `dml`: sqlite3 begins a transaction before it (INSERT, UPDATE, DELETE, REPLACE; not WITH). `rows`: it may return
    rows. `name`: the savepoint, the pragma, or the object of a schema change. `schema`: the qualifier before that
    name, in lower case ("" if none). `kind`: of a schema change, TABLE, INDEX, … or "VIRTUAL TABLE"; of a BEGIN, its
    mode. `temporary`: the schema change is of the connection's own temp schema. `argument`: of a pragma, None if it
    has none; of ATTACH and VACUUM INTO, the file as written; of CREATE VIRTUAL TABLE, the module in lower case.
    `several`: text goes on after this statement with another one. `words`: all names in a schema change, in lower
    case. `counts`: it may move a counter of AUTOINCREMENT. `qualifier`: where in the text `schema` stands (of ANALYZE
    and REINDEX, which may name a whole schema: where their one name stands).
    """

    text: str
    verb: Verb
    keyword: str = ""
    dml: bool = False
    rows: bool = False
    name: str = ""
    schema: str = ""
    kind: str = ""
    temporary: bool = False
    selects: bool = False
    argument: str | None = None
    several: bool = False
    words: frozenset[str] = frozenset()
    counts: bool = True
    qualifier: tuple[int, int] | None = None

    def as_main(self, schema: str) -> str:
        """The text with `main` in the place of the qualifier `schema`: as it is run where that region is alone."""
        start, end = self.qualifier or (0, 0)
        if fold(unquote(self.text[start:end])) != fold(schema):
            return self.text
        return f"{self.text[:start]}main{self.text[end:]}"


class _Token(Struct, frozen=True):
    kind: str
    text: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


def tokens(sql: str, start: int = 0) -> Iterator[_Token]:
    """The tokens of a text, without spaces and comments."""
    position, end, match = start, len(sql), re.compile(_TOKEN, re.VERBOSE | re.DOTALL).match
    while position < end:
        found = match(sql, position)
        assert found is not None
        assert found.lastgroup is not None
        if found.lastgroup != "space":
            yield _Token(found.lastgroup, found.group(), position, found.end())
        position = found.end()


def unquote(name: str) -> str:
    """An identifier as SQLite knows it: without its quotes."""
    if len(name) >= 2 and name[0] in "\"'`" and name[-1] == name[0]:
        return name[1:-1].replace(name[0] * 2, name[0])
    if len(name) >= 2 and name[0] == "[" and name[-1] == "]":
        return name[1:-1]
    return name


def split(script: str) -> Iterator[str]:
    """The statements of a script, each with its semicolon if it has one; what holds no token is left out."""
    start = 0
    while start < len(script):
        end = _statement_end(script, start)
        text = script[start:end]
        if any(token.kind != "semi" for token in _first(text)):
            yield text
        start = end


def _first(text: str) -> Iterator[_Token]:
    for token in tokens(text):
        yield token
        return


def _statement_end(sql: str, start: int) -> int:
    """Where the statement that begins at `start` ends, its semicolon included: the rule of sqlite3_complete()."""
    words: list[str] = []
    trigger = False
    before = before_that = ""
    for token in tokens(sql, start):
        upper = token.upper
        if len(words) < 5 and not trigger:
            words.append(upper)
            if words[:2] == ["EXPLAIN", "QUERY"] or words == ["PLAN"] or words == ["EXPLAIN"]:
                words.clear()
            trigger = words[:1] == ["CREATE"] and words[-1] == "TRIGGER" and len(words) <= 3
        if token.kind == "semi" and (not trigger or (before == "END" and before_that == ";")):
            return token.end
        before_that, before = before, ";" if token.kind == "semi" else upper
    return len(sql)


def classify(sql: str) -> Statement:
    """The first statement of a text, and whether another one follows it."""
    return _classify_cached(sql) if len(sql) <= TEXT_CACHED_MAX else _classify(sql)


def parameter_names(sql: str) -> tuple[str, ...]:
    """The named parameters (`:x`, `@x`, `$x`, `?1`) of a statement, without their mark, each once."""
    return tuple(dict.fromkeys(t.text[1:] for t in tokens(sql) if t.kind == "param" and t.text != "?"))


def parameter_count(sql: str) -> int:
    """How many parameters a statement has."""
    if not any(mark in sql for mark in "?:@$#"):
        return 0
    count, names = 0, set[str]()
    for token in tokens(sql):
        if token.kind == "param" and token.text[1:].isdigit() and token.text[0] == "?":
            count = max(count, int(token.text[1:]))
        elif token.kind == "param" and token.text not in names:
            count += 1
            names |= {token.text} - {"?"}
    return count


def _first_keyword(sql: str) -> tuple[str, int]:
    space = _SPACE.match(sql)
    start = space.end() if space else 0
    while sql[start : start + 1] == ";":  # SQLite skips empty statements in front
        space = _SPACE.match(sql, start + 1)
        start = space.end() if space else start + 1
    word = _WORD.match(sql, start)
    return (word.group().upper() if word else "", start)


def _has_several(sql: str, start: int) -> bool:
    at = sql.find(";", start)
    if at < 0 or not sql[at + 1 :].strip("; \t\r\n"):
        return False
    end = _statement_end(sql, start)
    return any(token.kind != "semi" for token in tokens(sql, end))


def _classify(sql: str) -> Statement:
    keyword, start = _first_keyword(sql)
    if start >= len(sql):
        return Statement(sql, Verb.EMPTY)
    several = _has_several(sql, start)
    if keyword in ("INSERT", "UPDATE", "DELETE", "REPLACE"):
        # A word inside a literal may make `rows` true wrongly; that costs a little time and nothing else.
        lower = sql.lower()
        return Statement(
            sql,
            Verb.WRITE,
            keyword,
            dml=sql[:start].find(";") < 0,
            rows="returning" in lower,
            several=several,
            counts=keyword in ("INSERT", "REPLACE") or "sqlite_sequence" in lower,
        )
    if keyword == "EXPLAIN":
        return Statement(sql, Verb.READ, keyword, rows=True, several=several)
    if keyword in ("SELECT", "VALUES"):
        verb = Verb.WRITE if _comments(sql, start) else Verb.READ
        return Statement(sql, verb, keyword, rows=True, several=several)
    if keyword == "WITH":
        verb = Verb.READ if _with_reads(sql, start) and not _comments(sql, start) else Verb.WRITE
        return Statement(sql, verb, keyword, rows=True, several=several)
    return _classify_rest(sql, keyword, start, several)


def _comments(sql: str, start: int) -> bool:
    """Whether a statement calls LOG_COMMENT, and so writes into the journal."""
    if LOG_COMMENT not in sql.lower():
        return False
    before = ""
    for token in tokens(sql, start):
        if token.text == "(" and before == LOG_COMMENT:
            return True
        before = token.text.lower() if token.kind == "word" else ""
    return False


def _with_reads(sql: str, start: int) -> bool:
    """Whether the statement after the common table expressions is a SELECT or VALUES."""
    depth = 0
    closed = False
    for token in tokens(sql, start):
        if token.text == "(":
            depth += 1
        elif token.text == ")":
            depth -= 1
            closed = depth == 0
        elif depth == 0 and closed:
            if token.text == "," or token.upper == "AS":  # a further expression, or `name(columns) AS`
                closed = False
            else:
                return token.upper in ("SELECT", "VALUES")
    return False


def _classify_rest(sql: str, keyword: str, start: int, several: bool) -> Statement:
    end = _statement_end(sql, start)
    found = [token for token in tokens(sql[:end], start) if token.kind != "semi"]
    upper = [token.upper for token in found]
    rest = [word for word in upper[1:] if word not in ("TRANSACTION", "SAVEPOINT")]
    last = fold(unquote(found[-1].text)) if found else ""
    if keyword == "BEGIN":
        return Statement(sql, Verb.BEGIN, keyword, kind=rest[0] if rest else "DEFERRED", several=several)
    if keyword in ("COMMIT", "END"):
        return Statement(sql, Verb.COMMIT, keyword, several=several)
    if keyword == "ROLLBACK":
        verb = Verb.ROLLBACK_TO if "TO" in upper[1:4] else Verb.ROLLBACK
        return Statement(sql, verb, keyword, name=last if verb is Verb.ROLLBACK_TO else "", several=several)
    if keyword in ("SAVEPOINT", "RELEASE"):
        return Statement(sql, Verb[keyword], keyword, name=last, several=several)
    if keyword == "PRAGMA":
        return _pragma(sql, found, several)
    if keyword in ("ATTACH", "DETACH", "VACUUM"):
        return _file_statement(sql, keyword, found, several)
    if keyword in ("CREATE", "ALTER", "DROP", "REINDEX", "ANALYZE"):
        return _schema_change(sql, keyword, found, several)
    return Statement(sql, Verb.READ, keyword, rows=True, several=several)  # SQLite will say that it is no SQL


def _pragma(sql: str, found: list[_Token], several: bool) -> Statement:
    texts = [token.text for token in found[1:]]
    schema, qualifier = "", None
    if len(texts) > 2 and texts[1] == ".":
        qualifier = (found[1].start, found[1].end)
        schema, texts = fold(unquote(texts[0])), texts[2:]
    name = fold(unquote(texts[0])) if texts else ""
    argument: str | None = None
    if len(texts) > 1 and texts[1] in ("=", "("):
        words = texts[2:-1] if texts[1] == "(" and texts[-1] == ")" else texts[2:]
        argument = unquote("".join(words))
    return Statement(
        sql,
        Verb.PRAGMA,
        "PRAGMA",
        rows=True,
        name=name,
        schema=schema,
        argument=argument,
        several=several,
        qualifier=qualifier,
    )


def _file_statement(sql: str, keyword: str, found: list[_Token], several: bool) -> Statement:
    upper = [token.upper for token in found]
    argument: str | None = None
    if keyword == "ATTACH":
        after = 2 if upper[1:2] == ["DATABASE"] else 1
        plain = len(found) > after + 1 and upper[after + 1] == "AS" and found[after].kind == "quoted"
        argument = unquote(found[after].text) if plain else None
    elif keyword == "VACUUM" and "INTO" in upper:
        argument = found[-1].text
    return Statement(sql, Verb[keyword], keyword, argument=argument, several=several)


def _schema_change(sql: str, keyword: str, found: list[_Token], several: bool) -> Statement:
    upper = [token.upper for token in found]
    words = frozenset(fold(unquote(token.text)) for token in found if token.kind in ("word", "quoted"))
    at = 1
    temporary = keyword == "CREATE" and upper[at : at + 1] in (["TEMP"], ["TEMPORARY"])
    at += temporary
    at += upper[at : at + 1] == ["UNIQUE"]
    kind = upper[at] if at < len(upper) else ""
    if kind == "VIRTUAL":
        kind, at = "VIRTUAL TABLE", at + 1
    if keyword in ("REINDEX", "ANALYZE"):
        kind, at = keyword, 0
    at += 1
    while at < len(upper) and upper[at] in ("IF", "NOT", "EXISTS"):
        at += 1
    schema, qualifier = "", None
    if at + 2 < len(found) and found[at + 1].text == ".":
        qualifier = (found[at].start, found[at].end)
        schema, at = fold(unquote(found[at].text)), at + 2
    elif keyword in ("REINDEX", "ANALYZE") and at < len(found):
        qualifier = (found[at].start, found[at].end)
    name = unquote(found[at].text) if at < len(found) else ""
    after = upper[at + 1 : at + 2]
    selects = keyword == "CREATE" and kind == "TABLE" and after == ["AS"]
    module = kind == "VIRTUAL TABLE" and after == ["USING"] and at + 2 < len(found)
    return Statement(
        sql,
        Verb.DEFINE,
        keyword,
        name=name,
        schema=schema,
        kind=kind,
        temporary=temporary or schema == "temp",
        selects=selects,
        argument=fold(unquote(found[at + 2].text)) if module else None,
        several=several,
        words=words,
        qualifier=qualifier,
    )


def qualifies(sql: str, schema: str, start: int) -> bool:
    """Whether `schema.` (in lower case, without the point) stands before a name somewhere after `start`."""
    before = ""
    for token in tokens(sql, start):
        if token.text == "." and before == schema:
            return True
        before = fold(unquote(token.text)) if token.kind in ("word", "quoted") else ""
    return False


def file_query(sql: str) -> str | None:
    """A SELECT that gives what ATTACH (file, name) or DETACH (name) is told, with the same bindings; None if the text
    is neither.

    A bare name is a text there, as a quoted one is. Several rows of values stand for a KEY, which is given too.
    """
    found = [token for token in tokens(sql) if token.kind != "semi"]
    if not found or found[0].upper not in ("ATTACH", "DETACH"):
        return None
    at = 2 if len(found) > 2 and found[1].upper == "DATABASE" and found[2].upper != "AS" else 1
    pieces: list[list[_Token]] = [[]]
    depth = 0
    for token in found[at:]:
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0 and token.upper in ("AS", "KEY") and pieces[-1] and len(pieces) < 3:
            pieces.append([])
        else:
            pieces[-1].append(token)
    if not all(pieces) or len(pieces) < (2 if found[0].upper == "ATTACH" else 1):
        return None
    return "SELECT " + ", ".join(_expression(sql, piece) for piece in pieces)


def _expression(sql: str, piece: list[_Token]) -> str:
    if len(piece) == 1 and piece[0].kind in ("word", "quoted"):
        return quote_text(unquote(piece[0].text))
    return sql[piece[0].start : piece[-1].end]


_classify_cached = lru_cache(maxsize=512)(_classify)
_known: dict[str, Statement] = {}


recall: Final = _known.get
"""The statement of a text that was kept, or None: the quick way for what is run again and again."""


def keep(statement: Statement) -> None:
    """Keep a statement for `recall`. The caller has seen that its text is good: no null character, one statement."""
    if len(statement.text) <= TEXT_CACHED_MAX:
        if len(_known) >= STATEMENTS_KEPT:
            _known.clear()
        _known[statement.text] = statement
