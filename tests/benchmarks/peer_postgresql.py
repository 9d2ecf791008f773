"""The peer PostgreSQL: two clusters of our own on loopback, logical replication between them; catching up and latency.

Needs Debian's package postgresql-15 (or what `--postgresql-bin` names) and, run by root, the user `postgres`, since the
server refuses to run as root. Settings are those in SETTINGS, the rest are PostgreSQL's defaults.

Guarantees: both servers are stopped, and their data removed, whatever happens. Leaves to others: our own daemons.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

BIN: Final = Path("/usr/lib/postgresql/15/bin")
SETTINGS: Final = {
    "wal_level": "logical",
    "synchronous_commit": "off",
    "max_wal_size": "8GB",
    "shared_buffers": "512MB",
    "listen_addresses": "127.0.0.1",
}

_INSERT: Final = "INSERT INTO item VALUES (n, rpad(lpad(n::text, 12, '0') || '.', {size}, 'v'));"
_UPDATE: Final = "UPDATE item SET value = rpad(lpad(n::text, 12, '0') || '-', {size}, 'v') WHERE id = n;"


class Cluster:
    """One server with one database."""

    def __init__(self, directory: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._run("initdb", "-D", str(directory), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale")
        lines = [f"{name} = '{value}'" for name, value in settings.items()]
        lines += [f"port = {self.port}", f"unix_socket_directories = '{directory}'"]
        with (directory / "postgresql.auto.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")
        self._run("pg_ctl", "-D", str(directory), "-w", "-l", str(directory / "log"), "start")

    def _run(self, program: str, *words: str) -> str:
        command = [str(BIN / program), *words]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        # Not pipes: a server that is started would inherit them, and we should wait for its end.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(command, stdout=output, stderr=output, cwd="/", check=False)
            output.seek(0)
            text = output.read()
        if done.returncode:
            raise RuntimeError(f"{program}: {text}")
        return text

    def sql(self, *texts: str) -> str:
        """Run statements, each on its own, in one session; what they answer."""
        return self._run(
            "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port),
            "-U", "postgres", *(word for text in texts for word in ("-c", text)),
        ).strip()  # fmt: skip

    def stop(self) -> None:
        """At once."""
        with contextlib.suppress(RuntimeError):
            self._run("pg_ctl", "-D", str(self.directory), "-m", "immediate", "stop")


@contextlib.contextmanager
def clusters(settings: Mapping[str, str] = SETTINGS) -> Iterator[tuple[Cluster, Cluster]]:
    """A publisher and a subscriber. RuntimeError where PostgreSQL is not there."""
    if not (BIN / "initdb").exists():
        raise RuntimeError(f"{BIN}/initdb is not there: apt-get install postgresql-15")
    top = Path(tempfile.mkdtemp(prefix="bench-postgresql-"))
    made: list[Cluster] = []
    try:
        if os.geteuid() == 0:
            shutil.chown(top, "postgres")
        for name in ("publisher", "subscriber"):
            made.append(Cluster(top / name, settings))
        yield made[0], made[1]
    finally:
        for cluster in made:
            cluster.stop()
        shutil.rmtree(top, ignore_errors=True)


def catch_up(kind: str, count: int, value_bytes: int) -> dict[str, Any]:
    """One round: `count` single-row transactions (insert or update), or `one` of as many rows, wait; then the
    subscription is enabled. Rows a second until all are applied there."""
    with clusters() as (publisher, subscriber):
        table = "CREATE TABLE item (id integer PRIMARY KEY, value text NOT NULL)"
        rows = 0 if kind != "update" else count
        for cluster in (publisher, subscriber):
            cluster.sql(table)
            cluster.sql(
                f"INSERT INTO item SELECT n, rpad(n::text, {value_bytes}, 'v') FROM generate_series(1, {rows}) n"
            )
            cluster.sql("CHECKPOINT")
        publisher.sql("CREATE PUBLICATION everything FOR TABLE item")
        subscriber.sql(
            f"CREATE SUBSCRIPTION them CONNECTION 'host=127.0.0.1 port={publisher.port} user=postgres dbname=postgres' "
            "PUBLICATION everything WITH (copy_data = false)"
        )
        subscriber.sql("ALTER SUBSCRIPTION them DISABLE")
        statement = (_UPDATE if kind == "update" else _INSERT).format(size=value_bytes)
        order = "random()" if kind == "update" else "1"
        commit = "" if kind == "one" else "COMMIT;"
        publisher.sql(
            f"CREATE PROCEDURE fill() LANGUAGE plpgsql AS $$ DECLARE n integer; k integer[]; BEGIN "
            f"k := ARRAY(SELECT g FROM generate_series(1, {count}) g ORDER BY {order}, g); "
            f"FOREACH n IN ARRAY k LOOP {statement} {commit} END LOOP; END $$"
        )
        publisher.sql("CALL fill()")
        last = publisher.sql("SELECT pg_current_wal_insert_lsn()")
        begun = time.perf_counter()
        subscriber.sql("ALTER SUBSCRIPTION them ENABLE")
        reached = f"SELECT coalesce(bool_or(replay_lsn >= '{last}'), false) FROM pg_stat_replication"
        while publisher.sql(reached) != "t":
            if time.perf_counter() > begun + 900:
                raise RuntimeError("PostgreSQL's subscriber has not caught up within 900 s")
            time.sleep(0.05)
        seconds = time.perf_counter() - begun
        if kind != "update" and subscriber.sql("SELECT count(*) FROM item") != str(count):
            raise RuntimeError("PostgreSQL's subscriber says that it is level, and is not")
    return {"from_start": count / seconds}


def latency(commits: int, pause_s: float) -> list[float]:
    """Milliseconds from COMMIT's return on the publisher (which waits for its disk) to the row's being visible to a
    reader on the subscriber, which looks ten thousand times a second. Both run in their server, and read one clock."""
    with clusters() as (publisher, subscriber):
        for cluster in (publisher, subscriber):
            cluster.sql("CREATE TABLE item (id integer PRIMARY KEY, value text NOT NULL)")
        publisher.sql("CREATE PUBLICATION everything FOR TABLE item")
        subscriber.sql(
            f"CREATE SUBSCRIPTION them CONNECTION 'host=127.0.0.1 port={publisher.port} user=postgres dbname=postgres' "
            "PUBLICATION everything"
        )
        publisher.sql(
            "CREATE PROCEDURE commits(n integer, pause float, INOUT told text) LANGUAGE plpgsql AS $$ BEGIN "
            "told := ''; FOR i IN 1..n LOOP INSERT INTO item VALUES (i, rpad(i::text, 100, 'v')); COMMIT; "
            "told := told || extract(epoch FROM clock_timestamp()) || ' '; "
            "PERFORM pg_sleep(pause * (0.5 + random())); END LOOP; END $$"
        )
        subscriber.sql(
            "CREATE PROCEDURE reader(n integer, INOUT told text) LANGUAGE plpgsql AS $$ DECLARE seen integer := 0; "
            "last integer; BEGIN told := ''; WHILE seen < n LOOP COMMIT; "
            "SELECT coalesce(max(id), 0) INTO last FROM item; WHILE seen < last LOOP seen := seen + 1; "
            "told := told || extract(epoch FROM clock_timestamp()) || ' '; END LOOP; "
            "PERFORM pg_sleep(0.0001); END LOOP; END $$"
        )
        time.sleep(1.0)  # the subscription's table is synchronized, and the stream runs
        with ThreadPoolExecutor(1) as beside:
            reader = beside.submit(subscriber.sql, f"CALL reader({commits}, '')")
            returned = publisher.sql("SET synchronous_commit = on", f"CALL commits({commits}, {pause_s}, '')").split()
            seen = reader.result(300).split()
        return [(float(later) - float(at)) * 1e3 for at, later in zip(returned, seen, strict=True)]
