"""Writes the generated chapters of the manual again: commands.md, settings.md and errors.md.

    python deploy/write_manual.py

Guarantees: the text is the same on every machine; a test fails while a chapter is not what this would write.
Leaves to others: the other chapters, which are written by hand.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from replicate.cli.common import Once, VerbCommand
from replicate.cli.root import root
from replicate.errors import ERRORS, EXIT_CODES, ReplicateError
from replicate.model.findings import CODES
from replicate.settings.load import SETTINGS, shown
from replicate.settings.table import Setting
from replicate.settings.users import users_of

MANUAL: Final = Path(__file__).resolve().parent / "manual"
GENERATED: Final = "The product itself writes this chapter (`deploy/write_manual.py`)."

COMMANDS: Final = f"""# Commands: what each of them takes

{GENERATED}
Each command stands here under its name, with its arguments and options.

* Every command takes the options `-i INSTANCE` (or the variable `REPLICATE_INSTANCE`), `--json` and `--debug`, before
  or after its name. INSTANCE is a directory, or a name below `REPLICATE_HOME`. With `--json` the result is one JSON
  value on standard output.
* A name of another product (`failover`, `showbacklog`, `backup` …) is answered with the name that it has here.
* On a terminal, what takes long (`seed`, `compare`, `digest`, `region add`, `replay`, `archive`) shows in one line how
  far it is, how quick it is, about how long it still takes, and what waits meanwhile. Elsewhere it shows nothing.
* A reader that stops reading (`replicate journal show | head -1`) changes no exit code, and neither does an output that
  was closed before. A daemon goes on without its outputs.
* Bash completes commands, options, instances, peers, regions, codes, settings and chapters after
  `eval "$(replicate completion bash)"` in `~/.bashrc`. For zsh it is the same with `zsh`, for fish
  `replicate completion fish | source`. After `deploy/install` bash does so without that line, where Debian's package
  `bash-completion` is installed.
* What the exit codes mean stands in [errors](errors.md#exit-codes).
"""

SETTINGS_TEXT: Final = f"""# Settings: every line of replicate.toml

{GENERATED}
How a setting is changed, and from when on it counts, stands in [services](services.md#settings).

Times are in seconds. A size may have a unit, such as `"64 MiB"`. "Read by" says who must be started again for a change
to count; where nobody is named, the next command reads it.
"""

ERRORS_TEXT: Final = f"""# Errors and findings: every code, and what to do

{GENERATED}
`replicate status --explain CODE` says what a code means, without an instance.

An error is one line on standard error: `CODE: what happened [where]. What to do`. A code never changes its meaning, so
that scripts and alerts may match on it. With `--json` there is an object on standard output, too, with `code`, `what`,
`where`, `do` and `exit_code`. No result has an `exit_code`. The object comes last where results came before it. A
command line that makes no sense gets one as well. The line for people stays on standard error.

## Exit codes

"""

FINDINGS_TEXT: Final = """
## Findings

`replicate status` prints each finding with its text, which says what and where, and with the command that mends it.
Errors and warnings make it end with exit code 1.

"""

VALUES: Final = {"integer range": "N", "float range": "NUMBER"}
"""What stands for a value of a type, where the option has no word for it; for any other type it is WORD."""


def pages() -> dict[str, str]:
    """By file name, what each generated chapter says."""
    return {
        "commands.md": "\n".join([COMMANDS.rstrip("\n"), *_commands()]) + "\n",
        "settings.md": SETTINGS_TEXT + "\n".join(_settings()) + "\n",
        "errors.md": ERRORS_TEXT
        + "\n".join([*_exit_codes(), *_errors()])
        + "\n"
        + FINDINGS_TEXT
        + "\n".join(_findings())
        + "\n",
    }


def _table(*rows: Iterable[str]) -> Iterator[str]:
    """Rows of a table, the first of which has the headings."""
    for number, row in enumerate(rows):
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield "|" + "---|" * len(cells)


# Commands.


def _commands() -> Iterator[str]:
    listed = sorted(root.commands.items())
    yield ""
    yield from _table(
        ("command", "what it does"), *((f"[`{name}`](#replicate-{name})", _first(one)) for name, one in listed)
    )
    for name, command in listed:
        yield from _command(f"replicate {name}", command, 2)


def _command(path: str, command: click.Command, level: int) -> Iterator[str]:
    """A section, and one below it for each verb of a noun."""
    shown_parameters = [one for one in command.params if one.name not in _global_names()]
    yield f"\n{'#' * level} {path}\n"
    if isinstance(command, click.Group):
        verbs = f"Verbs: {', '.join(f'`{verb}`' for verb in sorted(command.commands))}."
        if command.invoke_without_command:
            yield f"{_help(command)}\n\n{verbs}"
            yield from _options(shown_parameters)
        else:
            yield f"{_first(command)} {verbs}"
        for verb, one in sorted(command.commands.items()):
            yield from _command(f"{path} {verb}", one, level + 1)
        return
    arguments = [
        one.make_metavar(click.Context(command)) for one in shown_parameters if isinstance(one, click.Argument)
    ]
    words = [path, *(["[OPTIONS]"] if len(arguments) < len(shown_parameters) else []), *arguments]
    yield f"    {' '.join(words)}\n"
    yield _help(command)
    yield from _options(shown_parameters)


def _options(parameters: Sequence[click.Parameter]) -> Iterator[str]:
    options = [one for one in parameters if isinstance(one, click.Option) and not one.hidden]
    if options:
        yield ""
        yield from _table(("option", "what it says"), *((f"`{_spelling(one)}`", _meaning(one)) for one in options))


@functools.cache
def _global_names() -> set[str | None]:
    return {one.name for one in VerbCommand("any").params}


def _help(command: click.Command) -> str:
    """The help of a command, a paragraph a line: where a line ends there is the docstring's matter."""
    paragraphs = inspect.cleandoc(command.help or "").replace("\b", "").split("\n\n")
    return "\n\n".join(re.sub(r"\s*\n\s*", " ", paragraph.strip()) for paragraph in paragraphs)


def _first(command: click.Command) -> str:
    return _help(command).partition("\n\n")[0]


def _spelling(option: click.Option) -> str:
    """As it is typed, with the word that stands for its value."""
    names = ", ".join(option.opts) + "".join(f"/{name}" for name in option.secondary_opts)
    if option.is_flag or option.count:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {'|'.join(map(str, option.type.choices))}"
    return f"{names} {option.metavar or VALUES.get(option.type.name, 'WORD')}"


def _meaning(option: click.Option) -> str:
    notes = ["needed"] if option.required else []
    if option.multiple and not isinstance(option, Once):
        notes.append("may be given again")
    if option.show_default and not option.required and option.default is not None:
        notes.append(f"default {option.default}")
    text = " ".join((option.help or "").split())
    return f"{text} ({'; '.join(notes)})".lstrip() if notes else text


# Settings.


def _settings() -> Iterator[str]:
    for section in dict.fromkeys(setting.section for setting in SETTINGS.values()):
        yield f"\n## [{section}]\n"
        rows = [_setting(one) for one in SETTINGS.values() if one.section == section]
        yield from _table(("setting", "default", "within", "what it is for", "read by"), *rows)


def _setting(setting: Setting) -> tuple[str, ...]:
    facts = setting.facts
    within = ", ".join(f"`{choice}`" for choice in facts.choices)
    if facts.least is not None and facts.most is not None:
        within = " to ".join(_bound(setting, bound) for bound in (facts.least, facts.most))
    default = f"`{shown(setting, setting.default)}`"
    return f"`{setting.name}`", default, within, facts.sentence, ", ".join(users_of(setting.key))


def _bound(setting: Setting, bound: float) -> str:
    unit = setting.facts.unit
    text = shown(setting, int(bound) if float(bound).is_integer() else bound).strip('"')
    return f"{text} {unit}" if unit and unit != "bytes" else text


# Errors.


def _exit_codes() -> Iterator[str]:
    yield from _table(("exit code", "meaning"), *((str(code), meaning) for code, meaning in EXIT_CODES.items()))
    yield "\n130: stopped by Ctrl-C.\n\n## Errors\n"


def _errors() -> Iterator[str]:
    rows = sorted(ERRORS.items(), key=lambda item: (item[1].exit_code, item[0]))
    told = ((f"`{code}`", str(kind.exit_code), _sentence(kind), kind.remedy) for code, kind in rows)
    yield from _table(("code", "exit code", "what it means", "what to do"), *told)


def _sentence(kind: type[ReplicateError]) -> str:
    """Of the first paragraph of a class, what tells operators what has happened: not what is for programs alone."""
    told = " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
    return " ".join(one for one in re.split(r"(?<=\.) ", told) if "`facts" not in one)


def _findings() -> Iterator[str]:
    rows = ((f"`{one.code}`", str(one.severity), one.meaning) for one in CODES.values())
    yield from _table(("code", "severity", "what it means"), *rows)


if __name__ == "__main__":
    for name, text in pages().items():
        (MANUAL / name).write_text(text, encoding="utf-8")
