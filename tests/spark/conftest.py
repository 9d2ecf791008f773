"""One Spark session for all tests below here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from update_process.replay.spark_session import make_session

    made = make_session("local[2]", **{"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"})
    yield made
    made.stop()
