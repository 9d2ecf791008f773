"""The process that calls an application's function for each comment in the log that a secondary has applied.

    python -m update_process.comment_hook INSTANCE        with standard input a pipe of the process that keeps it

Guarantees: a comment is told after the commit of its transaction, in order, and at least once: the position is written
down after the call. A function that fails is logged and not called again for that comment; one that hangs or dies holds
up nothing but itself. It ends when its standard input does, and so does not outlive the Update Process.
Leaves to others: applying, which knows nothing of it (it reads the journal); that it runs (hook_keeper.py).
"""

from __future__ import annotations

import importlib
import json
import os
import select
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from replicate.audit.changes import records_of
from replicate.audit.follow import Follower
from replicate.audit.query import Query
from replicate.errors import ConfigurationError, GapError, JournalMissingError, ReplicateError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.model.moment import iso
from replicate.system.files import read_private, replace_file

POLL_S: Final = 0.2
STATE: Final = "comment_hook.json"

Hook = Callable[[str, dict[str, Any]], object]


class CommentHook:
    """A place in an instance's journal, and the function that is told what comes. `close` it."""

    def __init__(self, instance: Instance, hook: Hook) -> None:
        """Where nobody was told anything yet, it begins after the last transaction that is there now."""
        self._hook = hook
        self._path = instance.path / STATE
        self._instance = instance
        told = self._read()
        self._follower = self._from(None if told is None else told + 1)
        if told is None:
            self._write(self._follower.next_seqno - 1)

    def close(self) -> None:
        """Let go of the files."""
        self._follower.close()

    def work(self) -> int:
        """Tell of all that has come; of how many comments. What `Follower.new` raises, but for what it goes on from: a
        rollback, and transactions that were pruned unseen."""
        count = 0
        try:
            for match in self._follower.new():
                for record in records_of(match):
                    about = {"seqno": record.seqno, "place": record.place, "time": iso(record.csn)}
                    about |= {"origin": record.origin_name, "incarnation": record.incarnation}
                    self._call(record.text, about)
                    count += 1
                self._write(match.seqno)
        except (JournalMissingError, GapError) as error:
            print(f"{error}; going on from there", file=sys.stderr, flush=True)
            chain = Chain(self._instance.journal_directory)
            oldest, told = chain.oldest_seqno(), self._read() or 0
            self._follower.close()
            self._follower = self._from(oldest if told < oldest else None)
            self._write(self._follower.next_seqno - 1)
        return count

    def _call(self, text: str, about: dict[str, Any]) -> None:
        try:
            self._hook(text, about)
        except Exception:
            print(f"the hook failed for a comment of transaction {about['seqno']}:", file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()

    def _from(self, first_seqno: int | None) -> Follower:
        return Follower(self._instance, Query(first_seqno, ops=("comment",)))

    def _read(self) -> int | None:
        try:
            return int(json.loads(read_private(self._path))["last_told_seqno"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                "this file does not say up to where comments were told",
                where=str(self._path),
                do="Remove it: then comments are told from now on",
            ) from error

    def _write(self, seqno: int) -> None:
        replace_file(self._path, json.dumps({"last_told_seqno": seqno}).encode() + b"\n")


def load_hook(setting: str) -> Hook:
    """The function that `update.comment_hook` names. ConfigurationError."""
    module, colon, name = setting.partition(":")
    try:
        if not colon or not name.isidentifier():
            raise ConfigurationError(f"update.comment_hook = {setting!r} should read module:function")
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"update.comment_hook = {setting!r} cannot be loaded: {error}",
            do="Put the module on PYTHONPATH of the Update Process, or mend the setting",
        ) from error
    if not callable(found):
        raise ConfigurationError(f"update.comment_hook = {setting!r} names nothing that can be called")
    hook: Hook = found
    return hook


def main(path: str) -> int:
    """Run until standard input ends. The exit code."""
    try:
        instance = Instance.open(Path(path))
        hook = CommentHook(instance, load_hook(instance.config.update.comment_hook))
        try:
            while True:
                hook.work()
                if select.select([0], [], [], POLL_S)[0] and not os.read(0, 1):
                    return 0
        finally:
            hook.close()
    except ReplicateError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
