"""How a command tells that it has failed: one line on standard error, and with --json one object on standard output.

Guarantees: with --json standard output always has JSON, a usage error's too; an output that cannot be written changes
nothing. Only the standard library is imported: what failed may be our own package.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Sequence

from msgspec import Struct, to_builtins

from replicate.cli.standard_output import drop_output

_LINE = re.compile(r"(?P<code>[A-Z][A-Z_]+): (?P<rest>.*)", re.DOTALL)
_PLACED = re.compile(r"(?P<what>.*?) \[(?P<where>[^\]]*)\](?:\. (?P<do>.*))?", re.DOTALL)


class Failure(Struct, frozen=True):
    """What an error says, field by field, as errors.ReplicateError has it."""

    code: str
    what: str
    exit_code: int
    where: str = ""
    do: str = ""

    @property
    def line(self) -> str:
        """For people."""
        text = f"{self.code}: {self.what}" if self.code else self.what
        text += f" [{self.where}]" if self.where else ""
        text += f". {self.do}" if self.do else ""
        return " ".join(text.split())


def parsed(line: str, exit_code: int) -> Failure:
    """The failure that a line tells: a daemon's last word, which has no other form."""
    found = _LINE.fullmatch(line)
    if found is None:
        return Failure("", line, exit_code)
    code, rest = found["code"], found["rest"]
    placed = _PLACED.fullmatch(rest)
    if placed is None:
        return Failure(code, rest, exit_code)
    return Failure(code, placed["what"], exit_code, placed["where"], placed["do"] or "")


def tell(failure: Failure, arguments: Sequence[str]) -> int:
    """Say it; its exit code. The line may not even parse, so --json counts wherever it stands on it."""
    with contextlib.suppress(OSError, ValueError):
        print(failure.line, file=sys.stderr, flush=True)
    if "--json" in arguments:
        told = {**to_builtins(failure), "code": failure.code or "DAEMON_FAILED"}
        try:
            print(json.dumps({key: told[key] for key in ("code", "what", "where", "do", "exit_code")}), flush=True)
        except (OSError, ValueError, AttributeError):
            drop_output()
    return failure.exit_code
