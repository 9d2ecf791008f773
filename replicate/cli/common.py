"""What all verbs share: the global options, wherever they stand on the line, and the ways to print a result.

Guarantees: `-i`, `--json` and `--debug` mean the same before and after the verb; with --json exactly one JSON value is
printed on standard output, in which bytes are hex, paths are text and Structs are objects.
Leaves to others: the verbs.
"""

from __future__ import annotations

import datetime
import enum
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct, field

from replicate.cli.completion_words import INSTANCE_VARIABLE, instances
from replicate.cli.standard_output import drop_output
from replicate.errors import JournalIOError, UsageError

if TYPE_CHECKING:
    from replicate.instance.instance import Instance


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Globals(Struct):
    """The global options of this command line."""

    instance: str | None = None
    json: bool = False
    several: list[str] = field(default_factory=list)
    """Of a verb that takes -i again and again."""


def _globals() -> Globals:
    root = click.get_current_context().find_root()
    if root.obj is None:
        root.obj = Globals()
    assert isinstance(root.obj, Globals)
    return root.obj


def _global_options() -> list[click.Parameter]:
    def set_instance(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            _globals().instance = value

    def set_json(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        if value:
            _globals().json = True

    return [
        click.Option(
            ["-i", "--instance"],
            expose_value=False,
            callback=set_instance,
            metavar="INSTANCE",
            help=f"Directory, or name below REPLICATE_HOME [{INSTANCE_VARIABLE}].",
            shell_complete=instances,
        ),
        click.Option(["--json"], is_flag=True, expose_value=False, callback=set_json, help="Print JSON."),
        click.Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error."),
    ]


class VerbCommand(click.Command):
    """A command that also takes the global options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_global_options())


class Once(click.Option):
    """An option that names one thing: given twice it is refused, where click would take the last one silently."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "multiple": True})

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """The one that was given, or None."""
        given = super().process_value(ctx, value)
        if len(given) > 1:
            raise UsageError(f"{self.opts[0]} is given {len(given)} times, and there is one", do="Give one of them")
        return given[0] if given else None


class VerbOfSeveral(VerbCommand):
    """A command that is about several instances: -i may be given again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

        def add_instances(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> None:
            _globals().several += value

        for place, one in enumerate(self.params):
            if one.name == "instance":
                assert isinstance(one, click.Option)
                self.params[place] = click.Option(
                    one.opts, multiple=True, expose_value=False, callback=add_instances, metavar=str(one.metavar),
                    help=f"{one.help} May be given again.", shell_complete=instances,
                )  # fmt: skip


class Noun(click.Group):
    """A group of verbs that also takes the global options."""

    command_class = VerbCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_global_options())


Noun.group_class = Noun


def instance_path() -> Path:
    """The directory of the instance named with -i or in the environment. Raises UsageError if neither names one."""
    from replicate.instance.location import resolve_instance

    return resolve_instance(instance_name())


def instance_name() -> str:
    """The instance as -i or the environment names it. Raises UsageError if neither does."""
    named = _globals().instance or os.environ.get(INSTANCE_VARIABLE)
    if not named:
        raise UsageError("no instance is named", do=f"Use -i NAME, or set {INSTANCE_VARIABLE}")
    return named


def instance_names() -> list[str]:
    """Of a VerbOfSeveral: all that are named, each once. Raises UsageError if none is."""
    named = [one for one in (_globals().instance, *_globals().several) if one]
    return list(dict.fromkeys(named)) or [instance_name()]


def has_instance() -> bool:
    """Whether an instance is named at all."""
    return bool(_globals().instance or os.environ.get(INSTANCE_VARIABLE))


LOOKS: tuple[str, ...] = ()
"""What a verb `needs` of the settings when it only looks at what is there."""
DOOR: tuple[str, ...] = ("journal", "region")
"""And when it opens the journal and the regions."""


def open_instance(needs: Collection[str] | None = None, *, copy_too: bool = False) -> Instance:
    """The instance named, opened; `needs`, `copy_too` and what it raises as with Instance.open."""
    from replicate.instance.instance import Instance

    return Instance.open(instance_name(), needs=needs, copy_too=copy_too)


def named_in(arguments: Sequence[str]) -> str | None:
    """How a command line, or else the environment, names the instance; also where the line makes no sense otherwise."""
    named = os.environ.get(INSTANCE_VARIABLE)
    for index, argument in enumerate(arguments):
        if argument in ("-i", "--instance") and index + 1 < len(arguments):
            named = arguments[index + 1]
        elif argument.startswith("--instance="):
            named = argument.partition("=")[2]
        elif argument.startswith("-i") and not argument.startswith("--"):
            named = argument[2:]
    return named or None


def wants_json() -> bool:
    """Whether --json was given."""
    return _globals().json


def emit(value: object, lines: Iterable[str]) -> bool:
    """Print the result of a verb: `value` with --json, `lines` otherwise (not even built with --json).

    Whether anybody reads on: a reader that has gone gets no more of it, and the verb goes on to its exit code.
    JournalIOError where the output cannot be written."""
    if wants_json():
        return _echo(json.dumps(plain(value), indent=2 if sys.stdout.isatty() else None))
    return all(map(_echo, lines))


def emit_lines(lines: Iterable[str], *, at_once: bool = False) -> bool:
    """Print many lines, some at a time (`at_once`: each when it is there). As `emit`; what `lines` raises comes after
    what it has given."""
    waiting: list[str] = []
    length = 0
    try:
        for line in lines:
            waiting.append(line)
            length += len(line)
            if at_once or len(waiting) == _LINES_TOGETHER or length >= _CHARACTERS_TOGETHER:
                if not _echo("\n".join(waiting)):
                    return False
                waiting.clear()
                length = 0
    except BaseException:
        if waiting:
            _echo("\n".join(waiting))
        raise
    return not waiting or _echo("\n".join(waiting))


_LINES_TOGETHER = 200
_CHARACTERS_TOGETHER = 256 * 1024
"""One line may hold a row of many megabytes."""


_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def span_s(text: str, *, least_s: float, most_s: float) -> float:
    """Seconds, or a number with a unit: 30, 30s, 5m, 2h, 1d. click.BadParameter for anything else."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd]?)", text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not least_s <= seconds <= most_s:
        raise click.BadParameter(f"{text!r} is no period; write 30, 30s, 5m, 2h or 1d")
    return seconds


def csns_between(since: str | None, until: str | None) -> tuple[int, int]:
    """The lowest and the highest csn of what --since and --until name; of all there is where they are not given."""
    from replicate.model.moment import first_csn, last_csn, parse_moment
    from replicate.model.vector import U64_MAX

    now_us = time.time_ns() // 1000
    return (
        first_csn(parse_moment(since, now_us, where="--since")) if since is not None else 0,
        last_csn(parse_moment(until, now_us, where="--until")) if until is not None else U64_MAX,
    )


def waiting_option(
    what: str, default_s: float = 60.0, limits: click.FloatRange | None = None
) -> Callable[[Decorated], Decorated]:
    """`--timeout SECONDS`, as `timeout_s`. `what`: the whole sentence of its help."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=limits or click.FloatRange(0),
        default=default_s,
        show_default=True,
        metavar="SECONDS",
        help=what,
    )


def with_site(verb: Decorated) -> Decorated:
    """The option --with of verbs that look at another site, too."""
    told = "Another site, on this host: directory or name."
    return click.option("--with", "other", metavar="INSTANCE", shell_complete=instances, help=told)(verb)


def read_printed(file: str, verb: str) -> str:
    """What `--json VERB` printed on another host, from a file; `-`: from standard input. JournalIOError."""
    try:
        with click.open_file(file, encoding="utf-8", errors="replace") as stream:
            return str(stream.read())
    except OSError as error:
        do = f"Make it on the other host with: replicate -i OTHER --json {verb} >FILE"
        raise JournalIOError(f"cannot be read: {error.strerror}", where=file, do=do) from error


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(what: str, *, yes: bool) -> None:
    """Go on only if the user says so: on a terminal, when asked; elsewhere by `--yes` (`yes`).

    UsageError otherwise; `what` says what will happen, as a sentence without its full stop."""
    if yes:
        return
    if wants_json() or not is_terminal():
        raise UsageError(what, do="Nothing was changed; to go on, repeat the command with --yes")
    click.echo(f"{what}.", err=True)
    if not click.confirm("Go on?", err=True):
        raise UsageError("not confirmed; nothing was changed", do="Repeat the command when it suits")


def _echo(line: str) -> bool:
    """Whether anybody reads on."""
    try:
        click.echo(line, color=True)  # whole: else it leaves out what looks like a colour, of a row's text, too
    except BrokenPipeError:
        drop_output()
        return False
    except OSError as error:
        raise JournalIOError(
            f"the output cannot be written: {error.strerror or error}",
            do="Make room there; what the command has done is done",
        ) from error
    return True


def plain(value: object) -> Any:
    """`value` as JSON knows it."""
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def columns(rows: Iterable[Iterable[object]], *, numbers: Collection[int] = ()) -> list[str]:
    """Rows as aligned lines, two spaces between columns; those at `numbers` stand to the right."""
    table = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)] if table else []
    sides = [str.rjust if at in numbers else str.ljust for at in range(len(widths))]
    return [
        "  ".join(put(cell, width) for put, cell, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in table
    ]


def write_traceback(error: BaseException, arguments: list[str]) -> Path | None:
    """Append the traceback to INSTANCE/log/command.log; None if there is no instance to put it in."""
    named = named_in(arguments)
    if not named:
        return None
    from replicate.instance.location import resolve_instance

    path = resolve_instance(named) / "log" / "command.log"
    if not path.parent.is_dir():
        return None
    when = datetime.datetime.fromtimestamp(time.time(), datetime.UTC).isoformat(timespec="seconds")
    event = {
        "event": "command failed",
        "level": "error",
        "timestamp": when,
        "arguments": arguments,
        "exception": "".join(traceback.format_exception(error)),
    }
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
    return path
