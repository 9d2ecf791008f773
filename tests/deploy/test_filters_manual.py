"""The worked examples of the chapter on filters are run as they stand there, where there is something to run them."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

from replicate.filters.conversation import VERSION

CHAPTER = (Path(__file__).resolve().parents[2] / "deploy/manual/filters.md").read_text(encoding="utf-8")
HELLO = {"hello": "dualsite filter", "version": VERSION, "side": "source"}


def example(language: str, number: int = 0) -> str:
    """A block of code in that language."""
    return str(re.findall(rf"^```{language}\n(.*?)^```$", CHAPTER, re.DOTALL | re.MULTILINE)[number])


def group(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [HELLO, {"begin": 17}, *changes, {"end": 17, "count": len(changes)}]


def row(op: str, table: str, **images: dict[str, Any]) -> dict[str, Any]:
    return {"op": op, "region": "main", "table": table, **images}


def answered(command: list[str], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the program says to these events, as the product writes them."""
    told = "".join(json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n" for event in events)
    made = subprocess.run(command, input=told.encode(), capture_output=True, timeout=60, check=True)
    assert made.stderr == b""
    return [json.loads(line) for line in made.stdout.splitlines()]


NAMED = [
    row("insert", "person", after={"id": 1, "name": "Ada Lovelace"}),
    row("update", "person", before={"id": 1, "name": "Ada"}, after={"id": 1, "name": "Eva M. Ä"}),
    row("insert", "other", after={"id": 1, "name": "Ada Lovelace"}),
]
SPLIT = [
    row("insert", "person", after={"id": 1, "first": "Ada", "last": "Lovelace"}),
    row(
        "update",
        "person",
        before={"id": 1, "first": "Ada", "last": ""},
        after={"id": 1, "first": "Eva", "last": "M. Ä"},
    ),
    NAMED[2],
]


def test_the_function_in_python(tmp_path: Path) -> None:
    (tmp_path / "people.py").write_text(example("python"), encoding="utf-8")
    command = [sys.executable, "-m", "replicate.filters.callable_host", "people:upgrade"]
    told = b"".join(msgpack.packb(event) for event in group(*NAMED))
    made = subprocess.run(
        command, input=told, capture_output=True, timeout=60, check=True, env={"PYTHONPATH": f"{tmp_path}:."}
    )
    assert list(msgpack.Unpacker(io.BytesIO(made.stdout))) == group(*SPLIT)


def test_the_program_in_python(tmp_path: Path) -> None:
    script = tmp_path / "upgrade.py"
    script.write_text(example("python", 1), encoding="utf-8")
    assert answered([sys.executable, str(script)], group(*NAMED)) == group(*SPLIT)


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_the_program_in_perl(tmp_path: Path) -> None:
    script = tmp_path / "without.pl"
    script.write_text(example("perl"), encoding="utf-8")
    secret = row("delete", "secret", before={"id": 1, "what": '"table":"person"'})
    told = row("insert", "person", after={"id": 1, "name": '"table":"secret","count":5'})
    assert answered(["perl", str(script)], group(secret, told, secret)) == group(told)
    assert answered(["perl", str(script)], group(secret)) == group()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_program_in_c(tmp_path: Path) -> None:
    source, program = tmp_path / "mask.c", tmp_path / "mask"
    source.write_text(example("c"), encoding="utf-8")
    subprocess.run(["cc", "-Wall", "-Werror", "-o", str(program), str(source)], check=True, timeout=60)
    cards = {"id": 1, "card": 'a"b\\', "name": "n"}
    bare = {"id": 1, "card": None, "name": "n"}
    changes = [row("update", "account", before=cards, after=cards), row("insert", "account", after=bare)]
    masked = [row("update", "account", before=bare, after=bare), changes[1]]
    assert answered([str(program)], group(*changes)) == group(*masked)
