"""One Spark session, and one archived history, for all tests below here.

Guarantees: the session's Java process ends with the last of them (tests/conftest.py has one process run them all), so
that nothing of it is there while other tests run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.backlog import Backlog

HERE = Path(__file__).parent
_sessions: list[Any] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """With the last test here the session ends: directories have no fixtures of their own."""
    try:
        return (yield)
    finally:
        if nextitem is None or HERE not in nextitem.path.parents:
            _end()


def _end() -> None:
    from update_process.replay.spark.session import end_session

    while _sessions:
        end_session(_sessions.pop())


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Made for little data: what it would compile is run a few times only."""
    from update_process.replay.spark.session import make_session

    made = make_session(
        "local[2]",
        **{
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    _sessions.append(made)
    yield made
    _end()


@pytest.fixture(scope="session")
def _backlog(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Backlog:
    from replicate.journal.chain import Chain
    from update_process.replay.archive.archive import Archive

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
