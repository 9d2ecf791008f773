"""What a source said when it refused this secondary for transactions that it has not: kept for `rollback` without --to.

    run/rollback.json    whose word it is, which origins, up to where they are common, who took over, our incarnation

Guarantees: one small file, replaced whole and durably; what cannot be read counts as not there. It counts only while
the instance is the incarnation that was refused: a change of role and a rollback end it. No point is given out that
our own journal does not prove: another instance wrote the origin that was ended, of each origin that is named it holds
just there what the source calls common, and more of the first one after it. Or nothing stands after it but records
of incarnations in which nothing was written: those may go on anybody's word.
Leaves to others: connections (the Receiver Server notes and forgets it), and how one goes back (rollback.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from replicate.audit.show import shown_between
from replicate.door.recovery.opening import make_chain
from replicate.errors import DivergedError, JournalMissingError, ReplicateError, UsageError
from replicate.instance.file import check_name
from replicate.instance.instance import Instance
from replicate.journal.catalogue import catalogue_before
from replicate.journal.chain import Chain
from replicate.model.transaction import Catalogue, History
from replicate.model.vector import U64_MAX, SynchronizationVector
from replicate.roles.rollback_survey import survey
from replicate.system.files import read_private, replace_file

NAME: Final = "rollback.json"
FORMAT: Final = 1
OTHERS_MAX: Final = 16


class SourceVerdict(Struct, frozen=True):
    """`source` has of `origin` only up to `common`, and what is more begins in our journal at `more_from` (0: it cannot
    know); `ended_by`: who took over there, "" where nobody did. `others`: (origin, common) of those of which we have
    more, too. `incarnation`: ours."""

    source: str
    incarnation: int
    origin: int
    common: int
    more_from: int
    ended_by: str
    others: tuple[tuple[int, int], ...] = ()

    @property
    def may_lead_back(self) -> bool:
        """Whether it is worth a try: somebody took over, or it has met nothing of that origin, which may be empty."""
        return bool(self.ended_by) or (self.common == 0 and self.more_from == 0)

    @property
    def told(self) -> str:
        """As a sentence without its full stop."""
        return f"{self.source} says that {self.ended_by} took over after transaction {self.more_from - 1}"


def verdict_of(source: str, incarnation: int, facts: Mapping[str, Any]) -> SourceVerdict | None:
    """Of the facts of a refusal (wire/resync.py), which a peer has sent; None where they make no sense."""
    try:
        others = tuple(
            (_number(facts[f"origin_{number}"]), _number(facts[f"common_{number}"]))
            for number in range(1, OTHERS_MAX)
            if f"origin_{number}" in facts
        )
        return SourceVerdict(
            check_name(source, "instance"),
            incarnation,
            _number(facts["origin"]),
            _number(facts["common_origin_seqno"]),
            _number(facts.get("more_from", 0)),  # releases before this one do not say these
            check_name(ended_by, "instance") if (ended_by := facts.get("ended_by", "")) else "",
            others,
        )
    except (KeyError, TypeError, UsageError):
        return None


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= U64_MAX:
        raise TypeError("this is no number of ours")
    return value


def _path(instance: Instance) -> Path:
    return instance.run_directory / NAME


def note_verdict(instance: Instance, verdict: SourceVerdict) -> None:
    """JournalIOError, DiskFullError, PermissionRefusedError: what was noted before stands then."""
    replace_file(_path(instance), (json.dumps({"format": FORMAT, **to_builtins(verdict)}) + "\n").encode())


def forget_verdict(instance: Instance) -> None:
    """The source takes us, or we have gone back. Where it cannot be removed it still has to prove itself."""
    with suppress(OSError):
        _path(instance).unlink()


def look_at_verdict(instance: Instance) -> SourceVerdict | None:
    """The one that counts now, if there is one."""
    try:
        facts = json.loads(read_private(_path(instance)))
        if facts.pop("format") != FORMAT:
            return None
        found = SourceVerdict(**facts)
        found = replace(found, others=tuple((_number(origin), _number(common)) for origin, common in found.others))
        for number in (found.origin, found.common, found.more_from, found.incarnation):
            _number(number)
        for name in (found.source, found.ended_by or found.source):
            check_name(name, "instance")
    except (OSError, ReplicateError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return found if found.incarnation == instance.content.incarnation else None


def may_be_named(instance: Instance, verdict: SourceVerdict | None, histories: tuple[History, ...]) -> bool:
    """Whether an operator may name the point. `histories`: of our journal. One that was primary last knows of none who
    took over, and who demoted it does. One that follows another has only what others have, or the only copy of it: it
    goes back where a source has said that somebody took over from who wrote that."""
    if not histories or histories[-1].instance == instance.content.uuid:
        return True
    return verdict is not None and _is_taken_over(verdict, histories)


def proven_point(instance: Instance, last: int) -> tuple[int, str]:
    """The last common transaction, and whose word that is, as a sentence without its full stop. `last`: the last of our
    journal, which nobody appends to.

    Raises UsageError (no source has said so, or what it said is past, or it alone has less: nobody took over),
    DivergedError (our journal is another one there), JournalMissingError (it does not reach back so far) and what
    reading the journal does."""
    verdict, chain = look_at_verdict(instance), make_chain(instance)
    where, seed = str(instance.path), f"Seed it again: replicate -i {instance.named} seed --restart"
    known = catalogue_before(chain, last + 1)
    begins = 0 if verdict is None else _empty_from(verdict, known, chain, last)
    if verdict is not None and begins:
        return begins - 1, f"{verdict.source} lacks what was begun at {begins}, and nothing was written since"
    if verdict is None or known.vector.last(verdict.origin) <= verdict.common:
        may = may_be_named(instance, verdict, known.histories)
        command = f"replicate -i {instance.named} rollback --to N"
        by_name = f". Or name the last common transaction: {command}; promote has printed it, too" if may else ""
        raise UsageError(
            "no point is named to go back to, and no source has refused this secondary for what it has more",
            where=where,
            do=f"Start its Receiver Server, and the Source Server of the primary: the refusal is kept, and tells it. "
            f"Then this again{by_name}",
        )
    if not _is_taken_over(verdict, known.histories):
        raise UsageError(
            f"{verdict.source} has less than this secondary, and nobody has taken over from origin "
            f"{verdict.origin:08x}: what is here may be the only copy",
            where=where,
            do=f"Look whether {verdict.source} was restored from a backup, and at what is here: replicate -i "
            f"{instance.named} journal show. To have {verdict.source} get back what it had: replicate -i "
            f"{verdict.source} replica restore, there. If what is here is to go all the same: replicate -i "
            f"{instance.named} promote, demote, and then rollback --to N, which keeps it in a file",
        )
    point = verdict.more_from - 1
    if point + 1 < chain.oldest_seqno():
        raise JournalMissingError(
            f"the journal begins with transaction {chain.oldest_seqno()}: it cannot be taken back to {point}, where "
            f"{verdict.ended_by} took over",
            where=where,
            do=seed,
            seqno=point + 1,
        )
    there = catalogue_before(chain, point + 1).vector if point < last else None
    if there is None or there.last(verdict.origin) != verdict.common or _has_more(there, verdict.others):
        raise DivergedError(
            f"transaction {point}, which {verdict.source} calls the last common one, is another one here",
            where=where,
            do=seed,
        )
    return point, verdict.told


def _empty_from(verdict: SourceVerdict, known: Catalogue, chain: Chain, last: int) -> int:
    """Where the records of incarnations begin that the source has not met, if nothing was written after them; else
    0."""
    unmet = {verdict.origin, *(origin for origin, _ in verdict.others)}
    begins = min((one.seqno for one in known.histories if one.origin.key in unmet and one.seqno), default=0)
    if not verdict.may_lead_back or verdict.ended_by or begins < chain.oldest_seqno():
        return 0
    found = survey(shown_between(chain, begins, last, parts=False))
    return 0 if found.transactions or found.barred_at else begins


def _is_taken_over(verdict: SourceVerdict, histories: tuple[History, ...]) -> bool:
    """Whether another instance than the one that wrote the origin took over from it. The same one has only begun again:
    from a backup, mostly, which lacks what is here."""
    wrote = {one.name for one in histories if one.origin.key == verdict.origin}
    return bool(verdict.ended_by and verdict.more_from and wrote and verdict.ended_by not in wrote)


def _has_more(there: SynchronizationVector, others: tuple[tuple[int, int], ...]) -> bool:
    return any(there.last(origin) > common for origin, common in others)
