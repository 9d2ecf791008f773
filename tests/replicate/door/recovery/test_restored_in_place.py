"""A backup put back into an instance's directories while the machine runs on: the pool knows of more than the files.

Guarantees tested: nothing is appended after a hole; recovery goes on from what lies there, in a new incarnation.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from replicate.errors import ConfigurationError
from replicate.instance.instance import Instance
from replicate.limits import LOOK_S
from replicate.pool import control as word
from tests.harness.instances import (
    check,
    door_of,
    insert,
    insert_rows,
    make_primary,
    newest_segment,
    restore_region,
    rows,
    save_region,
    session_of,
)

pytestmark = pytest.mark.usefixtures("shared_memory")


def save_journal(instance: Instance, aside: Path) -> None:
    shutil.copytree(instance.journal_directory, aside)


def restore_journal(instance: Instance, aside: Path) -> None:
    """As rsync and tar do it: other files in the same directory."""
    for path in instance.journal_directory.iterdir():
        path.unlink()
    for path in aside.iterdir():
        shutil.copy(path, instance.journal_directory)


def test_journal_and_region_of_one_backup_are_gone_on_from(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    path = instance.region("main").path
    insert_rows(instance, 1, 3)
    save_journal(instance, tmp_path / "journal")
    save_region(path, tmp_path / "region")
    insert_rows(instance, 10, 3)
    restore_journal(instance, tmp_path / "journal")
    restore_region(path, tmp_path / "region")
    insert_rows(instance, 20, 2)
    assert sorted(rows(path)) == [1, 2, 3, 20, 21]
    check(instance)
    # The numbers of what is lost are given again; so a process that has them tells them apart.
    assert Instance.open(instance.path).content.incarnation == 2


def test_a_journal_that_was_put_back_alone_has_no_hole(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 3)
    save_journal(instance, tmp_path / "journal")
    insert_rows(instance, 10, 3)
    restore_journal(instance, tmp_path / "journal")
    insert_rows(instance, 20, 2)
    assert sorted(rows(instance.region("main").path)) == [1, 2, 3, 10, 11, 12, 20, 21]
    check(instance)


def test_while_it_is_used_nobody_else_comes_in(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 3)
    save_journal(instance, tmp_path / "journal")
    with session_of(instance) as session:
        insert(session, 10)
        restore_journal(instance, tmp_path / "journal")
        with pytest.raises(ConfigurationError, match="older copy while processes use it"):
            other_process(instance)
    insert_rows(instance, 20, 1)
    check(instance)


def restore_directory(instance: Instance, aside: Path) -> None:
    """The backup's directory in the place of the other one."""
    instance.journal_directory.rename(aside.with_name("lost"))
    shutil.copytree(aside, instance.journal_directory)


@pytest.mark.parametrize("restore", [restore_journal, restore_directory])
def test_who_stays_open_appends_nothing_that_nobody_finds(
    tmp_path: Path, restore: Callable[[Instance, Path], None]
) -> None:
    instance = make_primary(tmp_path / "alpha")
    insert_rows(instance, 1, 3)
    save_journal(instance, tmp_path / "journal")
    with session_of(instance) as session:
        last = insert(session, 10)
        lost = os.open(newest_segment(instance), os.O_RDONLY)
        restore(instance, tmp_path / "journal")
        time.sleep(2 * LOOK_S)
        before = os.pread(lost, 1 << 20, 0)
        for _ in range(2):  # as often as it is tried
            with pytest.raises(ConfigurationError, match="the journal was replaced while processes use it"):
                insert(session, 11)
        assert session.door.words[word.LAST_SEQNO] == last
        assert os.pread(lost, 1 << 20, 0) == before
        os.close(lost)
    insert_rows(instance, 20, 1)
    assert sorted(rows(instance.region("main").path)) == [1, 2, 3, 10, 20]
    check(instance)


def test_a_journal_that_was_moved_and_put_back_is_gone_on_with(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with session_of(instance) as session:
        insert(session, 1)
        instance.journal_directory.rename(tmp_path / "aside")
        time.sleep(2 * LOOK_S)
        insert(session, 2)
        (tmp_path / "aside").rename(instance.journal_directory)
        time.sleep(2 * LOOK_S)
        insert(session, 3)
    assert sorted(rows(instance.region("main").path)) == [1, 2, 3]
    check(instance)


def other_process(instance: Instance) -> None:
    """A second door of this process would be the first one."""
    from replicate.door.recovery.opening import make_chain
    from replicate.door.recovery.recovery import attach_or_recover

    attach_or_recover(instance, make_chain(instance)).close()


def test_a_door_that_is_opened_again_finds_the_mark_that_it_knows(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    for row in range(1, 6):
        insert_rows(instance, 10 * row, 2)
        with door_of(instance):
            pass
    assert Instance.open(instance.path).content.incarnation == 1
    check(instance)
