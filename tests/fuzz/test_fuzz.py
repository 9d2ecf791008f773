"""Every decoder, fed with the kept corpus, with mutants of it, and (where atheris is installed) by a fuzzer.

A finding is an input: put it into tests/fuzz/corpus/TARGET/found-NAME once the decoder is mended, and it stays found.
"""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replicate.errors import DamagedError, InternalError
from replicate.limits import KIB, MIB
from tests.fuzz import oracle
from tests.fuzz.oracle import Finding, judge
from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
CORPUS_BYTES_MAX = 200 * KIB
MUTANTS = 250
FUZZING_S = 2
"""For each target but these; all of them together take about a minute, of which a run has a third (`turns`)."""
TOLD = ("wire_frame", "wire_receiver", "wire_source", "daemon_status", "metrics_request", "region_page")
"""Targets that raise nothing: what is wrong is an event, an answer, or "nothing is known", and the target judges it."""
SHORT = (
    *("consumer", "consumer_hold", "daemon_status", "daemon_word", "seed_answer", "seed_request", "archive_manifest"),
    *("conflict", "digest", "instance_file", "metrics_request"),
)
"""A second is enough: JSON is taken apart by the standard library."""


def mutant(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, inserted, removed or doubled; or numbers at the edges of what is possible."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(made) + 1)
        match chance.randrange(5):
            case 0 if place < len(made):
                made[place] ^= 1 << chance.randrange(8)
            case 1:
                made[place:place] = chance.randbytes(chance.randint(1, 8))
            case 2:
                del made[place : place + chance.randint(1, 8)]
            case 3:
                made[place:place] = made[place : place + 40]
            case _:
                size = chance.choice((1, 2, 4, 8))
                made[place : place + size] = chance.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * size
    return bytes(made)


def test_every_target_has_a_corpus_and_it_is_small() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    sizes = [path.stat().st_size for path in CORPUS.glob("*/*")]
    assert sum(sizes) <= CORPUS_BYTES_MAX


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_and_its_mutants(name: str) -> None:
    """Breaking a rule is a Finding. And the corpus leads somewhere: some of it is taken, some mutants are refused."""
    chance = random.Random(name)
    kept, mutants = [], []
    for path in sorted((CORPUS / name).iterdir()):
        data = path.read_bytes()
        kept.append(judge(f"{name} ({path.name})", TARGETS[name], data, traced=True))
        for number in range(MUTANTS):
            changed = mutant(data, chance)
            what = f"{name} ({path.name}, mutant {number}: {changed[:400].hex()})"
            mutants.append(judge(what, TARGETS[name], changed))
    assert "" in kept, f"the target takes nothing of its corpus: {kept}"
    assert any(mutants) is (name not in TOLD), "the target takes whatever it is given, or does so no longer"


@pytest.mark.slow
@pytest.mark.turns(15)
@pytest.mark.parametrize("name", TARGETS)
def test_atheris(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed")
    found, crashes = tmp_path / "found", tmp_path / "crashes"
    found.mkdir()
    crashes.mkdir()
    options = [
        f"-max_total_time={1 if name in SHORT else FUZZING_S}",
        "-seed=1",
        "-max_len=8192",
        "-timeout=20",
        f"-artifact_prefix={crashes}/",
    ]
    done = subprocess.run(
        [sys.executable, str(HERE / "run_target.py"), name, *options, str(found), str(CORPUS / name)],
        capture_output=True,
        timeout=240,
        check=False,
    )
    inputs = {path.name: path.read_bytes().hex() for path in crashes.iterdir()}
    output = (done.stdout + done.stderr)[-3000:].decode("utf-8", "replace")
    assert done.returncode == 0, f"{name}: these inputs (in hex) are findings: {inputs}\n{output}"
    assert not inputs
    assert "INITED" in (done.stdout + done.stderr).decode("utf-8", "replace"), f"nothing was fuzzed:\n{output}"


# The oracle itself.


def test_the_oracle_takes_a_value_and_an_error_of_ours() -> None:
    def refuses(data: bytes) -> None:
        raise DamagedError(f"{data!r} is damaged")

    assert judge("value", len, b"x") == ""  # type: ignore[arg-type]
    assert judge("refuses", refuses, b"x") == DamagedError("").code


def test_the_oracle_notices_other_errors() -> None:
    def ours(_: bytes) -> None:
        raise InternalError("our bug")

    with pytest.raises(Finding, match="ValueError is not one of our errors"):
        judge("foreign", int, b"x")  # type: ignore[arg-type]
    with pytest.raises(Finding, match="our own bug"):
        judge("ours", ours, b"x")


def test_the_oracle_notices_memory_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(data: bytes) -> None:
        until = time.thread_time() + len(data)
        while time.thread_time() < until:
            pass

    with pytest.raises(Finding, match="MiB of memory"):
        judge("greedy", lambda _: bytes(65 * MIB) and None, b"x", traced=True)
    monkeypatch.setattr(oracle, "TIME_S_MAX", 0.01)
    monkeypatch.setattr(oracle, "ENDLESS_S", 0.2)
    with pytest.raises(Finding, match="did not end"):
        judge("endless", busy, b"xxxx")
    monkeypatch.setattr(oracle, "ENDLESS_S", 10.0)
    with pytest.raises(Finding, match="of processor time"):
        judge("slow", lambda _: busy(b"") or ([n * n for n in range(400_000)] and None), b"x")


def test_what_takes_long_once_was_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[bytes] = []

    def first_slow(data: bytes) -> None:
        runs.append(data)
        monkeypatch.setattr(oracle, "TIME_S_MAX", 1.0 if len(runs) > 1 else -1.0)

    assert judge("held up", first_slow, b"x") == ""
    assert len(runs) == 2
