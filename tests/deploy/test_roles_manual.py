"""The chapter on roles is true: its commands, as they stand there, with real daemons and an application."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.test_readme import Shell, beginning
from tests.harness.checkout import ROOT
from tests.harness.manual import MANUAL, chapter, commands, headings, section

DAEMONS = tuple(f"{name} {daemon}" for name in ("primary", "secondary") for daemon in ("source", "receiver", "update"))
LAST = "n=$(replicate -i {} status | sed -n 's/.*last written \\([0-9]*\\),.*/\\1/p')"
WRITE = "python deploy/demo_application.py write --instance {} --seconds 1"


SENT = "timeout 60 sh -c \"until replicate -i primary lost list | grep 'sent to secondary'; do sleep 0.2; done\""
"""It travels beside the stream."""


def lines_of(title: str) -> list[str]:
    """The commands of a section, its N in a variable of the shell."""
    found = commands(section(chapter("roles"), title))
    return [re.sub(r"(--seqno|--expect|--to) N", r'\1 "$n"', line) for line in found]


ELSEWHERE = {
    "Daemons follow the role": "tests/system/test_modes.py",
    "A primary was restored from a backup": "tests/system/test_restored_primary.py",
}
"""Sections whose commands another file runs."""


def test_the_commands_of_every_section_are_run() -> None:
    text = chapter("roles")
    titles = [title for title in headings(MANUAL / "roles.md")[1:] if commands(section(text, title))]
    assert len(titles) > 9
    here = Path(__file__).read_text(encoding="utf-8")
    for title in titles:
        run = (ROOT / ELSEWHERE[title]).read_text(encoding="utf-8") if title in ELSEWHERE else here
        assert f'"{title}")' in run, f"no test runs the commands of: {title}"


def begun() -> list[str]:
    return [line.replace("--seconds 3", "--seconds 1") for line in beginning()]


def level(primary: str, secondary: str) -> list[str]:
    """The secondary has all that the primary has, and both are equal."""
    wait = f'replicate -i {secondary} wait --seqno "$n" --timeout 60'
    return [LAST.format(primary), wait, f"replicate -i {primary} compare --with {secondary}"]


@pytest.mark.slow
def test_a_planned_change_by_one_command(tmp_path: Path) -> None:
    """And back, on the site that is secondary then."""
    change = lines_of("A planned change")
    assert [line for line in change if line.endswith("switchover --to secondary")]
    back = ["replicate -i primary switchover", WRITE.format("primary"), *level("primary", "secondary")]
    lines = [*begun(), *change, WRITE.format("secondary"), *level("secondary", "primary"), *back]
    told = Shell(tmp_path).run(lines, DAEMONS)
    assert "secondary could be primary, and the way back works; nothing was changed" in told
    assert re.search(r"secondary is primary, after transaction \d+; primary is secondary", told)
    assert re.search(r"proved: of origin \w{8} both have all up to \d+, chain \w{16}", told)
    assert re.search(r"writers waited for \d+\.\d\d s at most", told)
    assert len(re.findall("at seqno [0-9]+: equal", told)) == 3  # at the beginning, too


@pytest.mark.slow
def test_a_third_site_goes_on_from_the_new_primary(tmp_path: Path) -> None:
    """There, back, and there again: without a seed."""
    *ready, change, status = (line.partition("#")[0] for line in lines_of("A third site"))
    third = [
        "replicate -i primary peer add third 127.0.0.1:7431",
        "replicate instance create third --role secondary --network UUID",
        "replicate -i third config set receiver.listen 127.0.0.1:7431",
        "replicate -i third receiver start",
        "replicate -i primary source start --peer third",
        "replicate -i third seed --from primary",
        "replicate -i third update start",
    ]
    way_back = lines_of("A planned change")[:4]
    seen = until(status, "source secondary: connected")
    back = until("replicate -i third status", "source primary: connected")
    lines = [
        *begun(), *third, *way_back, *ready,
        until("replicate -i secondary source status --peer third", "mode *passive"),
        until("replicate -i third status", "source primary: connected"),
        change, WRITE.format("secondary"), seen, *level("secondary", "third"),
        until("replicate -i secondary switchover --to primary --dry-run", "could be primary"),
        "replicate -i secondary switchover --to primary", back,
        until("replicate -i primary switchover --to secondary --dry-run", "could be primary"),
        change, WRITE.format("secondary"), seen, *level("secondary", "third"), *level("secondary", "primary"),
    ]  # fmt: skip
    names = (*DAEMONS, "third receiver", "third update")
    told = Shell(tmp_path).run(lines, names)
    assert len(re.findall("secondary and third at seqno [0-9]+: equal", told)) == 2
    assert len(re.findall(r"secondary is primary, after transaction \d+; primary is secondary", told)) == 2


@pytest.mark.slow
def test_a_planned_change_step_by_step(tmp_path: Path) -> None:
    lines = [*begun(), LAST.format("primary"), *lines_of("Step by step"), WRITE.format("secondary")]
    told = Shell(tmp_path).run([*lines, *level("secondary", "primary")], DAEMONS)
    assert "secondary is primary, with all transactions up to" in told
    assert re.search("secondary and primary at seqno [0-9]+: equal", told)


@pytest.mark.slow
def test_a_disaster_a_return_and_what_was_lost(tmp_path: Path) -> None:
    promoted = lines_of("After a disaster")
    assert promoted[-1] == "replicate -i secondary promote"
    promoted[-1] += " || [ $? = 75 ]"  # the primary was heard a moment ago
    lost = [
        line.replace("FILE", "sites/secondary-lost-primary-*.jsonl")
        .replace("list", "list || [ $? = 1 ]")
        .replace("--dry-run", "--dry-run || [ $? = 1 ]")
        for line in lines_of("What was lost")
    ]
    assert len(lost) == 5
    skips = next(place for place, line in enumerate(lost) if "--on-conflict" in line)
    lost[skips] += " || [ $? = 1 ]"
    lines = [
        *begun(),
        LAST.format("primary"),
        'replicate -i secondary wait --seqno "$n" --timeout 60',
        "replicate -i primary source stop",
        WRITE.format("primary"),  # that nobody else has
        *promoted,
        "replicate -i secondary promote --force",
        WRITE.format("secondary"),
        *lines_of("The old primary comes back"),
        *level("secondary", "primary"),
        SENT,
        *lost,
        *level("secondary", "primary"),
    ]
    told = Shell(tmp_path).run(lines, DAEMONS)
    assert len(re.findall("secondary and primary at seqno [0-9]+: equal", told)) == 2
    assert re.search(r"primary is back at \d+, from \d+", told)
    assert "would be applied" in told or "would be skipped" in told


@pytest.mark.slow
def test_a_return_by_itself(tmp_path: Path) -> None:
    lines = [
        *begun(),
        LAST.format("primary"),
        'replicate -i secondary wait --seqno "$n" --timeout 60',
        "replicate -i primary source stop",
        WRITE.format("primary"),  # that nobody else has
        *lines_of("After a disaster")[:-1],
        "replicate -i secondary promote --force",
        WRITE.format("secondary"),
        *lines_of("The old primary comes back by itself"),
        SENT,  # so it has gone back: before that it has as many of its own
        *level("secondary", "primary"),
        "replicate -i secondary lost list || [ $? = 1 ]",
    ]
    told = Shell(tmp_path).run(lines, DAEMONS)
    assert re.search("secondary and primary at seqno [0-9]+: equal", told)
    assert re.search(r"secondary-lost-primary-\d+-\d+.jsonl +rollback of primary, .* wait", told)


PARTED = [
    LAST.format("primary"),
    'replicate -i secondary wait --seqno "$n" --timeout 60',
    "replicate -i primary source stop",
    WRITE.format("primary"),  # that nobody else has
    "replicate -i secondary receiver stop",
    "replicate -i secondary promote --force",
    WRITE.format("secondary"),
]


def until(command: str, text: str) -> str:
    """It says so, soon."""
    return f"timeout 60 sh -c \"until {command} | grep -q '{text}'; do sleep 0.2; done\""


GAVE_WAY = until("replicate -i primary instance show", "role *secondary")


@pytest.mark.slow
def test_the_old_primary_comes_back_as_a_primary(tmp_path: Path) -> None:
    lines = lines_of("The old primary comes back as a primary")
    at = next(place for place, line in enumerate(lines) if "status" in line)
    status = "replicate -i primary status || [ $? = 1 ]"
    write = "import replicate; replicate.connect('primary', timeout=0.2).execute('BEGIN IMMEDIATE')"
    refused = f'! python -c "{write}" 2>refused'
    told = Shell(tmp_path).run(
        [
            *begun(),
            *PARTED,
            *lines[:at],
            GAVE_WAY,
            status,
            refused,
            "grep 'Write on secondary' refused",
            *lines[at + 1 :],
            *level("secondary", "primary"),
        ],
        DAEMONS,
    )
    alone = (
        r"secondary took over after transaction \d+, and no writes are taken here: \d+ transactions after it are only"
    )
    assert re.search(alone, " ".join(told.split()))
    assert re.search(r"primary is back at \d+, from \d+", told)
    assert re.search("secondary and primary at seqno [0-9]+: equal", told)


@pytest.mark.slow
def test_two_primaries(tmp_path: Path) -> None:
    """The old primary takes its role back, and the one that took over goes back."""
    fenced = lines_of("The old primary comes back as a primary")[:3]
    lines = lines_of("Two primaries")
    forced = next(place for place, line in enumerate(lines) if "--force" in line)
    lines[forced] += " >forced; cat forced; n=$(sed -n 's/.*rollback --to \\([0-9]*\\).*/\\1/p' forced)"
    told = Shell(tmp_path).run(
        [
            *begun(),
            *PARTED,
            *fenced,
            GAVE_WAY,
            *lines[: forced + 1],
            WRITE.format("primary"),
            *lines[forced + 1 :],
            *level("primary", "secondary"),
        ],
        DAEMONS,
    )
    assert re.search(r"it took its role back from secondary, which had taken over after \d+", told)
    assert re.search(r"secondary is back at \d+, from \d+", told)
    assert len(re.findall("primary and secondary at seqno [0-9]+: equal", told)) == 2  # at the beginning, too


@pytest.mark.slow
def test_hold_everything_for_a_while(tmp_path: Path) -> None:
    lines = [line.partition("#")[0] for line in lines_of("Hold everything for a while")]
    lines[1] += " || [ $? = 1 ]"
    write = "import replicate; replicate.connect('primary', timeout=0.2).execute('BEGIN IMMEDIATE')"
    refused = f'! python -c "{write}" 2>refused'
    lines[1:1] = [refused, "grep 'instance freeze off' refused"]
    told = Shell(tmp_path).run(
        [*begun(), *lines, WRITE.format("primary"), *level("primary", "secondary")],
        DAEMONS,
    )
    assert "primary is frozen, at transaction" in told
    assert "FROZEN warning: the instance is frozen by" in told
    assert len(re.findall("primary and secondary at seqno [0-9]+: equal", told)) == 2
