"""Two sites that change their roles, without daemons: a pair whose halves are exchanged by function calls.

Guarantees: `kill_at` runs one call in a process of its own, which dies at a failpoint; `take_over` leaves what was
primary as it is, as a disaster does. What `applied` and `rows` compare are all rows of both sites.
Leaves to others: what a test attacks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from replicate.door.snapshot import door_of
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_before
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.source_refusal import SourceVerdict, note_verdict
from replicate.roles.succession import Other
from replicate.roles.superseded import give_way, meet, own_takeovers
from tests.harness.pair import Pair

ROOT = Path(__file__).resolve().parents[2]


class Sites(Pair):
    """`primary` and `secondary` are the sites that have that part now."""

    @classmethod
    def level(cls, directory: Path) -> Sites:
        """With peers, three transactions, and both sites at the same place."""
        made = cls.create(directory)
        made.add_peers()
        made.write(3)
        made.seed()
        made.catch_up()
        return made

    def exchange(self) -> None:
        """Who was primary is secondary from here on, and the other way round. The files say so, too."""
        self.primary, self.secondary = Instance.open(self.secondary.path), Instance.open(self.primary.path)

    def switch(self) -> int:
        """A planned change: everything is on both sites before. The number at which it happened."""
        self.catch_up()
        seqno = become_secondary(self.primary)
        assert become_primary(self.secondary) == seqno
        self.exchange()
        return seqno

    def take_over(self) -> int:
        """The secondary becomes primary with what it has; nobody tells the old one. The last common number."""
        seqno = become_primary(self.secondary)
        self.exchange()
        return seqno

    def add_peers(self) -> None:
        """Each site is a peer of the other."""
        for one, other in ((self.primary, self.secondary), (self.secondary, self.primary)):
            one.register_peer(other.name, "127.0.0.1", 7430)
            one.reload()


def told_of_a_takeover(instance: Instance, after: int, by: str = "north") -> None:
    """A source has said to the follower `instance` that `by` took over after that transaction."""
    with door_of(instance) as door:
        known = catalogue_before(door.chain, after + 1)
    origin = known.histories[-1].origin.key
    common = known.vector.last(origin)
    note_verdict(instance, SourceVerdict(by, instance.content.incarnation, origin, common, after + 1, by))


def other(instance: Instance) -> Other:
    """What a primary says of itself to another one."""
    with door_of(instance) as door:
        return Other(instance.name, instance.content.uuid, instance.content.incarnation, own_takeovers(door))


def meet_and_give_way(met: Instance, new: Instance) -> None:
    """Two primaries meet, and the first gives its role up, if it has to. For `kill_at`."""
    meet(met, other(new))
    give_way(met)


def kill_at(failpoint: str, call: str, *arguments: object) -> int:
    """Run `call` (module:function) with the instance of each path among `arguments` in a process of its own, killed at
    `failpoint` (name:n; "" for nowhere); its exit code, -9 when it was killed there."""
    script = (
        "import importlib, sys, pathlib\n"
        "from replicate.instance.instance import Instance\n"
        "module, name = sys.argv[1].split(':')\n"
        "one = lambda text: int(text) if text.isdecimal() else text if '.' in text else Instance.open(text)\n"
        "given = list(map(one, sys.argv[2:]))\n"
        "getattr(importlib.import_module(module), name)(*given)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if failpoint:
        environment["REPLICATE_FAILPOINT"] = f"{failpoint}:kill"
    done = subprocess.run(
        [sys.executable, "-c", script, call, *map(str, arguments)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode
