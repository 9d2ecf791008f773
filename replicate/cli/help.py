"""`replicate help`: prints the chapters of the manual, and names the nearest for a topic that is none.

Leaves to others: where the chapters are (manual.py), what they say (deploy/manual), and the help of a command (--help).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

import click

from replicate.cli.common import VerbCommand, columns, emit
from replicate.cli.completion_words import topics
from replicate.cli.manual import MANUAL, chapters, title_of
from replicate.errors import ERRORS, UsageError
from replicate.model.findings import CODES


@click.command("help", cls=VerbCommand)
@click.argument("topic", required=False, shell_complete=topics)
def help_(topic: str | None) -> None:
    """Print a chapter of the manual, or the list of chapters."""
    found = chapters(MANUAL)
    if topic is None:
        rows = [(name, title_of(path)) for name, path in found.items()]
        last = ["", "replicate help TOPIC prints a chapter, replicate COMMAND --help what a command takes."]
        emit([{"topic": name, "title": title} for name, title in rows], [*columns(rows), *last])
        return
    wanted = topic.lower().removesuffix(".md")
    if wanted not in found:
        commands = click.get_current_context().find_root().command
        assert isinstance(commands, click.Group)
        raise UsageError(f"there is no chapter {topic}", do=_instead(topic, found, commands.commands))
    text = found[wanted].read_text(encoding="utf-8")
    emit({"topic": wanted, "title": title_of(found[wanted]), "text": text}, text.splitlines())


def _instead(topic: str, names: Collection[str], commands: Collection[str]) -> str:
    """What somebody may have meant who asked for a chapter that is not there."""
    if topic in commands:
        return f"`replicate {topic} --help` describes that command"
    if topic in CODES or topic in ERRORS:
        return f"`replicate status --explain {topic}` says what that code means"
    near = difflib.get_close_matches(topic.lower(), names, 1)
    return f"Did you mean {near[0]}?" if near else "`replicate help` lists the chapters"
