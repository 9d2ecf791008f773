"""A supplier that is gone for good, by what another one says, and is not: it returns, and nobody takes what it writes.

    commit lock · instance file: who says so, and what that one has · the pool's word of the role

Guarantees: from then on each commit is refused, and names who says so, also on connections that are open; nothing that
is written is touched, so what only this site has goes to a lost file with `instance convert --role secondary --force`.
It takes writes again by the operator's word alone, and not while a peer of it says otherwise.
Leaves to others: who is retired, and why (retiring.py), connections (source_server/), taking writes again
(restored_supplier.py).
"""

from __future__ import annotations

from replicate.door.snapshot import door_of
from replicate.errors import ConfigurationError
from replicate.instance.consumers import read_consumer
from replicate.instance.file import Successor
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.roles.change_of_role import LOCK_TIMEOUT_S
from replicate.roles.restored_supplier import settle
from replicate.roles.retiring import writers_of
from replicate.system.failpoint import hit


def note_retired(instance: Instance, by: str, *, timeout_s: float = LOCK_TIMEOUT_S) -> bool:
    """The peer `by` says that this supplier is gone for good; False where that was noted before. Raises what opening
    the door and its lock raise, and what writing the instance file does: it goes on then as before, and is told
    again."""
    instance.reload()
    if not instance.is_supplier:
        return False
    known = read_consumer(instance.consumers_directory, by)
    said = Successor(by, 0 if known is None else known.acknowledged_seqno)
    with door_of(instance) as door, door.locked(timeout_s):
        instance.reload()
        is_news = instance.content.successor is None
        if is_news:
            instance.note_successor(said)
            hit("retired.noted")
        door.words[word.ROLE] = word.ROLE_SECONDARY  # also where one was killed before this
    return is_news


def not_retired(instance: Instance) -> bool:
    """That it is gone for good was an error: it takes writes again; False when it does already, but for what it waits
    for as one that was restored.

    ConfigurationError where its own journal says so, or one says so that is a peer of it still; and what `settle`
    raises."""
    instance.reload()
    by = instance.content.retired_by
    if writers_of(instance).is_gone(instance.content.uuid):
        raise ConfigurationError(
            f"{instance.name} is gone for good: its own journal says so",
            where=str(instance.path),
            do="Make it again, under another name: replicate help suppliers (A supplier is gone for good)",
        )
    if by is not None and by.name in {peer.name for peer in instance.peers}:
        raise ConfigurationError(
            f"{by.name} says that {instance.name} is gone for good, and is a peer of it",
            where=str(instance.path),
            do=f"Nobody who has heard of it takes anything from here. To go on without {by.name}: replicate -i "
            f"{instance.named} source stop --peer {by.name}; replicate -i {instance.named} peer remove {by.name}; "
            "then this command again",
        )
    return settle(instance, though_retired=by is not None)
