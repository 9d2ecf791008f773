"""A Spark session as archive and replay want it, and what is needed on the machine for one.

Guarantees: without Java or without the Python packages one error says what to install, before anything is started; what
Java itself writes reaches no operator, unless as that one error; the workers run this interpreter; times are UTC; our
data source is registered. When a session of `session` ends, its Java process has ended.
Leaves to others: journals, archives, replays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from replicate.errors import PeerUnreachableError, PrerequisiteMissingError, ReplicateError, UsageError
from update_process.replay.archive.files import first_line
from update_process.replay.spark.errors import is_java_gone, is_of_spark, java_gone

LOCAL: Final = "local[*]"
SHUFFLE_PARTITIONS: Final = 8
DRIVER_MEMORY: Final = "2g"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has chosen master and memory itself."""
END_PATIENCE_S: Final = 30.0
_SETTING: Final = re.compile(r"(spark\.[^\s=:]+)\s*[\s=:]\s*(.*)")
_TELLING: Final = re.compile(r"^(?:Exception in thread \S+ |Error: |Caused by: )(?:[\w.$]+(?:Exception|Error): )?(.+)")
_BAD_MASTER: Final = re.compile(r"\bMaster must\b|Could not parse Master URL|master URL", re.IGNORECASE)


def is_submitted() -> bool:
    """Whether spark-submit has started this process."""
    return SUBMITTED in os.environ


def require_java() -> None:
    """PrerequisiteMissingError when there is no Java."""
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or (not home and shutil.which("java")):
        return
    raise PrerequisiteMissingError(
        "Spark needs Java 17 or newer, and none was found",
        where=f"JAVA_HOME={home}" if home else "PATH",
        do="As root: apt-get install --yes openjdk-17-jre-headless; or, for a replay, without Java: --engine local",
    )


def make_session(master: str | None = None, **settings: str) -> Any:
    """A session (the one that is there, if there is one). PrerequisiteMissingError (no Java, or none that Spark can
    use; no Spark), UsageError (no such kind of master), PeerUnreachableError (no master there), TryAgainError (its Java
    process has ended again)."""
    require_java()
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        from update_process.replay.spark.source import JournalDataSource
    except ModuleNotFoundError as error:
        raise PrerequisiteMissingError(
            f"the Python package {error.name} is not installed",
            where=sys.prefix,
            do="Run: pip install 'dualsite[spark]'; or, for a replay, without Spark: --engine local",
        ) from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    by_submit = is_submitted()
    chosen = {**chosen_settings(master, {} if by_submit else own_defaults(), by_submit=by_submit), **settings}
    where = chosen.get("spark.master", "spark-submit")
    try:
        if SparkSession.getActiveSession() is None and not by_submit:
            conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
            SparkContext(conf=conf, gateway=SparkContext._gateway or _launch(conf, where))
        builder = SparkSession.builder
        for key, value in chosen.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(JournalDataSource)
    except Exception as error:
        if not is_of_spark(error):
            raise
        if is_java_gone(error):
            raise java_gone(error, "Spark does not start", where) from error
        raise _not_begun(first_line(error), where) from error
    return spark


def own_defaults() -> dict[str, str]:
    """What stands in the spark-defaults.conf that Spark would read: SPARK_CONF_DIR's, else SPARK_HOME's."""
    home = os.environ.get("SPARK_HOME")
    directory = os.environ.get("SPARK_CONF_DIR") or (home and str(Path(home) / "conf"))
    if not directory:
        return {}
    try:
        text = (Path(directory) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.strip() for line in text.splitlines())
    found = (_SETTING.match(line) for line in lines if not line.startswith(("#", "!")))
    return {one[1]: one[2].strip() for one in found if one}


def chosen_settings(master: str | None, own: Mapping[str, str], *, by_submit: bool) -> dict[str, str]:
    """What a session of ours is made with. `own`: what the operator's spark-defaults.conf says, which we would else
    overrule: that goes before what we only like, and not before what we need."""
    liked = {
        "spark.app.name": "dualsite",
        "spark.ui.enabled": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        # Under spark-submit the driver runs already, and its memory is spark-submit's to say.
        **({} if by_submit else {"spark.driver.memory": DRIVER_MEMORY}),
    }
    if not by_submit:
        liked["spark.master"] = os.environ.get("MASTER", LOCAL)
    found = {name: own.get(name, value) for name, value in liked.items()}
    if master:
        found["spark.master"] = master
    if found.get("spark.master", "").startswith("local"):  # for a cluster its own configuration knows better
        found["spark.sql.shuffle.partitions"] = own.get("spark.sql.shuffle.partitions", str(SHUFFLE_PARTITIONS))
    return {
        **found,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    }


def _launch(conf: Any, where: str) -> Any:
    """Start the Java process. What it says goes nowhere; where it ends at once, its most telling line is the error."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    with tempfile.TemporaryFile() as said:
        try:
            return launch_gateway(conf, {"stderr": said})
        except PySparkRuntimeError as error:
            said.seek(0)
            lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
            telling = next((found[1] for line in lines if (found := _TELLING.match(line))), "")
            raise _not_begun(telling or (lines or [first_line(error)])[-1], where) from error


def _not_begun(why: str, where: str) -> ReplicateError:
    if _BAD_MASTER.search(why):
        return UsageError(
            f"there is no such kind of Spark master: {why}", where=where, do="Name local[N], spark://HOST:PORT or yarn"
        )
    if "stopped SparkContext" in why or "masters are unresponsive" in why or "Connection refused" in why:
        return PeerUnreachableError(
            "no Spark master answers", where=where, do="Start it, or name another --master; nothing was changed"
        )
    return PrerequisiteMissingError(
        f"Spark does not start: {why}",
        where=where,
        do="It needs Java 17 or newer, and memory for it; or, for a replay, without Spark: --engine local",
    )


def end_session(spark: Any) -> None:
    """Stop the session, and end the Java process where this process has started it; returns when it has ended."""
    from pyspark import SparkContext

    gateway = spark.sparkContext._gateway
    with suppress(Exception):  # whatever has died of it is stopped
        spark.stop()
    if gateway.proc is None:  # spark-submit's own
        return
    with suppress(Exception):
        gateway.shutdown()
    gateway.proc.stdin.close()  # Spark's own way to tell it
    try:
        gateway.proc.wait(END_PATIENCE_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    # Else the next session of this process would talk to the one that has ended.
    SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def session(master: str | None = None) -> Iterator[Any]:
    """A session for a block. Raises what `make_session` raises, and TryAgainError where the block ends by an error that
    says that the Java process has gone."""
    spark = make_session(master)
    try:
        yield spark
    except Exception as error:
        if not (is_of_spark(error) and is_java_gone(error)):
            raise
        # Wherever it was asked for something: not every call is a piece of work with a name of its own.
        raise java_gone(error, "what Spark was asked for is not done", spark.sparkContext.master) from error
    finally:
        end_session(spark)
