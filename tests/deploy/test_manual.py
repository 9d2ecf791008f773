"""The manual hangs together: links lead somewhere, generated chapters are fresh, README is short and lists them all."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import click
import pytest

from replicate.cli.common import VerbCommand
from replicate.cli.help import help_
from replicate.cli.root import root
from replicate.errors import ERRORS, EXIT_CODES
from tests.deploy.test_demo_parts import load
from tests.harness.checkout import ROOT
from tests.harness.manual import MANUAL, README, anchor, chapter, headings, readme, section, without_blocks

write_manual = load("write_manual")
MADE = write_manual.pages()
PAGES = [README, *sorted(MANUAL.glob("*.md"))]
HAND_WRITTEN = [path for path in PAGES if path.name not in (*MADE, "CHANGES.md")]
README_LINES_MAX = 250
ROOMS = ("replicate", "source_server", "receiver_server", "update_process")
UNITS = [
    path.read_text(encoding="utf-8") for path in (ROOT / "deploy" / "systemd").glob("dualsite-*@.*") if path.is_file()
]
GLOBAL = {one.name for one in VerbCommand("any").params}


def links(path: Path) -> list[str]:
    """Where the links of a page lead, but for those to the web."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_blocks(path.read_text(encoding="utf-8")))
    return [link for link in found if not link.startswith("https://")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_to_files_and_headings_that_exist(path: Path) -> None:
    for link in links(path):
        name, _, heading = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.is_file(), link
        assert not heading or heading in map(anchor, headings(target)), link


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_two_headings_of_a_page_are_alike(path: Path) -> None:
    made = [anchor(heading) for heading in headings(path)]
    assert sorted(made) == sorted(set(made))


def test_the_links_that_are_looked_at_are_there() -> None:
    assert len(links(README)) > 25
    assert any("#" in link for link in links(MANUAL / "three-am.md"))


@pytest.mark.parametrize("name", MADE)
def test_generated_chapters_are_fresh(name: str) -> None:
    assert (MANUAL / name).read_text(encoding="utf-8") == MADE[name], "python deploy/write_manual.py"


def test_generated_chapters_do_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = write_manual.pages()
    for name, value in {"COLUMNS": "40", "HOME": str(tmp_path), "REPLICATE_HOME": str(tmp_path), "LANG": "C"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert write_manual.pages() == before
    assert not any(str(place) in text for text in before.values() for place in (ROOT, Path.home(), Path("/root")))


def test_a_changed_command_makes_its_chapter_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    before = write_manual.pages()
    monkeypatch.setattr(help_, "help", "Something else.")
    changed = write_manual.pages()
    assert {name for name in before if before[name] != changed[name]} == {"commands.md"}


def test_every_command_option_error_and_exit_code_is_in_its_chapter() -> None:
    pages = write_manual.pages()
    for name, command in root.commands.items():
        verbs = getattr(command, "commands", {})
        for path, one in [(name, command), *((f"{name} {verb}", it) for verb, it in verbs.items())]:
            told = section(pages["commands.md"], f"replicate {path}")
            for option in one.params:
                if isinstance(option, click.Option) and not option.hidden and option.name not in GLOBAL:
                    assert f"`{', '.join(option.opts)}" in told, (path, option.name)
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d+) \| (.+) \| (.+) \|$", pages["errors.md"], re.MULTILINE)
    assert {code: int(exit_code) for code, exit_code, *_ in rows} == {c: kind.exit_code for c, kind in ERRORS.items()}
    assert all(kind.remedy and "remedy" in vars(kind) for kind in ERRORS.values())
    assert all(f"| {code} | {meaning} |" in pages["errors.md"] for code, meaning in EXIT_CODES.items())


def test_what_errors_tell_one_to_type_is_there() -> None:
    """Commands that a remedy names, such as `seed --restart` or `replicate help disaster`."""
    for kind in ERRORS.values():
        for quoted in re.findall("`([^`]+)`", kind.remedy):
            words = quoted.removeprefix("replicate ").split()
            if words[0] == "help":
                assert (MANUAL / f"{words[1]}.md").is_file(), quoted
            elif words[0] in root.commands:
                verbs = getattr(root.commands[words[0]], "commands", None)
                assert verbs is None or len(words) < 2 or words[1] in verbs, quoted


def test_readme_is_short_and_lists_every_chapter() -> None:
    text = readme()
    assert len(text.splitlines()) <= README_LINES_MAX
    rows = re.findall(
        r"^\| \[([a-z-]+)\]\(deploy/manual/([A-Za-z-]+)\.md\) \| .+ \|$", section(text, "The manual"), re.MULTILINE
    )
    assert [name for name, _ in rows] == sorted(path.stem.lower() for path in MANUAL.glob("*.md"))
    assert all(name == file.lower() for name, file in rows)


def test_readmes_figures_are_those_of_the_chapter_on_performance() -> None:
    rows = re.findall(r"^\| (.*) \|$", section(readme(), "How fast it is"), re.MULTILINE)[2:]
    assert len(rows) > 4
    told = chapter("performance")
    for row in rows:
        for number in re.findall(r"\d+(?:[.,]\d+)+(?:, \d+)*", " ".join(row.split(" | ")[1:])):
            assert number in told, row


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda path: path.stem)
def test_prose_is_within_120_columns(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize("path", HAND_WRITTEN, ids=lambda path: path.stem)
def test_a_command_stands_on_one_line(path: Path) -> None:
    """Where `replicate help` prints it, a reader pastes it."""
    lines = without_blocks(path.read_text(encoding="utf-8")).splitlines()
    assert [line for line in lines if line.count("`") % 2] == []


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "CHANGES.md"], ids=lambda path: path.stem)
def test_the_house_style_is_kept(path: Path) -> None:
    """Of rule 4 what a pattern can find; contributing.md names the words."""
    if path.stem == "contributing":
        return
    text = without_blocks(path.read_text(encoding="utf-8")).replace("too far behind? read", "")  # README's picture
    assert re.findall(r"(?i)\b(?:anew|can not|behind)\b", text) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_chapters_that_are_named_exist(path: Path) -> None:
    for topic in re.findall(r"replicate help ([a-z-]+)", path.read_text(encoding="utf-8")):
        assert (MANUAL / f"{topic}.md").is_file() or topic == "changes", topic


def typed(text: str) -> list[str]:
    """Commands of ours that a page shows, in blocks or in a sentence."""
    plain = without_blocks(text)
    lines = re.findall(r"^    (?:(?:both|primary|secondary) +)?(replicate .*)$", plain, re.MULTILINE)
    quoted = re.findall(r"`([^`\n]+)`", plain)
    return [*lines, *(one for one in quoted if one.startswith("replicate ") or one.split()[0] in root.commands)]


def check_command(text: str) -> None:
    """Raises KeyError or click.NoSuchOption where there is no such verb or option. Values may be left out."""
    words = shlex.split(re.split(r" #|[>|]", text)[0].replace("…", ""))
    command: click.Command = root
    words = words[words[0] == "replicate" :]
    while isinstance(command, click.Group) and words:
        if words[0] in ("-i", "--json"):
            words = words[2 if words[0] == "-i" else 1 :]
        elif words[0].startswith("-") or words[0].isupper():
            break
        else:
            command, words = command.commands[words[0]], words[1:]
    with contextlib.suppress(click.BadOptionUsage):
        command.make_parser(click.Context(command)).parse_args(words)


@pytest.mark.parametrize(
    "wrong", ["replicate -i one seeds", "replicate --json seed --form x", "update begin", "wait --n 3"]
)
def test_a_command_that_is_not_there_is_found(wrong: str) -> None:
    with pytest.raises((KeyError, click.NoSuchOption)):
        check_command(wrong)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_that_are_shown_can_be_typed(path: Path) -> None:
    for command in typed(path.read_text(encoding="utf-8")):
        try:
            check_command(command)
        except (KeyError, click.NoSuchOption) as error:
            pytest.fail(f"{command}: {error!r}")


def test_the_product_names_chapters_that_are_there_and_no_page_that_is_not_installed() -> None:
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    texts = [
        path.read_text(encoding="utf-8")
        for path in (*sources, ROOT / "deploy/alerts/dualsite.yml", ROOT / "deploy/demo")
    ]
    named = {topic for text in texts for topic in re.findall(r"replicate help ([a-z][a-z-]*)", text)}
    assert {"disaster", "regions", "two-hosts", "errors"} <= named
    assert named <= {path.stem.lower() for path in MANUAL.glob("*.md")}
    assert [path for path, text in zip(sources, texts, strict=False) if "README" in text] == []
    documented = re.findall(r"^Documentation=.*/share/dualsite/(.*)$", "\n".join(UNITS), re.MULTILINE)
    assert len(documented) == 10
    assert [page for page in documented if not (ROOT / page).is_file()] == []
