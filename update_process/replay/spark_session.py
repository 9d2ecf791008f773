"""A Spark session as archive and replay want it, and what is needed on the machine for one.

Guarantees: without Java or without the Python packages one error says what to install, before anything is started; the
workers run this interpreter; times are UTC; our data source is registered.
Refuses to know: journals, archives, replays.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from replicate.errors import PrerequisiteMissingError

LOCAL: Final = "local[*]"
SHUFFLE_PARTITIONS: Final = 8
DRIVER_MEMORY: Final = "2g"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has chosen master and memory itself."""


def require_java() -> None:
    """PrerequisiteMissingError when there is no Java."""
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or (not home and shutil.which("java")):
        return
    raise PrerequisiteMissingError(
        "Spark needs Java 17 or newer, and none was found",
        where=f"JAVA_HOME={home}" if home else "PATH",
        do="As root: apt-get install --yes openjdk-17-jre-headless; or work without Java: --engine local",
    )


def make_session(master: str | None = None, **settings: str) -> Any:
    """A session (the one that is there, if there is one). PrerequisiteMissingError."""
    require_java()
    try:
        from pyspark.sql import SparkSession

        from update_process.replay.source import JournalDataSource
    except ModuleNotFoundError as error:
        raise PrerequisiteMissingError(
            f"the Python package {error.name} is not installed",
            where=sys.prefix,
            do="Run: pip install 'dualsite[spark]'; or work without Spark: --engine local",
        ) from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("dualsite")
    is_submitted = SUBMITTED in os.environ
    if master or not is_submitted:
        builder = builder.master(master or os.environ.get("MASTER", LOCAL))
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Under spark-submit the driver runs already, and its memory is spark-submit's to say.
        **({} if is_submitted else {"spark.driver.memory": DRIVER_MEMORY}),
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        **settings,
    }
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(JournalDataSource)
    return spark


@contextmanager
def session(master: str | None = None) -> Iterator[Any]:
    """A session for a block."""
    spark = make_session(master)
    try:
        yield spark
    finally:
        spark.stop()
