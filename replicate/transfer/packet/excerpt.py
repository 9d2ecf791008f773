"""Excerpts: packets that hold some partitions only, or what a filter has made of the journal. What a packet of this
instance is an excerpt of, if it is one, and whether an instance that gets one may take it.

Guarantees: an instance that has some partitions only gives no more than it has, all of it since the packet's
beginning. A peer gets no more than it may have, and nobody gets what is in NONE. An excerpt is taken only where it has
all that is here, and came through the same filters, where there are any: by the rules of a line.
Leaves to others: how changes are chosen (filters/selection.py), and how they are applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicate.errors import UsageError
from replicate.filters.selection import PartitionSelection
from replicate.filters.whose_words import Content, mismatch, read_content
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.header import PARTIAL
from replicate.limits import PARTITION_NONE
from replicate.model.transaction import TableDefinition
from replicate.transfer.packet.format import Excerpt, PacketSummary
from replicate.wire.introduction import refusal
from replicate.wire.message import RefuseCode


def excerpt_for(instance: Instance, names: Sequence[str], next_seqno: int) -> Excerpt | None:
    """What a packet for these peers has, from that transaction on; None: all. UsageError where they may not have the
    same, or have nothing of what is here; or a filter would have to tell it."""
    where = str(instance.path)
    if instance.config.source.filter:
        raise UsageError(
            "a source.filter is set, which tells the stream in other words, and no filter is before packets",
            where=where,
            do=f"Send by a line; or: replicate -i {instance.named} config unset source.filter",
        )
    bounds = {instance.peer(name).partitions for name in names}
    if len(bounds) > 1:
        raise UsageError(
            f"{', '.join(names)} may not have the same partitions, and one packet has the same for all",
            where=where,
            do="Export to each of them",
        )
    (bound,), content, known = bounds, instance.content, instance.partitions_now()
    content_here = read_content(instance.run_directory)
    through = "" if content_here is None else content_here.filter
    if not through and not content.is_partial and Chain(instance.journal_directory).is_partial(next_seqno):
        raise UsageError(
            f"the journal from transaction {next_seqno} on is that of {PARTIAL}; what that was is not known any more, "
            "and it would pass for a whole one",
            where=where,
            do=f"Have {instance.name} seeded again; or export from an instance that has it as it was written",
        )
    if bound is None and content.held is None:
        return Excerpt(filter=through) if through else None
    may_go = sorted((content.held or ()) if bound is None else bound)
    has = [one for one in may_go if one != PARTITION_NONE and content.holds(one)]
    late = content.choice.lacking_below(has, next_seqno)
    numbers = tuple(one for one in has if one not in late)
    if not numbers:
        raise UsageError(
            f"{', '.join(names)} may have partition {', '.join(map(known.name, may_go)) or 'none'}, and "
            f"{instance.name} {instance.told_held or 'has nothing of that'}",
            where=where,
            do=f"Let it have what is here: replicate -i {instance.named} peer add NAME … --partitions … --replace; or "
            "seed it again from here",
        )
    return Excerpt(numbers, through)


def selection_for(
    instance: Instance, excerpt: Excerpt | None, definitions: Mapping[int, TableDefinition]
) -> PartitionSelection | None:
    """What chooses the changes of such a packet; None: all go. `definitions`: of all tables where it begins."""
    wanted = excerpt.partitions if excerpt is not None and excerpt.partitions else None
    # An instance that was made primary has never put a table there itself.
    keeps_back = instance.partitions_now().keeps_back or any(
        one.partition == PARTITION_NONE for one in definitions.values()
    )
    return PartitionSelection(wanted, definitions) if wanted is not None or keeps_back else None


def refuse_some_rows(instance: Instance, why: str) -> None:
    """UsageError for one that has some rows of a table only. `why`: the end of the sentence."""
    if instance.content.held_rows:
        raise UsageError(
            f"{instance.name} {instance.told_held}, and {why}",
            where=str(instance.path),
            do="Let a line bring them; or have it get all: "
            f"{' and '.join(f'replicate -i {instance.named} {one}' for one in instance.content.getting_all)}, then "
            "seed it",
        )


def content_of(summary: PacketSummary) -> Content:
    """In whose words the packet is."""
    told_by = summary.excerpt.filter if summary.excerpt is not None else ""
    return Content(summary.sender.hex(), summary.sender_name, told_by)


def judge_excerpt(instance: Instance, summary: PacketSummary, where: str) -> None:
    """Whether what the packet has can go on what is here, if it brings anything. PeerRefusedError; UsageError where
    some rows of a table are here."""
    if summary.is_receipt:
        return
    refuse_some_rows(instance, "a packet brings all rows")
    has, asked = summary.excerpt.partitions if summary.excerpt is not None else (), instance.content.choice.asked
    if has and (asked is None or not set(asked) <= set(has)):
        named = instance.content.partitions.name
        error = refusal(
            RefuseCode.PARTITION_REFUSED,
            f"packet {summary.number} of {summary.sender_name} has partition {', '.join(map(named, has))} only, and "
            f"{instance.name} "
            + ("has all" if asked is None else f"lacks {', '.join(named(one) for one in asked if one not in has)}"),
        )
        raise type(error)(
            error.what,
            where=where,
            do=f"Have one that has more export to {instance.name}; or, where {summary.sender_name} bounds it, there: "
            f"replicate -i {summary.sender_name} peer add {instance.name} … --partitions … --replace",
            **error.facts,
        )
    if reason := mismatch(read_content(instance.run_directory), content_of(summary)):
        error = refusal(RefuseCode.FILTER_MISMATCH, reason)
        raise type(error)(error.what, where=where, do=error.do, **error.facts)
