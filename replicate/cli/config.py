"""`replicate config show|check|set|unset`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from replicate.cli.common import LOOKS, Noun, emit, has_instance, instance_path, open_instance
from replicate.cli.completion_words import settings
from replicate.settings.load import FILE_NAME, Config, default_text, shown

if TYPE_CHECKING:
    from replicate.instance.instance import Instance
    from replicate.instance.settings_file import Changed

VALUES = {"ignore_unknown_options": True}
"""A value may begin with a dash; what is no option of ours is refused as one word too many."""


@click.group(cls=Noun)
def config() -> None:
    """Show, check or change the settings of an instance."""


@config.command()
@click.option("--defaults", is_flag=True, help="Print a commented default file instead.")
def show(defaults: bool) -> None:
    """Show every setting with its value."""
    if defaults or not has_instance():
        emit({s.key: v for s, v in Config().values()}, default_text().splitlines())
        return
    loaded = _load()
    emit(
        {setting.key: value for setting, value in loaded.values()},
        (f"{setting.key} = {shown(setting, value)}" for setting, value in loaded.values()),
    )


@config.command()
def check() -> None:
    """Check the settings, the certificates and functions that they name, the addresses and the files, as a start of a
    daemon does; its error and exit code (mostly 78) name the first that is wrong."""
    from replicate.daemon.could_start import check_addresses, check_files
    from replicate.region.sqlite.functions import try_init
    from replicate.security.authenticate import check_credentials

    opened = open_instance()
    loaded = opened.config
    check_files(opened)
    for entry in opened.regions:
        try_init(entry.path)
    check_credentials(opened)
    check_addresses(opened)
    changed = {setting.key: value for setting, value in loaded.values() if value != setting.default}
    path = instance_path() / FILE_NAME
    is_there = path.exists()
    differ = "1 setting differs" if len(changed) == 1 else f"{len(changed)} settings differ"
    says = f"{differ} from the defaults" if is_there else "there is no such file: the defaults hold"
    emit({"well": True, "path": path, "is_there": is_there, "changed": changed}, [f"{path}: well; {says}"])


@config.command(name="set", context_settings=VALUES)
@click.argument("key", metavar="SECTION.NAME", shell_complete=settings)
@click.argument("value")
def set_(key: str, value: str) -> None:
    """Have replicate.toml say that a setting is VALUE, such as: config set receiver.listen 192.0.2.2:7430

    Comments and layout of the file stay. The value is checked first, and what is refused changes nothing. Sizes may
    have a unit ("64 MiB"); a list, such as receiver.allow, is one word with commas. A daemon has the settings of its
    start: what is printed says which ones are to be started again.
    """
    from replicate.instance.settings_file import set_setting

    opened = open_instance(LOOKS)
    _told(opened, set_setting(opened, key, value))


@config.command()
@click.argument("key", metavar="SECTION.NAME", shell_complete=settings)
def unset(key: str) -> None:
    """Take a setting out of replicate.toml, so that its default holds."""
    from replicate.instance.settings_file import unset_setting

    opened = open_instance(LOOKS)
    _told(opened, unset_setting(opened, key))


def _told(opened: Instance, changed: Changed) -> None:
    """What was done, and who must begin again for it to count."""
    from replicate.daemon.pool_sizes import JOURNAL, void_pool_sizes
    from replicate.settings.users import APPLICATION, users_of

    users = users_of(changed.key) if changed.is_changed else ()
    again = _again(opened, changed.config, users)
    was = f"{changed.was} (the default)" if changed.was_default else changed.was
    now = f"{changed.now} (the default)" if changed.is_default else changed.now
    lines = [f"{changed.key} is {now}, was {was} [{changed.path}]"]
    if not changed.is_changed:
        lines = [f"{changed.key} is {now}, as before [{changed.path}]"]
    lines += [f"{name} has what stood there at its start; for this one: {do}" for name, do in again.items()]
    if users and not again and users != (APPLICATION,):
        lines.append("no daemon that reads it runs; each has it from its next start on")
    if APPLICATION in users:
        lines.append("an application has it from its next start on")
    if changed.is_changed and changed.key == JOURNAL:
        lines += void_pool_sizes(opened, "", changed.config)
    lines += [f"still refused: {one.error}" for one in changed.still_refused]
    emit(
        {
            "key": changed.key,
            "was": changed.was,
            "now": changed.now,
            "was_default": changed.was_default,
            "is_default": changed.is_default,
            "path": changed.path,
            "start_again": again,
            "applications_too": APPLICATION in users,
            "still_refused": [str(one.error) for one in changed.still_refused],
        },
        lines,
    )


def _again(opened: Instance, loaded: Config, users: tuple[str, ...]) -> dict[str, str]:
    """Of the daemons that run and read it: the commands that start them again."""
    from replicate.daemon.files import DaemonFiles
    from replicate.daemon.last_run import missing_settings
    from replicate.daemon.lock_file import daemon_names
    from replicate.model.start_command import again_command, kind_of

    found = {}
    for name in daemon_names(opened.path):
        running = DaemonFiles(opened.path, name).lock.probe()
        if kind_of(name) in users and running is not None and not running.instead:
            found[name] = again_command(name, missing_settings(opened.path, name, loaded), of=opened.named)
    return found


def _load() -> Config:
    """What a daemon would have, or its very refusal: of the file, and of the instance around it."""
    return open_instance().config
