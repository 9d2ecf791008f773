"""Suppliers that stand aside for a change of the schema, driven by hand as harness/suppliers.py has them."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from replicate.admin.schema_run import FencedRun, run_fenced
from replicate.dbapi import connect
from replicate.errors import TryAgainError
from replicate.instance.instance import Instance
from replicate.roles.schema_fence import fence
from tests.harness.suppliers import Suppliers

CHANGE: Final = "ALTER TABLE ta ADD COLUMN more"
COMMIT: Final = ("commit.before_append:1", "append.after_write:1", "commit.after_commit:1", "finish.before_publish:1")
"""Where a commit dies."""


def run_once(instance: Instance, text: str = CHANGE) -> FencedRun:
    """`schema run`, which waits for nobody."""
    return run_fenced(instance, text, lambda name: connect(instance.path, name), where="change.sql", timeout_s=0)


def change(made: Suppliers, text: str = CHANGE, *, site: str = "a") -> FencedRun:
    """The same, given again and again while the others hear of it."""
    for _ in range(4):
        try:
            return run_once(made.by[site], text)
        except TryAgainError:
            made.level()
    raise AssertionError("the others do not stand aside")


def fence_all(made: Suppliers, site: str = "a") -> None:
    """Have all others stand aside for it."""
    for _ in range(4):
        try:
            fence(made.by[site], timeout_s=0)
        except TryAgainError:
            made.level()
        else:
            return
    raise AssertionError("the others do not stand aside")


def has_more(made: Suppliers, site: str) -> bool:
    """Whether the change was made there."""
    with closing(made.connect(site)) as connection:
        return "more" in [row[1] for row in connection.execute("PRAGMA table_info (ta)")]


def change_at(instance: Instance) -> None:
    """For `kill_at`."""
    run_once(instance)
