"""Runs a filter that is a Python callable, in a process of its own: `python -m replicate.filters.callable_host
MODULE:FUNCTION`.

    function(begin, changes) -> changes

It is called once for each transaction: `begin` is the event that begins it, `changes` an iterator of its events, which
come while they are taken. It returns, or yields, the events that stand for them.

Guarantees: what the function prints goes to standard error. A function that fails ends the process, with its traceback.
Leaves to others: who starts it (filter_process.py), and what it is told (conversation.py).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final

import msgpack

from replicate.limits import FILTER_EVENT_BYTES_MAX, MIB

_READ_BYTES: Final = 256 * 1024
_WRITE_BYTES: Final = 64 * 1024

Event = dict[str, Any]
Filter = Callable[[Event, Iterator[Event]], Iterable[Event] | None]


class Host:
    """One conversation, over two files."""

    def __init__(self, function: Filter, source: BinaryIO, sink: BinaryIO) -> None:
        self._function = function
        self._source = source
        self._sink = sink
        self._reader = msgpack.Unpacker(max_buffer_size=FILTER_EVENT_BYTES_MAX + 2 * MIB)
        self._pack = msgpack.Packer(use_bin_type=True).pack
        self._said: list[bytes] = []
        self._said_bytes = 0
        self._last: Event | None = None

    def run(self) -> None:
        """Until there is nothing more. Raises what the function raises."""
        for event in self._events():
            if "begin" in event:
                self._transaction(event)
            else:
                self._say(event)  # the greeting
        self._write()

    def _events(self) -> Iterator[Event]:
        while True:
            yield from self._reader
            if self._said:
                self._write()  # nobody waits for what is not written
            data = os.read(self._source.fileno(), _READ_BYTES)
            if not data:
                return
            self._reader.feed(data)

    def _transaction(self, begin: Event) -> None:
        self._say(begin)
        self._last = None
        changes = self._changes()
        count = 0
        for event in self._function(begin, changes) or ():
            self._say(event)
            count += 1
        deque(changes, maxlen=0)  # a function need not take them all
        if self._last is None:
            raise EOFError("the transaction did not end")
        self._say({"end": begin["begin"], "count": count})

    def _changes(self) -> Iterator[Event]:
        for event in self._events():
            if "end" in event:
                self._last = event
                return
            yield event

    def _say(self, event: Event) -> None:
        self._said.append(self._pack(event))
        self._said_bytes += len(self._said[-1])
        if self._said_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        self._sink.write(b"".join(self._said))
        self._sink.flush()
        self._said, self._said_bytes = [], 0


def load(named: str) -> Filter:
    """The function `package.module:function`. ImportError, AttributeError, TypeError."""
    module, _, name = named.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{named} is no function")
    return function  # type: ignore[no-any-return]


def main() -> None:
    """Standard output is the stream's alone: what anybody prints goes to standard error."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    Host(load(sys.argv[1]), sys.stdin.buffer, sink).run()


if __name__ == "__main__":
    main()
