"""A writer of the campaign's suppliers: commits in its site's own table and in those that all write, and writes down
what it was told of, outside of what is killed.

Guarantees: a transaction is told of only after its commit has returned; each value that it writes into a table that all
write is written once in all of a campaign, but for names. It waits while its site takes no writes, and connects again
where a pool was made again; it ends by itself only where the outcome of a commit is unknown.
Leaves to others: who kills it, and what comes of it (supplier_judge.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

SCHEMA: Final = (
    "".join(
        f"CREATE TABLE t{name} (writer INTEGER, number INTEGER, v, counter, added, PRIMARY KEY (writer, number))"
        " WITHOUT ROWID;"
        for name in "abc"
    )
    + "CREATE TABLE shared (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, n, m);"
    + "CREATE TABLE named (id TEXT PRIMARY KEY, n, m);"
    + "CREATE TABLE counted (id TEXT PRIMARY KEY, n INTEGER NOT NULL);"
    + "INSERT INTO counted VALUES ('c1', 0), ('c2', 0), ('c3', 0);"
)
"""What a transaction adds to which counter stands in its row of its site's own table, too."""
SHARED: Final = ("named", "shared")
COUNTED: Final = "counted"
SUM: Final = "counted.n"
APART: Final = (
    "CREATE TABLE goods (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, n, m);"
    "CREATE TABLE parts (id TEXT PRIMARY KEY, n, m);"
)
"""Of a second region, stock, where there is one: as those two."""
SHARED_APART: Final = ("goods", "parts")
ORDINALS: Final = {"named": (1, 2), "shared": (2, 3), "goods": (2, 3), "parts": (1, 2)}
"""Of the columns whose values are written once: n and m."""

PROGRAM: Final = """
import json, os, random, sys, time
import replicate
from replicate.dbapi import Error
path, site, writer, file, seed, width, pause_s = sys.argv[1:8]
dice = random.Random(seed)
told = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
connection, number = None, 0
with open(os.path.join(path, "instance.json"), encoding="utf-8") as described:
    attached = [one["name"] for one in json.load(described)["regions"] if one["name"] == "stock"]
print("ready", flush=True)


def connected():
    made = replicate.connect(path, timeout=60)
    for region in attached:
        made.attach(region)
    return made


def statement(at):
    apart = [("goods", at), ("parts", f"k{at}")] if attached else []
    table, key = dice.choice([("shared", at), ("named", f"k{at}"), *apart])
    n, m = (f"{site}{writer}-{number}-{at}{column}" for column in "nm")
    name = f"name {dice.randrange(12)}"
    kind = dice.randrange(8)
    if kind < 2:
        return table, f"UPDATE {table} SET n = ? WHERE id = ?", (n, key), (n,)
    if kind < 4:
        return table, f"UPDATE {table} SET m = ? WHERE id = ?", (m, key), (m,)
    if kind == 4:
        return table, f"DELETE FROM {table} WHERE id = ?", (key,), ()
    if table in ("named", "parts"):
        if kind == 5:
            return table, f"UPDATE OR IGNORE {table} SET id = ? WHERE id = ?", (f"k{dice.randint(1, 8)}", key), ()
        return table, f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)", (key, n, m), (n, m)
    if kind == 5:
        return table, f"UPDATE OR IGNORE {table} SET name = ? WHERE id = ?", (name, key), ()
    if kind == 6 and at < 3:
        return table, f"INSERT INTO {table} (n) VALUES (?)", (n,), (n,)
    return table, f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?, ?)", (key, name, n, m), (n, m)


while True:
    number += 1
    values = []
    try:
        connection = connection or connected()
        counter, added = f"c{dice.randint(1, 3)}", dice.choice([0, dice.randint(-9, 9)])
        own = int(writer), number, "x" * int(width), counter, added
        connection.execute(f"INSERT INTO t{site} VALUES (?, ?, ?, ?, ?)", own)
        if added:
            connection.execute("UPDATE counted SET n = n + ? WHERE id = ?", (added, counter))
        for at in dice.sample(range(1, 9), dice.choice([0, 1, 1, 2])):
            table, text, arguments, written = statement(at)
            if connection.execute(text, arguments).rowcount == 1:
                values += [[table, value] for value in written]
        connection.commit()
    except Error as error:
        code = getattr(error, "code", "SQLITE")
        os.write(told, (json.dumps({"error": f"{code}: {error}"}) + "\\n").encode())
        if code == "OUTCOME_UNKNOWN":
            break
        try:
            connection and connection.close()
        except Error:
            pass
        connection, number = None, number - 1
        time.sleep(0.02)
        continue
    os.write(told, (json.dumps({"number": number, "values": values}) + "\\n").encode())
    if float(pause_s):
        time.sleep(float(pause_s))
"""


class Acknowledged(NamedTuple):
    """What a writer was told: its last number, the values of tables that all write, and the errors that it met."""

    last: int
    values: list[tuple[str, str]]
    errors: list[str]


def read_told(file: Path) -> Acknowledged:
    """A line that is being written is left out."""
    lines = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] if file.exists() else []
    done = [one for one in lines if "number" in one]
    values = [(table, value) for one in done for table, value in one["values"]]
    return Acknowledged(len(done), values, [one["error"] for one in lines if "error" in one])
