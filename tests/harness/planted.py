"""What defects of this project have made of secondaries: each effect as a plant, and a database that can have them.

Guarantees: a plant is one difference, in the tables that it names and nowhere else. Leaves to others: how it is found,
and what made it so; each defect has its own test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.harness.conflicting import spoil_database

SCHEMA = """
PRAGMA user_version = 3;
CREATE TABLE account (
    id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, amount REAL, note DEFAULT 'none', at DEFAULT 'then'
);
CREATE INDEX account_owner ON account (owner);
CREATE UNIQUE INDEX account_note ON account (note) WHERE note <> 'none';
CREATE VIEW rich AS SELECT * FROM account WHERE amount > 9;
CREATE TRIGGER account_noted AFTER UPDATE OF note ON account BEGIN
    INSERT INTO audited (what) VALUES (new.note);
END;
CREATE TABLE audited (what, times INTEGER DEFAULT 1);
CREATE TABLE value (a, b NUMERIC, c TEXT, d REAL);
CREATE TABLE word (word TEXT COLLATE NOCASE, part INTEGER, what, PRIMARY KEY (word, part)) WITHOUT ROWID;
CREATE TABLE coded (id INTEGER PRIMARY KEY, code TEXT UNIQUE ON CONFLICT REPLACE, v);
CREATE TABLE parent (id INTEGER PRIMARY KEY);
CREATE TABLE child (id INTEGER PRIMARY KEY, parent REFERENCES parent ON DELETE CASCADE);
CREATE TABLE altered (id INTEGER PRIMARY KEY, a, b);
CREATE TABLE made (id INTEGER PRIMARY KEY, a, virt AS (a || 'x'), b);
CREATE TABLE exact (id TEXT PRIMARY KEY, v ANY) STRICT;
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT);
CREATE TABLE emptied (id INTEGER PRIMARY KEY);
CREATE TABLE file (id INTEGER PRIMARY KEY, data BLOB);
CREATE TABLE raw (id INTEGER PRIMARY KEY, v TEXT);
CREATE VIRTUAL TABLE note USING fts5(body);
CREATE VIRTUAL TABLE place USING rtree(id, x0, x1);
"""
ROWS = """
CREATE TEMP VIEW n (value) AS
    WITH RECURSIVE m(value) AS (VALUES (1) UNION ALL SELECT value + 1 FROM m WHERE value < 12) SELECT value FROM m;
INSERT INTO account (owner, amount, note) SELECT 'owner ' || value, value / 3.0, 'note ' || value
    FROM n WHERE value <= 12;
INSERT INTO audited (what) SELECT 'what ' || value FROM n WHERE value <= 9;
INSERT INTO value (rowid, a) VALUES
    (1, 1), (2, 1.0), (3, '1'), (4, x'31'), (5, 0.0), (6, -0.0), (7, NULL), (8, 9e999), (9, 9007199254740993),
    (10, ''), (11, x''), (12, 'a' || char(0) || 'b'), (13, 0.1), (14, -9223372036854775808), (15, 'é'), (16, 'A'),
    (17, 'end '), (18, 9223372036854775807), (19, 1e300), (20, x'00ff'), (21, '5'), (30, 'last');
UPDATE value SET b = 7, c = '7', d = 7 WHERE rowid = 21;
INSERT INTO word SELECT char(96 + value) || 'word', value % 3, 'what ' || value FROM n WHERE value <= 9;
INSERT INTO coded SELECT value, 'code ' || value, value FROM n WHERE value <= 9;
INSERT INTO parent SELECT value FROM n WHERE value <= 5;
INSERT INTO child SELECT value, 1 + value % 4 FROM n WHERE value <= 9;
INSERT INTO altered SELECT value, 'a' || value, 'b' || value FROM n WHERE value <= 9;
ALTER TABLE altered ADD COLUMN later DEFAULT 'as it was';
INSERT INTO made (id, a, b) SELECT value, 'a' || value, 'b' || value FROM n WHERE value <= 9;
INSERT INTO exact SELECT 'key ' || value, value FROM n WHERE value <= 9;
INSERT INTO counted SELECT value FROM n WHERE value <= 7;
UPDATE altered SET a = 'old 7', b = 'new 7' WHERE id = 7;
INSERT INTO file SELECT value, CAST(printf('%09000d', value) || 'end ' || value AS BLOB) FROM n WHERE value <= 9;
INSERT INTO raw VALUES (1, 'ä'), (2, CAST(x'ff41' AS TEXT)), (3, 'z'), (9, 'last');
INSERT INTO note SELECT 'word' || value || ' body' FROM n WHERE value <= 9;
INSERT INTO place SELECT value, value, value + 0.5 FROM n WHERE value <= 9;
"""


class Plant(NamedTuple):
    """Statements that make the secondary differ in that table ("": its schema), by so many `rows` more, or a function
    that is given the path of its region. `others`: what differs with it."""

    table: str
    what: str | Callable[[Path], None]
    rows: int = 0
    others: tuple[str, ...] = ()

    def put(self, region: Path) -> None:
        """Into that database, past every guard."""
        if isinstance(self.what, str):
            spoil_database(region, self.what)
        else:
            self.what(region)


def flipped(text: bytes, by: int) -> Callable[[Path], None]:
    """A bit wherever the file has that text, as a disk changes it: nobody is told."""
    other = bytearray(text)
    other[by] ^= 1

    def flip(region: Path) -> None:
        data = region.read_bytes()
        assert text in data
        region.write_bytes(data.replace(text, other))

    return flip


PLANTS = {
    # Whole rows. A released region's rows went into another region that had such a table; rows of archives that
    # overlap were there twice; a net change of touched rows forgot some; a merger that died did a DELETE twice.
    "a row that did not come": Plant("account", "DELETE FROM account WHERE id = 5", -1),
    "the first row did not come": Plant("account", "DELETE FROM account WHERE id = 1", -1),
    "the last rows did not come": Plant("value", "DELETE FROM value WHERE rowid > 19 AND a <> 'later'", -3),
    "a row twice, by its hidden rowid": Plant("value", "INSERT INTO value SELECT * FROM value WHERE rowid = 13", 1),
    "a row of another region": Plant("account", "INSERT INTO account (id, owner, note) VALUES (-1, 'o', 'x')", 1),
    "a row that was rolled back to a savepoint": Plant("word", "INSERT INTO word VALUES ('b', 9, 'undone')", 1),
    # TRUNCATE of a DELETE that no hook heard; INSERT … SELECT that was not heard.
    "rows that a DELETE of a whole table took": Plant("emptied", "INSERT INTO emptied VALUES (1), (2), (3)", 3),
    "rows that INSERT … SELECT brought": Plant("counted", "DELETE FROM counted WHERE id < 8", -7),
    # A table's own ON CONFLICT REPLACE removed rows that nobody had compared.
    "a row removed by a unique index": Plant("coded", "UPDATE coded SET code = 'code 4' WHERE id = 5", -1),
    "a row that stands beside the one that replaced it": Plant("coded", "INSERT INTO coded VALUES (-3, 'old 3', 3)", 1),
    "children that a cascade took": Plant("child", "INSERT INTO child VALUES (77, 5)", 1),
    "a child that a cascade took too much": Plant("child", "DELETE FROM child WHERE id = 3", -1),
    "a row that has moved, and is there twice": Plant("exact", "INSERT INTO exact VALUES ('key 33', 3)", 1),
    # Values of an older time. Half of a transaction; one done twice after a recovery; an overwritten value came back.
    "a value of before": Plant("account", "UPDATE account SET amount = 0 WHERE id = 7"),
    "a sum that was added to twice": Plant("audited", "UPDATE audited SET times = times + 1 WHERE rowid = 4"),
    "half of a transaction": Plant(
        "parent", "DELETE FROM parent WHERE id = 5; INSERT INTO child VALUES (55, 4)", -1, ("child",)
    ),
    "values of two rows exchanged": Plant(
        "coded", "UPDATE coded SET v = CASE id WHEN 7 THEN 8 ELSE 7 END WHERE id IN (7, 8)"
    ),
    "a trigger that ran here, too": Plant("audited", "INSERT INTO audited (what) VALUES ('note 3')", 1),
    "a default that was worked out again": Plant("account", "UPDATE account SET at = 'now' WHERE id = 3"),
    # Short records that were copied whole: the hook gave NULL for the default of a column that was added.
    "NULL for the default of an added column": Plant("altered", "UPDATE altered SET later = NULL WHERE id = 4"),
    # An ALTER between two writes of a row: values stood one column beside their own.
    "values beside their columns": Plant("altered", "UPDATE altered SET a = b, b = a WHERE id = 5"),
    "a row beside a virtual column": Plant("made", "UPDATE made SET a = b, b = a WHERE id = 5"),
    "bytes written in place": Plant(
        "file", "UPDATE file SET data = CAST('1' || substr(CAST(data AS TEXT), 2) AS BLOB) WHERE id = 4"
    ),
    "a BLOB that was not written in place": Plant("file", "UPDATE file SET data = zeroblob(9005) WHERE id = 5"),
    # Keys. Names of different case, hidden rowids that VACUUM or a copy gave again.
    "another hidden rowid": Plant("value", "UPDATE value SET rowid = -30 WHERE rowid = 30"),
    "a key of another case": Plant("word", "UPDATE word SET word = 'EWORD' WHERE word = 'eword'"),
    "a key that was changed": Plant("exact", "UPDATE exact SET id = 'key 3x' WHERE id = 'key 3'"),
    "another rowid beneath a text key": Plant("exact", "UPDATE exact SET rowid = 50 WHERE id = 'key 9'"),
    # Storage classes and values that compare alike.
    "1 for 1.0": Plant("value", "UPDATE value SET a = 1 WHERE rowid = 2"),
    "'1' for 1": Plant("value", "UPDATE value SET a = '1' WHERE rowid = 1"),
    "x'31' for '1'": Plant("value", "UPDATE value SET a = x'31' WHERE rowid = 3"),
    "'1' for x'31'": Plant("value", "UPDATE value SET a = '1' WHERE rowid = 4"),
    "0.0 for -0.0": Plant("value", "UPDATE value SET a = 0.0 WHERE rowid = 6"),
    "-0.0 for 0.0": Plant("value", "UPDATE value SET a = -0.0 WHERE rowid = 5"),
    "NULL for an infinity": Plant("value", "UPDATE value SET a = NULL WHERE rowid = 8"),
    "the largest number for an infinity": Plant("value", "UPDATE value SET a = 1.7976931348623157e308 WHERE rowid = 8"),
    "an infinity for a large number": Plant("value", "UPDATE value SET a = 9e999 WHERE rowid = 19"),
    "0 for NULL": Plant("value", "UPDATE value SET a = 0 WHERE rowid = 7"),
    "'' for NULL": Plant("value", "UPDATE value SET a = '' WHERE rowid = 7"),
    "NULL for ''": Plant("value", "UPDATE value SET a = NULL WHERE rowid = 10"),
    "'' for x''": Plant("value", "UPDATE value SET a = '' WHERE rowid = 11"),
    "a number of 64 bits by way of a real": Plant("value", "UPDATE value SET a = 9007199254740992 WHERE rowid = 9"),
    "a real for a number of 64 bits": Plant("value", "UPDATE value SET a = 9.223372036854775807e18 WHERE rowid = 18"),
    "a number one too large": Plant("value", "UPDATE value SET a = -9223372036854775807 WHERE rowid = 14"),
    "the last place of a real": Plant("value", "UPDATE value SET a = 0.1 + 1e-17 WHERE rowid = 13"),
    "text cut at a NUL": Plant("value", "UPDATE value SET a = 'a' WHERE rowid = 12"),
    "another form of a letter": Plant("value", "UPDATE value SET a = 'e' || char(769) WHERE rowid = 15"),
    "another case": Plant("value", "UPDATE value SET a = 'a' WHERE rowid = 16"),
    "a blank at the end": Plant("value", "UPDATE value SET a = 'end' WHERE rowid = 17"),
    "a BLOB of another length": Plant("value", "UPDATE value SET a = x'00ff00' WHERE rowid = 20"),
    "a text in a NUMERIC column": Plant("value", "UPDATE value SET b = 'x7' WHERE rowid = 21"),
    "another text in a TEXT column": Plant("value", "UPDATE value SET c = 7.0 WHERE rowid = 21"),
    "a BLOB in a REAL column": Plant("value", "UPDATE value SET d = x'37' WHERE rowid = 21"),
    "1.0 for 1 in a STRICT table": Plant("exact", "UPDATE exact SET v = 1.0 WHERE id = 'key 1'"),
    "text that is not UTF-8, mended": Plant("raw", "UPDATE raw SET v = '\ufffdA' WHERE id = 2"),
    "text that is not UTF-8 as a BLOB": Plant("raw", "UPDATE raw SET v = x'ff41' WHERE id = 2"),
    "another text beside one that is not UTF-8": Plant("raw", "UPDATE raw SET v = 'a' WHERE id = 1"),
    # Counters of AUTOINCREMENT: raised by an ignored INSERT, moved before a PRAGMA that travels, forgotten.
    "a counter that is ahead": Plant("sqlite_sequence", "UPDATE sqlite_sequence SET seq = 90 WHERE name = 'counted'"),
    "a counter that is too low": Plant("sqlite_sequence", "UPDATE sqlite_sequence SET seq = 3 WHERE name = 'account'"),
    "a counter that was forgotten": Plant("sqlite_sequence", "DELETE FROM sqlite_sequence WHERE name = 'counted'", -1),
    "a counter of a table that has none": Plant(
        "sqlite_sequence", "INSERT INTO sqlite_sequence VALUES ('coded', 9)", 1
    ),
    "two counters of one table": Plant("sqlite_sequence", "INSERT INTO sqlite_sequence VALUES ('counted', 7)", 1),
    # Rows of virtual tables are those of their shadows.
    "a document of a full-text index": Plant("note_content", "UPDATE note_content SET c0 = 'other' WHERE id = 3"),
    "a posting list of a full-text index": Plant("note_data", "UPDATE note_data SET block = x'00' WHERE id = 10"),
    "the length of a document": Plant("note_docsize", "DELETE FROM note_docsize WHERE id = 4", -1),
    "a node of an R*Tree": Plant("place_node", "UPDATE place_node SET data = zeroblob(length(data))"),
    "where an R*Tree has a row": Plant("place_rowid", "DELETE FROM place_rowid WHERE rowid = 2", -1),
    # Definitions that were not applied, or as something else.
    "a view that was dropped": Plant("", "CREATE VIEW gone AS SELECT 1", 1),
    "a view that did not come": Plant("", "DROP VIEW rich", -1),
    "an index that did not come": Plant("", "DROP INDEX account_owner", -1),
    "an index that is not unique": Plant(
        "", "DROP INDEX account_note; CREATE INDEX account_note ON account (note) WHERE note <> 'none'"
    ),
    "an index of another collation": Plant(
        "", "DROP INDEX account_owner; CREATE INDEX account_owner ON account (owner COLLATE NOCASE)"
    ),
    "a trigger that did not come": Plant("", "DROP TRIGGER account_noted", -1),
    "a table that was dropped": Plant("", "CREATE TABLE gone (x)", 1),
    "a table that did not come": Plant("", "DROP TABLE audited", -1, ("audited",)),
    "a column that did not come": Plant("", "ALTER TABLE made DROP COLUMN b", 0, ("made",)),
    "a column of another name": Plant("", "ALTER TABLE altered RENAME later TO since", 0, ("altered",)),
    "PRAGMA user_version": Plant("", "PRAGMA user_version = 2"),
    "PRAGMA user_version that was not applied": Plant("", "PRAGMA user_version = 0", -1),
    "PRAGMA application_id": Plant("", "PRAGMA application_id = 7", 1),
    # A page that is not as it was written.
    "a bit of a text": Plant("altered", flipped(b"old 7new 7", 4)),
    "a bit of a key without rowid": Plant("word", flipped(b"gwordwhat 7", 0)),
    "a bit on an overflow page": Plant("file", flipped(b"0007end 7", 8)),
    "a bit of a view's text": Plant("", flipped(b"amount > 9", 9)),
}
