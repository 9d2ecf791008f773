"""What a shell completes beyond verbs and options: instances, their peers, regions and tables, codes, settings,
chapters.

Guarantees: each gives what is there at this moment, reads files only, and never fails or writes: where an instance
cannot be read there is nothing to complete. Leaves to others: which shell asks (click's shell_complete does).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from replicate.instance.file import InstanceFile

INSTANCE_VARIABLE = "REPLICATE_INSTANCE"
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completer(find: Callable[[click.Context], Iterable[str]]) -> Completer:
    """Words that begin as what was typed; none where finding them fails."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            return [CompletionItem(word) for word in sorted(find(ctx)) if word.startswith(incomplete)]
        except Exception:  # whatever is wrong there, a shell's prompt is not the place to say so
            return []

    return complete


def _names(_ctx: click.Context) -> Iterable[str]:
    from replicate.instance.instance import FILE_NAME
    from replicate.instance.location import home

    return [path.parent.name for path in home().glob(f"*/{FILE_NAME}")]


def instances(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names below REPLICATE_HOME; and directories, as soon as a path is begun."""
    if os.sep in incomplete or incomplete.startswith("."):
        return [CompletionItem(incomplete, type="dir")]
    return _completer(_names)(ctx, param, incomplete)


def _content(ctx: click.Context) -> InstanceFile:
    """Of the instance that the line, or the environment, names."""
    from replicate.instance.file import read_file
    from replicate.instance.instance import FILE_NAME
    from replicate.instance.location import resolve_instance

    return read_file(resolve_instance(_named(ctx)) / FILE_NAME)


def _named(ctx: click.Context) -> str:
    return getattr(ctx.find_root().obj, "instance", None) or os.environ.get(INSTANCE_VARIABLE) or ""


def _tables(ctx: click.Context) -> Iterable[str]:
    from replicate.audit.query import known_tables
    from replicate.audit.selection import shortest_names
    from replicate.instance.location import resolve_instance
    from replicate.journal.chain import Chain

    return shortest_names(known_tables(Chain(resolve_instance(_named(ctx)) / "journal")))


def _partitions(ctx: click.Context) -> Iterable[str]:
    return [*_content(ctx).partitions.names.values(), "NONE"]


def _elements(_ctx: click.Context) -> Iterable[str]:
    from replicate.model.elements import PLACED

    return PLACED


def _recorded_elements(_ctx: click.Context) -> Iterable[str]:
    from replicate.model.elements import RECORDED

    return RECORDED


def _codes(_ctx: click.Context) -> Iterable[str]:
    from replicate.errors import ERRORS
    from replicate.model.findings import CODES

    return ["all", *{**CODES, **ERRORS}]


def _settings(_ctx: click.Context) -> Iterable[str]:
    from replicate.settings.load import Config

    return [setting.key for setting, _ in Config().values()]


def _topics(_ctx: click.Context) -> Iterable[str]:
    from replicate.cli.manual import MANUAL, chapters

    return chapters(MANUAL)


def _assignments(ctx: click.Context) -> Iterable[str]:
    return [f"{key}=" for key in _settings(ctx)]


peers = _completer(lambda ctx: [peer.name for peer in _content(ctx).peers])
regions = _completer(lambda ctx: [region.name for region in _content(ctx).regions])
tables_of_journal = _completer(_tables)
partitions = _completer(_partitions)
elements = _completer(_elements)
recorded_elements = _completer(_recorded_elements)
findings = _completer(_codes)
settings = _completer(_settings)
assignments = _completer(_assignments)
topics = _completer(_topics)
