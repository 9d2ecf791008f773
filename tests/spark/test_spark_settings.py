"""What a session is made with: the operator's own spark-defaults.conf goes before what we only like. And what is said
where none begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import PeerUnreachableError, PrerequisiteMissingError, ReplicateError, UsageError
from update_process.replay.spark import session
from update_process.replay.spark.session import DRIVER_MEMORY, chosen_settings, own_defaults

OWN = """
# comment
spark.driver.memory\t 5g
spark.master=yarn
spark.sql.session.timeZone: Europe/Vienna
spark.sql.shuffle.partitions 64
spark.executor.extraJavaOptions  -Da=b -Dc=d
nonsense
"""


def test_the_operators_defaults_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert own_defaults() == {}
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    assert own_defaults() == {}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(OWN)
    expected = {
        "spark.driver.memory": "5g",
        "spark.master": "yarn",
        "spark.sql.session.timeZone": "Europe/Vienna",
        "spark.sql.shuffle.partitions": "64",
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
    }
    assert own_defaults() == expected
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert own_defaults() == expected


@pytest.mark.parametrize(
    ("master", "own", "by_submit", "expected"),
    [
        (None, {}, False, ("local[*]", DRIVER_MEMORY, "8")),
        ("local[2]", {"spark.master": "yarn"}, False, ("local[2]", DRIVER_MEMORY, "8")),
        (None, {"spark.master": "yarn", "spark.driver.memory": "5g"}, False, ("yarn", "5g", None)),
        (
            "spark://host:7077",
            {"spark.sql.shuffle.partitions": "64"},
            False,
            ("spark://host:7077", DRIVER_MEMORY, None),
        ),
        (None, {"spark.sql.shuffle.partitions": "64"}, False, ("local[*]", DRIVER_MEMORY, "64")),
        (None, {}, True, (None, None, None)),
    ],
)
def test_they_go_before_what_we_like_and_not_before_what_we_need(
    master: str | None,
    own: dict[str, str],
    by_submit: bool,
    expected: tuple[str | None, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MASTER", raising=False)
    names = ("spark.master", "spark.driver.memory", "spark.sql.shuffle.partitions")
    found = chosen_settings(master, {**own, "spark.sql.session.timeZone": "Europe/Vienna"}, by_submit=by_submit)
    assert tuple(map(found.get, names)) == expected
    assert found["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("Could not parse Master URL: 'x'", UsageError),
        ("Master must either be yarn or start with spark, k8s, or local", UsageError),
        ("Cannot call methods on a stopped SparkContext", PeerUnreachableError),
        ("All masters are unresponsive! Giving up.", PeerUnreachableError),
        ("UnsupportedClassVersionError: class file version 61.0", PrerequisiteMissingError),
    ],
)
def test_why_no_session_begins_is_one_error_of_ours(why: str, kind: type[ReplicateError]) -> None:
    found = session._not_begun(why, "spark://host:7077")
    assert type(found) is kind
    assert found.where == "spark://host:7077"
