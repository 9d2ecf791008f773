"""The peer PostgreSQL where two write: two clusters of our own, each a node of pglogical, which has what the other has.

PostgreSQL itself can keep two such nodes from sending each other's changes back since release 16 alone; Debian 12 has
15, and for that the extension pglogical (postgresql-15-pglogical), which knows conflicts, too: of two inserts of a key
the last one wins, by the time of the commit. SETTINGS are what both say of it, above peer_postgresql.py's.

Guarantees: as peer_postgresql.py's. Each server writes conflicts to its log, as ours keep what was lost in a table.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.benchmarks import peer_postgresql
from tests.benchmarks.peer_postgresql import Cluster, clusters

LIBRARY: Final = peer_postgresql.BIN.parent / "lib" / "pglogical.so"
SETTINGS: Final = peer_postgresql.SETTINGS | {
    "shared_preload_libraries": "pglogical",
    "track_commit_timestamp": "on",
    "pglogical.conflict_resolution": "last_update_wins",
}
TIMEOUT_S: Final = 900


def catch_up(case: str, count: int, value_bytes: int) -> float:
    """`one writes`: `count` transactions of one row wait for the other node. `both write`, `one table`, `same rows`: as
    many of each, into two tables, into other rows of one, into the same rows. Then both subscriptions are enabled: rows
    a second, of both, until each has what the other wrote."""
    with clusters(SETTINGS) as nodes:
        for number, node in enumerate(nodes):
            _make(node, number)
        for node, other in zip(nodes, reversed(nodes), strict=True):
            node.sql(
                "SELECT pglogical.create_subscription(subscription_name := 'them', "
                f"provider_dsn := '{_dsn(other)}', synchronize_structure := false, synchronize_data := false, "
                "forward_origins := '{}')"
            )
        for node in nodes:
            _wait(node, "SELECT status = 'replicating' FROM pglogical.show_subscription_status()")
            node.sql("SELECT pglogical.alter_subscription_disable('them', immediate := true)")
        writes = [(nodes[0], "item", 1)]
        if case != "one writes":
            second = {"both write": ("other", 1), "one table": ("item", count + 1), "same rows": ("item", 1)}
            writes.append((nodes[1], *second[case]))
        for node, table, first in writes:
            node.sql(
                "CREATE PROCEDURE fill() LANGUAGE plpgsql AS $$ BEGIN "
                f"FOR n IN {first}..{first + count - 1} LOOP "
                f"INSERT INTO {table} VALUES (n, rpad(lpad(n::text, 12, '0') || '.', {value_bytes}, 'v')); COMMIT; "
                "END LOOP; END $$"
            )
            node.sql("CALL fill()")
        lasts = [node.sql("SELECT pg_current_wal_insert_lsn()") for node, _, _ in writes]
        begun = time.perf_counter()
        with ThreadPoolExecutor(2) as beside:
            list(beside.map(lambda node: node.sql("SELECT pglogical.alter_subscription_enable('them', true)"), nodes))
        for (node, _, _), last in zip(writes, lasts, strict=True):
            _wait(node, f"SELECT coalesce(bool_or(replay_lsn >= '{last}'), false) FROM pg_stat_replication")
        seconds = time.perf_counter() - begun
        _check(nodes, count, case)
    return len(writes) * count / seconds


def _make(node: Cluster, number: int) -> None:
    node.sql(
        "CREATE EXTENSION pglogical",
        f"SELECT pglogical.create_node(node_name := 'node{number}', dsn := '{_dsn(node)}')",
        "CREATE TABLE item (id integer PRIMARY KEY, value text NOT NULL)",
        "CREATE TABLE other (id integer PRIMARY KEY, value text NOT NULL)",
        "SELECT pglogical.replication_set_add_all_tables('default', '{public}')",
    )


def _dsn(node: Cluster) -> str:
    return f"host=127.0.0.1 port={node.port} user=postgres dbname=postgres"


def _wait(node: Cluster, question: str) -> None:
    begun = time.perf_counter()
    while node.sql(question) != "t":
        if time.perf_counter() > begun + TIMEOUT_S:
            raise RuntimeError(f"PostgreSQL does not answer so within {TIMEOUT_S} s: {question}")
        time.sleep(0.05)


def _check(nodes: tuple[Cluster, Cluster], count: int, case: str) -> None:
    """RuntimeError where the two do not have the same rows, all of them."""
    question = (
        "SELECT count(*), md5(string_agg(id || value, ',' ORDER BY id)) FROM (TABLE item UNION ALL TABLE other) x"
    )
    found = [node.sql(question) for node in nodes]
    wanted = count if case in ("one writes", "same rows") else 2 * count
    if found[0] != found[1] or found[0].partition("|")[0] != str(wanted):
        raise RuntimeError(f"PostgreSQL's nodes say that they are level, and have {found}")
