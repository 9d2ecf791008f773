"""An instance looked at again and again: what `status` says, what its logs say, and when it is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicate.errors import NotFoundError
from replicate.seeing.instance_view import InstanceView
from replicate.status.collect import collect
from tests.harness.logs import SOURCE, START_US, raw, statistics, write
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Pair.create(tmp_path)


def test_it_shows_what_status_says_and_the_logs_have_told(pair: Pair) -> None:
    pair.write(3)
    log = write(
        pair.primary.path / "log" / "source-west.log",
        [raw(0, SOURCE, "daemon started", role="primary"), statistics(10, SOURCE, 20)],
    )
    os.utime(log, ns=(START_US * 1000, START_US * 1000))
    clock = [START_US * 1000 + 11_000_000_000]
    view = InstanceView(str(pair.primary.path), past_s=60, wall_ns=lambda: clock[0])
    assert view.picture(past_s=60).error == "not looked at yet"
    view.look()
    picture = view.picture(past_s=20, columns=2)
    assert view.status is not None
    assert view.status.journal.last_written_seqno == collect(pair.primary).journal.last_written_seqno
    row = picture.rows[0]
    assert row.ways[0].seqno == view.status.journal.last_written_seqno
    assert [event.what for event in picture.events] == ["started"]
    rates = next(curve for curve in picture.curves if curve.key == "sent_per_s:west")
    assert [point.value for point in rates.points] == [2.0, 2.0]
    assert row.ways[0].per_s is None
    pair.write(10)
    clock[0] += 2_000_000_000
    view.look()
    assert view.picture(past_s=20).rows[0].ways[0].per_s == 5.0


def test_an_instance_that_goes_away_is_said_and_looked_for_again(pair: Pair) -> None:
    view = InstanceView(str(pair.primary.path))
    view.look()
    aside = pair.primary.path.rename(pair.directory / "aside")
    view.look()
    picture = view.picture(past_s=60)
    assert picture.error.startswith("NOT_FOUND")
    assert picture.is_wrong
    aside.rename(pair.primary.path)
    view.look()
    assert view.picture(past_s=60).error == ""


def test_one_that_was_never_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        InstanceView(str(tmp_path / "none"))
