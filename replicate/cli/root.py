"""The tree of verbs. A verb stands in the module of its noun; this one only hangs them up.

Guarantees: every verb of the manual (commands.md) is reachable, under its stable name.
Refuses to know: what they do.
"""

from __future__ import annotations

from typing import Final

import click

from replicate import __version__
from replicate.cli.archive import archive
from replicate.cli.audit import audit
from replicate.cli.bench import bench
from replicate.cli.certificate import certificate
from replicate.cli.common import Noun
from replicate.cli.compare import compare, digest
from replicate.cli.completion import completion
from replicate.cli.config import config
from replicate.cli.conflict import conflict
from replicate.cli.epochs import epochs
from replicate.cli.help import help_
from replicate.cli.instance import instance
from replicate.cli.journal import journal
from replicate.cli.lost import lost
from replicate.cli.packet import packet
from replicate.cli.partition import partition
from replicate.cli.peer import peer
from replicate.cli.rebuild import rebuild
from replicate.cli.receiver import receiver
from replicate.cli.region import region
from replicate.cli.replay import replay
from replicate.cli.replica import replica
from replicate.cli.roles import demote, promote, rollback
from replicate.cli.ruv import ruv
from replicate.cli.schema import schema
from replicate.cli.scr import scr
from replicate.cli.scrub import scrub
from replicate.cli.seed import seed
from replicate.cli.source import source
from replicate.cli.statistics import statistics
from replicate.cli.status import status, wait
from replicate.cli.subscription import subscription
from replicate.cli.switchover import switchover
from replicate.cli.update import update
from replicate.cli.watch import watch
from replicate.cli.web import web

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


class Root(Noun):
    """The command itself: a word of another product gets the name that it has here."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in OTHER_WORDS and args[0] not in self.commands:
            raise click.UsageError(f"No such command {args[0]!r}: {OTHER_WORDS[args[0]]}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="replicate")
def root() -> None:
    """Dualsite Replicate: logical dual-site database replication. `replicate help` lists the chapters of the manual."""


for _verb in (
    instance, region, partition, subscription, schema, replica, peer, source, receiver, update, seed, switchover,
    promote, demote, rollback, lost, conflict, status, watch, web, wait, statistics, digest, compare, scr, ruv, journal,
    audit, config, certificate, archive, replay, rebuild, packet, epochs, scrub, bench, completion, help_,
):  # fmt: skip
    root.add_command(_verb)
