"""The command `replicate`: its outermost frame. Every error becomes one line on standard error and an exit code.

Guarantees: exit codes are those of errors.EXIT_CODES (130 for Ctrl-C, as shells expect); no traceback without --debug;
a reader that went away (`replicate status | head`) is no error and changes no exit code, an output that was never open
neither; a C locale or a closed terminal changes nothing but the rendering of unusual characters.
Refuses to know: the verbs. Nothing but the standard library is imported before the environment has been looked at.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from replicate.cli.output import drop_output, is_reader_gone

INTERRUPTED = 130
COMPLETION = "_REPLICATE_COMPLETE"
"""A shell asks for its script (`bash_source`), and later for words, in this variable: click's own way."""
OURS = ("replicate", "source_server", "receiver_server", "update_process")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script. Whatever a command makes is closed to others, however the shell is set up."""
    os.umask(0o077)
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: list[str]) -> int:
    """Carry out one command line; returns its exit code. Never raises, but for SystemExit of the interpreter itself."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = 0
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _say("INTERRUPTED: stopped by the keyboard", INTERRUPTED)
    except OSError as error:
        is_error = not (isinstance(error, BrokenPipeError) and is_reader_gone())
        drop_output()
        if is_error and code == 0:  # else the error that it ended with has been said
            return _say(f"IO: the output can not be written: {error.strerror or error}", 74)
    return code


def _run(arguments: list[str]) -> int:
    from replicate.errors import ReplicateError

    try:
        from replicate.other_package import check_other_package

        check_other_package()

        from replicate.standard_streams import hold_standard_streams

        hold_standard_streams()

        import click

        from replicate.cli.root import root

        if instruction := os.environ.get(COMPLETION):
            from click.shell_completion import shell_complete

            return shell_complete(root, {}, "replicate", COMPLETION, instruction)
        try:
            # Not root.main(): that would end the process itself, with 1, when the reader has gone away.
            with root.make_context("replicate", list(arguments)) as context:
                result = root.invoke(context)
        except click.exceptions.Exit as error:
            return error.exit_code
        except click.Abort:
            return _say("INTERRUPTED: stopped by the keyboard", INTERRUPTED)
        except click.exceptions.NoArgsIsHelpError as error:
            print(error.format_message(), file=sys.stderr)
            return 2
        except click.ClickException as error:
            text = f"USAGE: {error.format_message().rstrip('.')} [{_path(error)}]. Try '{_path(error)} --help'"
            return _say(_pasteable(text, arguments), 2)
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        raise
    except ReplicateError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        own_exit_code = getattr(error, "own_exit_code", None)  # a daemon's error, which it has said itself
        text = _pasteable(str(error), arguments, is_daemons=own_exit_code is not None)
        return _say(text, error.exit_code if own_exit_code is None else own_exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            return _unexpected(error, arguments)
        line = f"PREREQUISITE_MISSING: the Python package {error.name} is not installed [{sys.prefix}]"
        return _say(f"{line}. Run 'pip install dualsite' in this environment", 69)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and is_reader_gone():
            raise
        where = f" [{error.filename}]" if error.filename else ""
        if "--debug" in arguments:
            traceback.print_exc()
        return _say(f"IO: {error.strerror or error}{where}", 77 if isinstance(error, PermissionError) else 74)
    except Exception as error:
        return _unexpected(error, arguments)


def _path(error: object) -> str:
    """The verb that a usage error is about, as it was typed."""
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "replicate"


def _pasteable(text: str, arguments: list[str], *, is_daemons: bool = False) -> str:
    """An error whose commands name the instance as this command line has."""
    from replicate.cli.common import named_in
    from replicate.instance.instance import resolve_instance
    from replicate.pasteable import pasteable

    named = named_in(arguments)
    if not named:
        return text
    return pasteable(text, shlex.quote(named), str(resolve_instance(named)) if is_daemons else "")


def _say(line: str, code: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        print(" ".join(line.split()), file=sys.stderr, flush=True)
    return code


def _unexpected(error: Exception, arguments: list[str]) -> int:
    """Our bug: one line; the traceback goes to standard error with --debug, else into the instance's log directory."""
    text = f"INTERNAL: unexpected {type(error).__name__}: {error}"
    if "--debug" in arguments:
        traceback.print_exc()
        return _say(text, 70)
    try:
        from replicate.cli.common import write_traceback

        where = write_traceback(error, arguments)
    except Exception:  # the log must not hide the error
        where = None
    where_text = f"The traceback is in {where}" if where else "Repeat it with --debug for the traceback"
    return _say(f"{text}. {where_text}; please report it", 70)


if __name__ == "__main__":
    main()
