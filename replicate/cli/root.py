"""The tree of verbs. A verb stands in the module of its noun; this one only hangs them up.

Guarantees: every verb of the table in README is reachable, under its stable name.
Refuses to know: what they do.
"""

from __future__ import annotations

import click

from replicate import __version__
from replicate.cli.archive import archive
from replicate.cli.bench import bench
from replicate.cli.certificate import certificate
from replicate.cli.common import Noun
from replicate.cli.compare import compare, digest
from replicate.cli.config import config
from replicate.cli.instance import instance
from replicate.cli.journal import journal
from replicate.cli.peer import peer
from replicate.cli.rebuild import rebuild
from replicate.cli.receiver import receiver
from replicate.cli.region import region
from replicate.cli.replay import replay
from replicate.cli.seed import seed
from replicate.cli.source import source
from replicate.cli.status import status, wait
from replicate.cli.update import update


@click.group(cls=Noun, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="replicate")
def root() -> None:
    """Dualsite Replicate: logical dual-site database replication."""


for _verb in (
    instance, region, peer, source, receiver, update, seed, status, wait, digest, compare, journal, config, certificate,
    archive, replay, rebuild,
    bench,
):  # fmt: skip
    root.add_command(_verb)
