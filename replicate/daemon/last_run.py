"""With which settings of the command line a daemon ran last: one small file for each daemon, beside its lock.

A flag counts for one run. The next start without it is another daemon: a Receiver Server that listened to the other
site listens on loopback, well and alone. So the flags are kept for a later start, or for a command that says how.

Guarantees: the file is replaced whole and durably, and says what the last run was given; a start that failed takes the
place of it only if it was given settings itself. What replicate.toml has come to say since wins over an old flag.
Of a Receiver Server of a release that noted nothing, the address where it listened is known.
What cannot be read counts as a run without flags.
Leaves to others: what the settings mean, and who prints.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct, field

from replicate.daemon.files import DaemonFiles
from replicate.errors import ReplicateError
from replicate.model.start_command import again_command, start_command, text_of
from replicate.settings.load import FILE_NAME, SETTINGS, Config, convert, load_what_can_be, shown
from replicate.settings.table import Scalar
from replicate.system.files import read_private, replace_file

FORMAT: Final = 1
_LISTEN: Final = "receiver.listen"
_LISTEN_FACT, _UNTIL_FACT, _SINCE_FACT = "listen", "source_last_seqno", "is_streaming"
"""In the status of a Receiver Server: its address; what it says once it serves a source; what it says since a run is
noted."""


class Named(Protocol):
    """An instance, or what is left of one: its directory, and how a command names it after -i."""

    @property
    def path(self) -> Path: ...
    @property
    def named(self) -> str: ...


class LastRun(Struct, frozen=True):
    """What the command line gave, and what replicate.toml said of the same settings then."""

    given: Mapping[str, Scalar] = field(default_factory=dict)
    stood: Mapping[str, Scalar] = field(default_factory=dict)

    def missing(self, config: Config, now_given: Collection[str] = ()) -> dict[str, Scalar]:
        """Settings of the last run that a start by `config` would not have. Not those that `now_given` names, nor those
        of which replicate.toml says something else than it did then: that is somebody's later word."""
        values = {setting.key: value for setting, value in config.values()}
        return {
            key: value
            for key, value in self.given.items()
            if key not in now_given and values.get(key) != value and values.get(key) == self.stood.get(key)
        }


def run_with(stood: Config, given: Mapping[str, object]) -> LastRun:
    """A run by the file's settings `stood`, of which the command line gave some. ConfigurationError: not such ones."""
    config = stood.with_values(given)
    return LastRun(*({key: _value(one, key) for key in given} for one in (config, stood)))


def read_last_run(files: DaemonFiles) -> LastRun:
    """What is noted; a run without flags where nothing is, or nothing that makes sense."""
    if not os.path.lexists(files.last_run):
        return _older_run(files)
    try:
        made = json.loads(read_private(files.last_run))
        if made["format"] != FORMAT:
            return LastRun()
        return LastRun(_checked(made["given"]), _checked(made["stood"]))
    except (OSError, ReplicateError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return LastRun()


def _older_run(files: DaemonFiles) -> LastRun:
    """The run of a release that noted none, by its status: it listened there, and where the settings have the default,
    its command line had the address."""
    status = files.status.read()
    facts = {} if status is None else status.facts
    if not isinstance(facts.get(_LISTEN_FACT), str) or _SINCE_FACT in facts or _UNTIL_FACT not in facts:
        return LastRun()
    try:
        given = _checked({_LISTEN: facts[_LISTEN_FACT]})
    except ReplicateError:
        return LastRun()
    return LastRun(given, {_LISTEN: _value(Config(), _LISTEN)})


def note_last_run(files: DaemonFiles, run: LastRun) -> None:
    """Have it noted, durably, unless it is already. The caller holds the daemon's lock. JournalIOError,
    PermissionRefusedError; what was noted stands then."""
    if read_last_run(files) == run:
        return
    made = {"format": FORMAT, "given": dict(run.given), "stood": dict(run.stood)}
    replace_file(files.last_run, (json.dumps(made, indent=2) + "\n").encode())


def missing_settings(instance_path: Path, name: str, config: Config) -> dict[str, Scalar]:
    """`LastRun.missing` of the daemon `name`."""
    return read_last_run(DaemonFiles(instance_path, name)).missing(config)


def start_again(instance: Named, name: str) -> str:
    """The command that starts the daemon `name` as it ran last."""
    return start_command(name, _missing_now(instance, name), of=instance.named)


def stop_and_start_again(instance: Named, name: str) -> str:
    """The commands that stop it, and start it as it ran last."""
    return again_command(name, _missing_now(instance, name), of=instance.named)


def _missing_now(instance: Named, name: str) -> dict[str, Scalar]:
    """By replicate.toml as it is now: the caller may have opened the instance long ago."""
    return missing_settings(instance.path, name, load_what_can_be(instance.path / FILE_NAME)[0])


def warning_of(name: str, missing: Mapping[str, Scalar], config: Config, again: str, named: str) -> str:
    """What to tell at a start of the daemon without `missing`, settings that it had in its last run. `again`: the
    commands that start it with them; `named`: how a command names the instance."""
    had = ", ".join(f"{key} = {_shown(key, value)}" for key, value in missing.items())
    has = ", ".join(f"{key} = {_shown(key, _value(config, key))}" for key in missing)
    words = {key: shlex.quote(text_of(key, value)) for key, value in missing.items()}
    keep = "; ".join(f"replicate -i {named} config set {key} {word}" for key, word in words.items())
    return (
        f"{name} was started with {had} on its command line before, and now has {has}. To have it as before: "
        f"{again}. To have it so at every start, first: {keep}"
    )


def _value(config: Config, key: str) -> Scalar:
    section, _, name = key.partition(".")
    value: Scalar = getattr(getattr(config, section), name)
    return value


def _shown(key: str, value: Scalar) -> str:
    return shown(SETTINGS[key], value)


def _checked(made: Any) -> dict[str, Scalar]:
    """Only what the table of settings takes: this file becomes words of a command."""
    found: dict[str, Scalar] = {}
    for key, value in made.items():
        with suppress(ReplicateError, KeyError):
            found[key] = convert(SETTINGS[key], value, key)
    return found
