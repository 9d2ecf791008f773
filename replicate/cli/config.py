"""`replicate config show|check`."""

from __future__ import annotations

import click

from replicate.cli.common import Noun, emit, has_instance, instance_path, open_instance
from replicate.config import FILE_NAME, Config, default_text, shown


@click.group(cls=Noun)
def config() -> None:
    """Show or check the settings of an instance."""


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
    from replicate.region_functions import try_init
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
    says = f"{len(changed)} settings differ from defaults" if is_there else "there is no such file: the defaults hold"
    emit({"well": True, "path": path, "is_there": is_there, "changed": changed}, [f"{path}: well; {says}"])


def _load() -> Config:
    """What a daemon would have, or its very refusal: of the file, and of the instance around it."""
    return open_instance().config
