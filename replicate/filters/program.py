"""Which program a filter's setting names, and by what it is known: a command line, or `package.module:function`.

Guarantees: two sites that name the same program, with the same bytes and arguments, know it by the same identity; one
that is changed is another one. A program that is not there, or may not be executed, is refused by name.
Leaves to others: running it (filter_process.py).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from msgspec import Struct
from xxhash import xxh3_64

from replicate.errors import ConfigurationError, FilterError
from replicate.filters.encoding import DO, Form

_CALLABLE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_READ_BYTES: Final = 1 << 20


class Program(Struct, frozen=True):
    """What is to be run. `identity`: its name and a digest of what it is, as peers compare it."""

    command: tuple[str, ...]
    form: Form
    name: str
    identity: str


def words(setting: str) -> tuple[str, ...]:
    """The words of a command line, as a shell divides them; there is no shell. ConfigurationError."""
    try:
        found = tuple(shlex.split(setting))
    except ValueError as error:
        raise ConfigurationError(f"{setting!r} is no command line: {error}", do="Mend its quotes") from None
    if not found:
        raise ConfigurationError("a filter has no command", do="Name a program, or package.module:function")
    return found


def program(setting: str, form: str) -> Program:
    """The program of a filter's setting. `form`: json or msgpack; of a callable, which never sees it, msgpack.

    ConfigurationError; FilterError for one that is not there or cannot be executed."""
    named = words(setting)
    if len(named) == 1 and _CALLABLE.match(named[0]):
        module = named[0].partition(":")[0]
        files = [_module_file(module)]
        command = (sys.executable, "-m", "replicate.filters.callable_host", named[0])
        return Program(command, Form.MSGPACK, named[0], _identity(named[0], named, files))
    path = shutil.which(named[0])
    if path is None:
        what = "cannot be executed" if os.path.exists(named[0]) else "is not there"
        raise FilterError(f"the filter {named[0]} {what}", where=setting, do=DO)
    files = [Path(path), *(Path(word) for word in named[1:] if os.path.isfile(word))]
    name = os.path.basename(named[0])
    return Program((path, *named[1:]), Form(form), name, _identity(name, named, files))


def _module_file(module: str) -> Path:
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError) as error:
        raise FilterError(f"the filter's module {module} cannot be imported: {error}", do=DO) from None
    if found is None or found.origin is None or not os.path.isfile(found.origin):
        raise FilterError(f"the filter's module {module} is not there", do=f"{DO}; PYTHONPATH says where it is")
    return Path(found.origin)


def _identity(name: str, named: tuple[str, ...], files: list[Path]) -> str:
    digest = xxh3_64("\0".join((os.path.basename(named[0]), *named[1:])).encode())
    for path in files:
        try:
            with path.open("rb") as file:
                while piece := file.read(_READ_BYTES):
                    digest.update(piece)
        except OSError as error:
            raise FilterError(f"the filter's file cannot be read: {error.strerror}", where=str(path), do=DO) from error
    return f"{name} {digest.hexdigest()}"
