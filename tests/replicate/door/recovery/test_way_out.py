"""A damaged journal of one's own: a process that comes upon it says what to do, for this very instance."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from replicate.admin.region_release import Released, release_region
from replicate.door.recovery.opening import open_door
from replicate.door.recovery.way_out import with_way_out
from replicate.door.secondary import open_apply_session
from replicate.errors import GapError, JournalDamagedError, JournalMissingError, ReplicateError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.pool.shared_memory import PoolKind, retire
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.write(5)
    made.seed()
    made.write(5)
    made.catch_up()
    return made


def spoil(path: Path) -> None:
    """The catalogue after the header."""
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, b"\xff" * 64, 4200)
    os.close(fd)


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("harm", [spoil, Path.unlink])
def test_who_opens_it_says_the_way_out(pair: Pair, harm: Callable[[Path], None], is_restarted: bool) -> None:
    """With the pool that stands, and where recovery comes first."""
    for instance, opened in ((pair.secondary, open_apply_session), (pair.primary, open_door)):
        chain = Chain(instance.journal_directory)
        harm(Path(chain.path_of(chain.first_seqnos()[-1])))
        if is_restarted:
            retire(PoolKind.JOURNAL, instance.content.uuid)
        elif instance is pair.primary:
            continue  # a door alone looks at no segment
        with pytest.raises(ReplicateError) as caught:
            opened(Instance.open(instance.path))
        assert instance.way_out in caught.value.do


def test_a_release_says_how_to_do_without_it(pair: Pair) -> None:
    chain = Chain(pair.secondary.journal_directory)
    spoil(Path(chain.path_of(chain.first_seqnos()[-1])))
    retire(PoolKind.JOURNAL, pair.secondary.content.uuid)
    with pytest.raises(JournalDamagedError) as caught:
        release_region(pair.secondary, "main", timeout_s=5)
    assert f"replicate -i {pair.secondary.named} region release main --force" in caught.value.do
    assert release_region(pair.secondary, "main", timeout_s=5, force=True) == Released()


def test_what_says_itself_what_to_do_is_left(pair: Pair) -> None:
    for error in (JournalDamagedError("bad", do="Do this"), GapError("a gap")):
        assert with_way_out(error, pair.primary) is error
    told = with_way_out(JournalMissingError("gone", where="there", seqno=3), pair.primary)
    assert (type(told), told.facts["seqno"]) == (JournalMissingError, 3)
    assert told.do.startswith(f"Run: replicate -i {pair.primary.named} journal verify")
