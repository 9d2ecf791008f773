"""One Spark session, and one archived history, for all tests below here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.backlog import Backlog


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Made for little data: what it would compile is run a few times only."""
    from update_process.replay.spark_session import make_session

    made = make_session(
        "local[2]",
        **{
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield made
    made.stop()


@pytest.fixture(scope="session")
def _backlog(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Backlog:
    from replicate.journal.chain import Chain
    from update_process.replay.archive import Archive

    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("backlog")
        patch.setenv("REPLICATE_SHM_DIR", str(directory / "shm"))
        made = Backlog.create(directory)
        Archive(spark, made.archive, range_segments=2).add(Chain(made.pair.primary.journal_directory))
        made.write_tail()
    return made


@pytest.fixture
def backlog(_backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> Backlog:
    """A primary whose journal is archived but for its end. It is not written to; each test takes secondaries of its
    own."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(_backlog.pair.directory / "shm"))
    return _backlog
