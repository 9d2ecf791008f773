"""The process of a filter that is a function."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from replicate.filters.callable_host import Host, load

HELLO = {"hello": "dualsite filter", "version": 1, "side": "source"}
GROUP = [{"begin": 7}, {"op": "comment", "text": "a"}, {"op": "comment", "text": "b"}, {"end": 7, "count": 2}]


def said(function: Any, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the host says to these events."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source, os.fdopen(write, "wb") as told:
        told.write(b"".join(map(msgpack.packb, events)))
        told.close()
        sink = io.BytesIO()
        Host(function, source, sink).run()
    return list(msgpack.Unpacker(io.BytesIO(sink.getvalue())))


def test_it_answers_each_transaction_with_what_the_function_returns() -> None:
    assert said(lambda begin, changes: changes, [HELLO, *GROUP]) == [HELLO, *GROUP]
    assert said(lambda begin, changes: None, [HELLO, *GROUP]) == [HELLO, {"begin": 7}, {"end": 7, "count": 0}]
    assert said(lambda begin, changes: [next(changes)], [HELLO, *GROUP, *GROUP]) == [
        HELLO, *([*GROUP[:2], {"end": 7, "count": 1}] * 2)
    ]  # fmt: skip


def test_a_function_sees_changes_while_they_come() -> None:
    def twice(begin: Any, changes: Iterator[Any]) -> Iterator[Any]:
        for change in changes:
            yield change
            yield change

    assert [event.get("text") for event in said(twice, GROUP)] == [None, "a", "a", "b", "b", None]


def test_what_ends_within_a_transaction_is_an_error() -> None:
    with pytest.raises(EOFError):
        said(lambda begin, changes: changes, GROUP[:2])


def test_what_it_prints_goes_to_standard_error() -> None:
    program = [sys.executable, "-m", "replicate.filters.callable_host", "tests.harness.filters:talkative"]
    told = b"".join(map(msgpack.packb, [HELLO, *GROUP]))
    made = subprocess.run(program, input=told, capture_output=True, timeout=60, check=True)
    assert list(msgpack.Unpacker(io.BytesIO(made.stdout))) == [HELLO, *GROUP]
    assert made.stderr == b"7\n"


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="is no function"):
        load("tests.harness.filters:__doc__")
    with pytest.raises(AttributeError):
        load("tests.harness.filters:nothing")
