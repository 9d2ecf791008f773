"""The tree of verbs. A verb stands in the module of its noun; this one only hangs them up.

Guarantees: every verb of the manual (commands.md) is reachable, under its stable name; the module of a verb is imported
when that verb is asked for.
Leaves to others: what they do.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Final

import click

from replicate import __version__
from replicate.cli.common import Noun

_I: Final = "replicate -i INSTANCE"
_EACH: Final = f"each daemon has its own: {_I} source {{0}}, {_I} receiver {{0}}, {_I} update {{0}}"
_NO_SWITCH: Final = f"nothing switches by itself: {_I} switchover exchanges the roles of the two sites"
OTHER_WORDS: Final = {
    **{word: _EACH.format(word) for word in ("start", "stop", "run")},
    **dict.fromkeys(("activate", "deactivate"), _NO_SWITCH),
    **dict.fromkeys(("failover", "takeover"), f"{_I} promote makes a secondary primary"),
    **dict.fromkeys(("backlog", "checkhealth", "health", "lag", "showbacklog"), f"{_I} status shows it"),
    "add": f"{_I} region add PATH makes a database a region; {_I} peer add NAME HOST:PORT adds a secondary",
    "create": "replicate instance create makes an instance",
    "init": f"replicate instance create makes an instance; {_I} region add PATH makes a database a region of it",
    "backup": "VACUUM INTO through replicate.connect copies a region; `replicate help regions` says more",
    "restore": f"{_I} rebuild makes a secondary from a base copy and an archive; {_I} seed fills one",
}
"""What people from elsewhere type first, and what does it here."""


MODULES: Final = {
    **dict.fromkeys(("promote", "demote", "rollback"), "roles"),
    "wait": "status",
    "digest": "compare",
}
"""Modules below replicate/cli in which verbs stand that are not called as these."""
VERBS: Final = (
    "instance", "region", "partition", "subscription", "schema", "replica", "peer", "source", "receiver", "update",
    "seed", "switchover", "promote", "demote", "rollback", "lost", "conflict", "status", "watch", "web", "wait",
    "statistics", "digest", "compare", "scr", "ruv", "journal", "audit", "config", "certificate", "archive", "replay",
    "rebuild", "packet", "epochs", "scrub", "bench", "completion", "help",
)  # fmt: skip


class Verbs(MutableMapping[str, click.Command]):
    """Verbs by their names. Their modules are imported one by one: all of them and this tree took 0.20 s of CPU at
    8293fc5, for each command and each start of a daemon; one takes 0.06 s."""

    def __init__(self) -> None:
        self._made: dict[str, click.Command | None] = dict.fromkeys(VERBS)

    def __getitem__(self, name: str) -> click.Command:
        verb = self._made[name]
        if verb is None:
            module = import_module(f"replicate.cli.{MODULES.get(name, name)}")
            verb = self._made[name] = next(
                one for one in vars(module).values() if isinstance(one, click.Command) and one.name == name
            )
        return verb

    def __setitem__(self, name: str, verb: click.Command) -> None:
        self._made[name] = verb

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __contains__(self, name: object) -> bool:
        return name in self._made


class Root(Noun):
    """The command itself: a word of another product gets the name that it has here."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in OTHER_WORDS and args[0] not in self.commands:
            raise click.UsageError(f"No such command {args[0]!r}: {OTHER_WORDS[args[0]]}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Root, commands=Verbs(), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(__version__, prog_name="replicate")
def root() -> None:
    """Dualsite Replicate: logical dual-site database replication. `replicate help` lists the chapters of the manual."""
