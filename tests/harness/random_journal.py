"""Journals of random histories for the reader of people: tables of several shapes, rows that live, move and die, large
transactions, comments, schema changes, several origins and segments; and what a plain decode of all of it says.

Guarantees: everything is a function of the seed. `plain_decode` uses none of what is tested: each frame is decoded by
itself, each part of a large transaction too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
from msgspec.structs import replace

from replicate.audit.selection import Selection, exactly
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import decode, read_part
from replicate.journal.walk import walk
from replicate.limits import PART_BYTES
from replicate.model.transaction import (
    Catalogue,
    DefinitionChange,
    History,
    Kind,
    LogComment,
    Op,
    RowChange,
    SequenceChange,
    TableDefinition,
    decode_change,
    mask_of,
)
from replicate.model.vector import SynchronizationVector
from tests.harness.journals import INSTANCE, ToyJournal, make_definition

Row = tuple[Any, ...]


def pack_change(op: int, ident: int, argument: object, values: list[Any]) -> bytes:
    return b"".join(map(msgpack.packb, (int(op), ident, argument, values)))


class RandomJournal:
    """A journal of `count` transactions, made with `seed`. `rows`: of each table, by key, what is there in the end;
    `stories`: of each row that is, or was, there the numbers of its changes, the newest first, by table and last
    key."""

    def __init__(self, directory: Path, seed: int, count: int = 60) -> None:
        self.random = random.Random(seed)
        history = History(INSTANCE, "east", 1, 0, SynchronizationVector(), "a new instance")
        self.toy = ToyJournal(directory, catalogue=Catalogue(histories=(history,)))
        plain, hidden = make_definition("plain"), make_definition("hidden", rowid=True)
        double = replace(make_definition("double", columns=4), key=(1, 0))
        self.definitions: dict[str, TableDefinition] = {one.table: one for one in (plain, hidden, double)}
        self.rows: dict[str, dict[Row, Row]] = {name: {} for name in self.definitions}
        self.alive: dict[tuple[str, Row], list[int]] = {}
        self.dead: dict[tuple[str, Row], list[int]] = {}
        self.toy.append(
            self.toy.maker.transaction(payload=self._joined([self._define(one) for one in self.definitions.values()]))
        )
        while self.toy.last_seqno < count:
            self._step()
        self.toy.sidecar.write(self.toy.last_seqno)
        self.toy.close()

    @property
    def chain(self) -> Chain:
        return self.toy.chain

    def _joined(self, changes: list[bytes]) -> tuple[bytes, int]:
        return b"".join(changes), 4 * len(changes)

    def _define(self, definition: TableDefinition) -> bytes:
        self.toy.catalogue = self.toy.catalogue.with_definition(definition)
        return pack_change(Op.DEFINE, definition.table_id, definition.version, definition.pack())

    def _step(self) -> None:
        toy, dice = self.toy, self.random.random()
        seqno = toy.maker.next_seqno
        if dice < 0.03:
            history = toy.maker.history(toy.last_seqno)
            toy.append(history)
            (content,) = decode(history).content
            assert isinstance(content, History)
            toy.catalogue = toy.catalogue.with_history(content)
        elif dice < 0.06:
            toy.append(toy.maker.null())
        elif dice < 0.12 and toy.segment.header.first_seqno < seqno:
            toy.switch()
        elif dice < 0.15 and toy.segment.header.first_seqno < seqno:  # an empty one would have its name
            changes = [self._change(seqno) for _ in range(self.random.randint(1, 4))]
            filler = pack_change(Op.COMMENT, 0, 0, ["y" * 20_000])
            changes += [filler] * (PART_BYTES // 20_000 + 2)
            changes += [self._change(seqno) for _ in range(self.random.randint(1, 4))]
            toy.adopt(b"".join(changes))
            toy.switch()
        else:
            changes = [self._change(seqno) for _ in range(self.random.choice((1, 1, 1, 2, 3, 6)))]
            if dice < 0.2:
                changes.append(pack_change(Op.COMMENT, 0, 0, [f"batch {self.random.randint(1, 3)}"]))
            if dice > 0.97:
                changes.append(pack_change(Op.SCHEMA, 0, "main", ["CREATE INDEX i ON plain (c1)"]))
            toy.append(toy.maker.transaction(payload=self._joined(changes)))

    def _value(self) -> Any:
        return self.random.choice((None, 1, 1.0, -(2**63), 2.5, "x", "it's", "a\0b", b"\x00\xff", "é" * 20, 70_000))

    def _change(self, seqno: int) -> bytes:
        name = self.random.choice(list(self.definitions))
        definition, rows = self.definitions[name], self.rows[name]
        dice = self.random.random()
        if dice < 0.04:
            definition = self.definitions[name] = replace(definition, version=definition.version + 1)
            return self._define(definition)
        if dice < 0.08:
            return pack_change(Op.SEQUENCE, definition.table_id, 0, [None, seqno])
        if dice < 0.45 or not rows:
            image: Row = tuple(self._value() for _ in range(definition.image_length))
            image = self._with_free_key(definition, image)
            return self._note(Op.INSERT, definition, None, image, seqno)
        before = rows[self.random.choice(list(rows))]
        if dice < 0.6:
            return self._note(Op.DELETE, definition, before, None, seqno)
        after = list(before)
        for at in range(len(after)):
            if at not in definition.key and self.random.random() < 0.4:
                after[at] = self._value()
        if self.random.random() < 0.3:
            after = list(self._with_free_key(definition, tuple(after)))
        return self._note(Op.UPDATE, definition, before, tuple(after), seqno)

    def _with_free_key(self, definition: TableDefinition, image: Row) -> Row:
        made = list(image)
        while True:
            for at in definition.key:
                made[at] = self.random.randint(0, 300)
            if key_of(definition, tuple(made)) not in self.rows[definition.table]:
                return tuple(made)

    def _note(self, op: Op, definition: TableDefinition, before: Row | None, after: Row | None, seqno: int) -> bytes:
        name, rows = definition.table, self.rows[definition.table]
        story: list[int] = []
        if before is not None:
            key = key_of(definition, before)
            del rows[key]
            story = self.alive.pop((name, key))
        story.insert(0, seqno)
        if after is None:
            assert before is not None
            self.dead[name, key_of(definition, before)] = story
            return pack_change(op, definition.table_id, 0, list(before))
        key = key_of(definition, after)
        rows[key] = after
        self.alive[name, key] = story
        self.dead.pop((name, key), None)
        if before is None:
            return pack_change(op, definition.table_id, 0, list(after))
        changed = [at for at in range(len(after)) if repr(after[at]) != repr(before[at])]
        mask = mask_of(changed, len(after))
        return pack_change(op, definition.table_id, mask, [*(after[at] for at in changed), *before])


def key_of(definition: TableDefinition, image: Row) -> Row:
    return tuple(image[at] for at in definition.key)


@dataclass
class Plain:
    """A transaction, decoded by itself. `changes`: views of them; of what has none its one record."""

    seqno: int
    kind: Kind
    origin: int
    csn: int
    changes: list[Any]
    known: dict[int, TableDefinition]

    def chosen(self, selection: Selection) -> list[Any] | None:
        """The changes that a selection asks for, None if not the transaction: in words that are not the product's."""
        if not selection.first_csn <= self.csn <= selection.last_csn:
            return None
        if selection.origins and self.origin not in selection.origins:
            return None
        texts = [one.text for one in self.changes if isinstance(one, LogComment)]
        if selection.comment is not None and not any(selection.comment in text for text in texts):
            return None
        if not (selection.tables or selection.ops or selection.key is not None):
            return self.changes
        return [one for one in self.changes if self._is_chosen(one, selection)] or None

    def _is_chosen(self, change: Any, selection: Selection) -> bool:
        definition = None
        if isinstance(change, RowChange | SequenceChange):
            definition = self.known[change.table_id]
        elif isinstance(change, DefinitionChange):
            definition = change.definition
        if selection.tables and (definition is None or definition.name not in selection.tables):
            return False
        if selection.ops and op_of(change) not in selection.ops:
            return False
        if selection.key is None:
            return True
        if not isinstance(change, RowChange):
            return False
        assert definition is not None
        keys = [key_of(definition, image) for image in (change.before, change.after) if image is not None]
        return any(
            all((type(value), value) in meant for value, meant in zip(key, selection.key, strict=True)) for key in keys
        )


def op_of(change: Any) -> Op | None:
    if isinstance(change, RowChange):
        return change.op
    names = {"LogComment": Op.COMMENT, "SchemaChange": Op.SCHEMA, "RegionChange": Op.REGION}
    names |= {"DefinitionChange": Op.DEFINE, "SequenceChange": Op.SEQUENCE}
    return names.get(type(change).__name__)


def plain_decode(chain: Chain) -> Iterator[Plain]:
    """Everything, one after the other."""
    known: dict[int, TableDefinition] = {}
    reader = ChainReader(chain, chain.oldest_seqno())
    _, end = chain.scan_last()
    while (found := reader.read(2**20, end.last_seqno)) is not None:
        if isinstance(found, LargeTransaction):
            stream = msgpack.Unpacker(max_array_len=2**16)
            for part in found.parts():
                stream.feed(bytes(read_part(part)[2]))
            flat = list(stream)
            changes: list[Any] = [decode_change(*flat[at : at + 4]) for at in range(0, len(flat), 4)]
            made = decode(found.commit_frame)
        else:
            for offset, head in walk(found.data):
                made = decode(found.data[offset : offset + head.frame_bytes])
                changes = list(made.content)
                known |= {one.definition.table_id: one.definition for one in changes if hasattr(one, "definition")}
                yield Plain(made.seqno, made.kind, made.origin, made.csn, changes, known)
            continue
        known |= {one.definition.table_id: one.definition for one in changes if hasattr(one, "definition")}
        yield Plain(made.seqno, made.kind, made.origin, made.csn, changes, known)
    reader.close()


def questions(plain: list[Plain], dice: random.Random) -> list[Selection]:
    """Nothing, each condition by itself, and some together."""
    names = sorted({one.name for one in plain[0].known.values()})
    rows = [(one, change) for one in plain for change in one.changes if hasattr(change, "before")]
    made = [Selection()]
    for _ in range(8):
        one, change = dice.choice(rows)
        definition = one.known[change.table_id]
        image = dice.choice([image for image in (change.before, change.after) if image is not None])
        low, high = sorted(dice.choice(plain).csn for _ in range(2))
        has_key = dice.random() < 0.4
        made.append(
            Selection(
                *((low, high) if dice.random() < 0.3 else (0, 2**64 - 1)),
                tables=frozenset({definition.name})
                if has_key
                else frozenset(dice.sample(names, dice.choice((0, 1, 2)))),
                origins=frozenset({dice.choice(plain).origin}) if dice.random() < 0.3 else frozenset(),
                ops=frozenset(dice.sample(list(Op), dice.choice((0, 0, 1, 3)))),
                key=exactly(key_of(definition, image)) if has_key else None,
                comment=dice.choice((None, None, None, "batch", "batch 2", "", "y")),
            )
        )
    return made
