"""`replicate audit` as a process of its own: its memory does not grow with what it reads, be that a million
transactions or one of a million rows, forwards or backwards."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest

from replicate.model.transaction import Op, mask_of
from tests.benchmarks.bench_audit import make_journal
from tests.harness.journals import ToyJournal, define_payload, make_definition
from tests.harness.memory import ran

FEW, MANY, MILLION = 35_000, 95_000, 1_000_000
"""Of the few there is more than the window of 4 MiB that is read of the newest segment."""
GROWTH_MIB = 3.0
"""Of many each transaction could leave 50 bytes, and 3 of a million; a number in a list takes 40."""

Journals = Callable[[str, int], Path]


def one_transaction(directory: Path, rows: int) -> None:
    """A journal whose third transaction is a large one: rows of customer, each inserted and then updated."""
    toy = ToyJournal(directory)
    definition = make_definition()
    toy.append(toy.maker.transaction(payload=define_payload(definition)))
    toy.catalogue = toy.catalogue.with_definition(definition)
    toy.write(1)
    ident, mask = definition.table_id, mask_of((1,), 3)
    pack = msgpack.packb
    heads = pack(int(Op.INSERT)) + pack(ident) + pack(0), pack(int(Op.UPDATE)) + pack(ident) + pack(mask)
    rest = pack("x" * 90)
    insert = [heads[0] + b"\x93" + pack(n) + pack(f"name {n}") + rest for n in range(rows // 2)]
    update = [heads[1] + b"\x94" + pack("b") + pack(n) + pack(f"name {n}") + rest for n in range(rows // 2)]
    toy.adopt(b"".join([*insert, *update]))
    toy.sidecar.write(toy.last_seqno)
    toy.close()


SHAPES: dict[str, Callable[[Path, int], object]] = {"many": make_journal, "one": one_transaction}

ASKED: dict[str, tuple[list[str], Callable[[int], int], Callable[[int], int]]] = {
    # The verb and its options; how many lines it has of so many transactions, and of one of so many rows.
    "forward": (["show"], lambda count: 2 * count + 6, lambda rows: rows + 5),
    "backward": (["show", "--newest-first"], lambda count: 2 * count + 6, lambda rows: rows + 5),
    "count": (["count", "--by", "hour,table,op"], lambda _: 10, lambda _: 5),
    "row": (["row", "customer", "303"], lambda _: 2, lambda _: 3),
    "undo": (
        ["undo", "--table", "customer", "--op", "update"],
        lambda count: 3 * (-(-count // 6)) + 12,
        lambda rows: rows + 13,
    ),
}


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journals]:
    """Makes each journal once, and removes all of them at the end."""
    directory = tmp_path_factory.mktemp("audited")

    def made(shape: str, count: int) -> Path:
        path = directory / f"{shape}{count}"
        if not path.exists():
            SHAPES[shape](path, count)
        return path

    yield made
    shutil.rmtree(directory)


def check_growth(journals: Journals, shape: str, asked: str, most: int) -> None:
    """AssertionError where the memory for so many is more than that for few."""
    options, of_many, of_one = ASKED[asked]
    lines_of = of_many if shape == "many" else of_one
    peaks = []
    for count in (FEW, most):
        command = [sys.executable, "-m", "replicate.cli.main", "audit", *options]
        found = ran([*command, "--journal", str(journals(shape, count))])
        assert found.lines == lines_of(count)
        peaks.append(found.peak_mib)
    assert peaks[1] - peaks[0] < GROWTH_MIB, peaks


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("asked", ASKED)
def test_memory_does_not_grow_with_what_is_read(journals: Journals, shape: str, asked: str) -> None:
    check_growth(journals, shape, asked, MANY)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("asked", ASKED)
def test_memory_does_not_grow_with_a_million(journals: Journals, shape: str, asked: str) -> None:
    check_growth(journals, shape, asked, MILLION)
