"""`replicate completion`: the script that lets a shell complete commands; and its questions, answered (`answer`)."""

from __future__ import annotations

import contextlib
import os

import click
from click.shell_completion import get_completion_class, shell_complete

from replicate.cli import COMPLETION
from replicate.cli.common import VerbCommand, emit

_LAST = "    return 0\n}"
_NO_SPACE = "    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
"""For bash: a value is to follow KEY=."""


@click.command(cls=VerbCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, and the names of what is there."""
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(root, {}, "replicate", COMPLETION)
    script = made.source_template % made.source_vars()
    if shell == "bash":
        script = script.replace(_LAST, _NO_SPACE + _LAST, 1)
    emit({"shell": shell, "script": script}, script.strip("\n").splitlines())


def answer(root: click.Command, instruction: str) -> int:
    """Answer a shell that asks what could be typed next. Nothing of it may show at the prompt but the answer."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        try:
            return shell_complete(root, {}, "replicate", COMPLETION, instruction)
        except Exception:  # such as a word that is no command
            return 1
