"""What the patrol has found here: the round that is under way, the last whole one, and the ranges that differ.

    consumers/_patrolled.json    format 1

Guarantees: a round counts as whole when every range of it was heard of; those that were lost on the way or could not be
verified are counted as passed over, never as equal. A range that differs stays until it was found equal, a round that
began later has not found it, a compare has found both sites equal, or the secondary is filled again. The file is
replaced whole; what cannot be read counts as nothing found.
Leaves to others: how a range is verified (range_check.py), what is told of it (status/patrol.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from replicate.errors import ReplicateError
from replicate.region.sqlite.digest import SEQUENCES
from replicate.region.sqlite.range_digest import SCHEMA, unpacked_key
from replicate.system.files import read_private, replace_file

if TYPE_CHECKING:
    from replicate.wire.message import Check

FORMAT: Final = 1
NAME: Final = "_patrolled.json"
"""No peer can bear such a name."""
DIFFERENT_MAX: Final = 20
"""So many ranges that differ are kept."""
KEY_CHARACTERS_MAX: Final = 60
"""So many of a key's text are shown."""


class Outcome(Enum):
    """What the verification of a range has found."""

    EQUAL = "equal"
    DIFFERENT = "different"
    PASSED = "passed over"
    NOT_YET = "not yet"


class RangeVerdict(Struct, frozen=True):
    """`why`: of what was passed over, or cannot be read. `rows` and `digest`: of the range here, as it was then."""

    outcome: Outcome
    why: str = ""
    rows: int = 0
    digest: bytes = b""


class Round(Struct, frozen=True):
    """`began_wall_ns` names it. `told`: ranges that the source has told of so far; of them `passed` were not verified,
    and why the last one was not. `rows` were found equal. `ended_wall_ns`: 0 while it is under way."""

    began_wall_ns: int = 0
    told: int = 0
    rows: int = 0
    passed: int = 0
    why: str = ""
    at: str = ""
    """Where it stands: "region.table"."""
    ended_wall_ns: int = 0


class Different(Struct, frozen=True):
    """A range that was not the same at the transaction `seqno`: after the key `after`, up to the key `upto`, as texts
    ("" for none); on either side its rows and digest. It was found at `wall_ns`."""

    region: str
    table: str
    after: str
    upto: str
    seqno: int
    wall_ns: int
    rows: int
    digest: str
    source_rows: int
    source_digest: str

    def __str__(self) -> str:
        return f"{self.brief}: {self.keys}"

    @property
    def brief(self) -> str:
        """Without keys, which are values of rows."""
        return f"{self.name} differs at transaction {self.seqno}"

    @property
    def name(self) -> str:
        """Of the table, or of the schema."""
        return f"{self.region}.{self.table}" if self.table else f"the schema of region {self.region}"

    @property
    def keys(self) -> str:
        """Which keys, in words."""
        if not self.after and not self.upto:
            return "all rows"
        return " ".join(f"{word} {_short(key)}" for word, key in (("after", self.after), ("up to", self.upto)) if key)


_NONE: Final = Different("", "", "", "", 0, 0, 0, "", 0, "")


class Patrolled(Struct, frozen=True):
    """What is noted. `source`: the instance that was verified against. `here`: the round under way; `whole`: the last
    one that has come to its end."""

    source: str = ""
    here: Round = field(default_factory=Round)
    whole: Round = field(default_factory=Round)
    different: tuple[Different, ...] = ()


def taken(known: Patrolled, source: str, check: Check, verdict: RangeVerdict, wall_ns: int) -> Patrolled:
    """What is known after one more range. The rows of one that is told twice count once. A source that was killed tells
    again what it has told since it kept its place, with other borders perhaps: so what is passed over then counts."""
    if source != known.source:
        known = Patrolled(source, different=known.different)
    is_over = check.round_wall_ns == known.whole.began_wall_ns
    here = known.here
    if is_over:
        here = replace(known.whole, told=max(known.whole.told, check.number))
    elif check.round_wall_ns != here.began_wall_ns:
        here = Round(check.round_wall_ns)
    is_news = check.number > here.told
    lost = max(0, check.number - here.told - 1)
    is_passed, is_equal = verdict.outcome is Outcome.PASSED, verdict.outcome is Outcome.EQUAL
    at = f"{check.region}.{check.table}" if check.table else check.region
    here = replace(
        here,
        told=max(here.told, check.number),
        rows=here.rows + (check.rows if is_news and is_equal and check.table not in (SCHEMA, SEQUENCES) else 0),
        passed=here.passed + lost + is_passed,
        why=verdict.why if is_passed else "it was lost on the way" if lost else here.why,
        at=at,
    )
    key = (check.region, check.table, key_text(check.after), key_text(check.upto))
    different = known.different
    if not is_passed:
        different = tuple(one for one in different if (one.region, one.table, one.after, one.upto) != key)
    if verdict.outcome is Outcome.DIFFERENT:
        found = Different(
            *key, check.seqno, wall_ns, verdict.rows, verdict.digest.hex(), check.rows, check.digest.hex()
        )
        different = (*different[1 - DIFFERENT_MAX :], found)
    if is_over:  # it was whole before
        return Patrolled(source, known.here, replace(here, at=""), different)
    if not check.is_last:
        return Patrolled(source, here, known.whole, different)
    if not here.passed:  # whatever was found before it would have been found again
        different = tuple(one for one in different if one.wall_ns >= here.began_wall_ns)
    return Patrolled(source, Round(), replace(here, ended_wall_ns=wall_ns, at=""), different)


def key_text(packed: bytes) -> str:
    """A key for people, whole: `7`, `'a', x'00ff'`. No two keys have one text."""
    try:
        key = unpacked_key(packed)
    except (ValueError, TypeError):
        return packed.hex()
    return ", ".join(f"x'{value.hex()}'" if isinstance(value, bytes) else repr(value) for value in key or ())


def _short(key: str) -> str:
    return key if len(key) <= KEY_CHARACTERS_MAX else f"{key[:KEY_CHARACTERS_MAX]}..."


def patrolled_path(instance_path: Path) -> Path:
    """Where it stands."""
    return instance_path / "consumers" / NAME


def look_at_patrolled(instance_path: Path) -> Patrolled:
    """What is noted; nothing where there is no file, or none that makes sense."""
    try:
        made = json.loads(read_private(patrolled_path(instance_path)))
        if made["format"] != FORMAT:
            return Patrolled()
        return Patrolled(
            _text(made["source"]),
            Round(**_checked(Round(), made["here"])),
            Round(**_checked(Round(), made["whole"])),
            tuple(Different(**_checked(_NONE, one)) for one in made["different"]),
        )
    except (OSError, ReplicateError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Patrolled()


def note_patrolled(instance_path: Path, found: Patrolled) -> None:
    """Keep it. JournalIOError, DiskFullError, PermissionRefusedError: what was noted stands then."""
    facts = {"format": FORMAT, **to_builtins(found)}
    replace_file(patrolled_path(instance_path), (json.dumps(facts) + "\n").encode())


def settle_patrolled(instance_path: Path) -> None:
    """Both sites were proven equal: nothing differs any more. What writing a small file raises."""
    known = look_at_patrolled(instance_path)
    if known.different:
        note_patrolled(instance_path, replace(known, different=()))


def forget_patrolled(instance_path: Path) -> None:
    """The rows here are others now: what the patrol has found does not hold any more."""
    patrolled_path(instance_path).unlink(missing_ok=True)


def _checked(model: Round | Different, made: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of one such. ValueError for another type, or a number below 0."""
    for name, value in to_builtins(model).items():
        if type(made[name]) is not type(value) or (type(value) is int and made[name] < 0):
            raise ValueError(name)
    return made


def _text(value: object) -> str:
    return value if type(value) is str else ""
