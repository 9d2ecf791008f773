"""An applier is driven until all is applied; what holds it up is waited for, and then named. With real ones:
test_supplier_sources.py, test_excerpts.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from replicate.errors import BusyError, GapError, TryAgainError
from replicate.instance.instance import Instance
from update_process.replay import local_applier as module
from update_process.replay.local_applier import work_off
from update_process.replay.run import silent
from update_process.replay.unpacking import Imported
from update_process.work_result import Done, Waiting


class Scripted:
    """Does what it is told, call after call."""

    def __init__(self, *script: Done) -> None:
        self.script: Iterator[Done] = iter(script)
        self.applied_seqno = 7

    def work(self, _seconds: float) -> Done:
        return next(self.script)


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.create(tmp_path / "east", role="primary", name="east")


def work(instance: Instance, *script: Done) -> Imported:
    done = Imported()
    applier = Scripted(*script)
    work_off(instance, cast("Any", applier), done, silent)
    assert next(applier.script, None) is None, "and not once more"
    return done


def test_until_nothing_is_left(instance: Instance) -> None:
    more = Done(Waiting.MORE, transactions=2, merged=1)
    assert work(instance, more, more, Done(Waiting.NOTHING, transactions=1)).transactions == 5
    assert work(instance, more, Done(Waiting.PART)).merged == 1


@pytest.mark.parametrize("cause", [Waiting.LOCK, Waiting.BARRIER])
def test_what_holds_it_up_is_waited_for(instance: Instance, cause: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAP_S", 0.0)
    assert work(instance, Done(cause), Done(cause), Done(Waiting.NOTHING, transactions=1)).transactions == 1
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    with pytest.raises(BusyError if cause is Waiting.LOCK else TryAgainError, match="because of this") as caught:
        work(instance, Done(cause, text="because of this"))
    assert "passed over" in caught.value.do


def test_a_packet_cannot_be_asked_to_begin_again(instance: Instance) -> None:
    with pytest.raises(GapError, match="does not go on from what is here: why"):
        work(instance, Done(Waiting.RESTART, text="why"))
