"""The command `replicate`: its outermost frame. Every error becomes one line on standard error and an exit code, and
with --json an object on standard output (failure.py).

Guarantees: exit codes are those of errors.EXIT_CODES (130 for Ctrl-C, as shells expect); no traceback without --debug;
a reader that went away (`replicate status | head`) is no error and changes no exit code, an output that was never open
neither; a C locale or a closed terminal changes nothing but the rendering of unusual characters.
Leaves to others: the verbs. Nothing but the standard library is imported before the environment has been looked at.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from msgspec.structs import replace

from replicate.cli import COMPLETION
from replicate.cli.failure import Failure, parsed, tell
from replicate.cli.standard_output import drop_output, is_reader_gone

STOPPED = Failure("INTERRUPTED", "stopped by the keyboard", 130)
COLLECT_AFTER = 20_000
"""Objects made between two runs of the garbage collector: what a start makes stays, and an eighth of a daemon's start
was spent looking for cycles in it (measured, 8293fc5)."""
OURS = ("replicate", "source_server", "receiver_server", "update_process")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script. Whatever a command makes is closed to others, however the shell is set up."""
    os.umask(0o077)
    gc.set_threshold(COLLECT_AFTER, 50, 100)
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: list[str]) -> int:
    """Carry out one command line; returns its exit code. Never raises, but for SystemExit of the interpreter itself."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = 0
    try:
        instruction = os.environ.get(COMPLETION)
        code = _complete(instruction) if instruction else _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return tell(STOPPED, arguments)
    except OSError as error:
        is_error = not (isinstance(error, BrokenPipeError) and is_reader_gone())
        drop_output()
        if is_error and code == 0:  # else the error that it ended with has been said
            return tell(Failure("IO", f"the output cannot be written: {error.strerror or error}", 74), arguments)
    return code


def _complete(instruction: str) -> int:
    """Nothing but an answer may show at a prompt, whatever is wrong here."""
    with contextlib.suppress(Exception):
        from replicate.cli.completion import answer
        from replicate.cli.root import root

        return answer(root, instruction)
    return 1


def _run(arguments: list[str]) -> int:
    from replicate.errors import ReplicateError

    try:
        from replicate.system.other_package import check_other_package

        check_other_package()

        from replicate.system.standard_streams import hold_standard_streams

        hold_standard_streams()

        import click

        from replicate.cli.root import root

        try:
            # Not root.main(): that would end the process itself, with 1, when the reader has gone away.
            with root.make_context("replicate", list(arguments)) as context:
                result = root.invoke(context)
        except click.exceptions.Exit as error:
            return error.exit_code
        except click.Abort:
            return tell(STOPPED, arguments)
        except click.exceptions.NoArgsIsHelpError as error:
            if "--json" not in arguments:
                print(error.format_message(), file=sys.stderr)
                return 2
            return tell(_usage("Missing command", error), arguments)
        except click.ClickException as error:
            return tell(_pasteable(_usage(error.format_message().rstrip("."), error), arguments), arguments)
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        raise
    except ReplicateError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        own_exit_code = getattr(error, "own_exit_code", None)  # a daemon's error, which it has said itself
        if own_exit_code is None:
            failure = Failure(error.code, error.what, error.exit_code, error.where, error.do)
        else:
            failure = parsed(str(error), own_exit_code)
        return tell(_pasteable(failure, arguments, is_daemons=own_exit_code is not None), arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            return _unexpected(error, arguments)
        what, do = f"the Python package {error.name} is not installed", "Run 'pip install dualsite' in this environment"
        return tell(Failure("PREREQUISITE_MISSING", what, 69, sys.prefix, do), arguments)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and is_reader_gone():
            raise
        where = str(error.filename) if error.filename else ""
        if "--debug" in arguments:
            traceback.print_exc()
        exit_code = 77 if isinstance(error, PermissionError) else 74
        return tell(Failure("IO", str(error.strerror or error), exit_code, where), arguments)
    except Exception as error:
        return _unexpected(error, arguments)


def _usage(what: str, error: object) -> Failure:
    """A command line that makes no sense, and the verb that it is about, as it was typed."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "replicate"
    if (
        context is not None
        and "extra argument" in what
        and any(one.name == "journals" for one in context.command.params)
    ):
        return Failure("USAGE", what, 2, path, "Say --journal before each of several files, or name their directory")
    return Failure("USAGE", what, 2, path, f"Try '{path} --help'")


def _pasteable(failure: Failure, arguments: list[str], *, is_daemons: bool = False) -> Failure:
    """An error whose commands name the instance as this command line has."""
    from replicate.cli.common import named_in
    from replicate.errors import pasteable
    from replicate.instance.location import resolve_instance

    named = named_in(arguments)
    if not named:
        return failure
    name, path = shlex.quote(named), str(resolve_instance(named)) if is_daemons else ""
    what, where, do = (pasteable(text, name, path) for text in (failure.what, failure.where, failure.do))
    return replace(failure, what=what, where=where, do=do)


def _unexpected(error: Exception, arguments: list[str]) -> int:
    """Our bug: one line; the traceback goes to standard error with --debug, else into the instance's log directory."""
    what = f"unexpected {type(error).__name__}: {error}"
    if "--debug" in arguments:
        traceback.print_exc()
        return tell(Failure("INTERNAL", what, 70), arguments)
    try:
        from replicate.cli.common import write_traceback

        where = write_traceback(error, arguments)
    except Exception:  # the log must not hide the error
        where = None
    do = f"The traceback is in {where}" if where else "Repeat it with --debug for the traceback"
    return tell(Failure("INTERNAL", what, 70, do=f"{do}; please report it"), arguments)


if __name__ == "__main__":
    main()
