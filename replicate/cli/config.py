"""`replicate config show|check`."""

from __future__ import annotations

import click

from replicate.cli.common import Noun, emit, has_instance, instance_path
from replicate.config import FILE_NAME, Config, default_text, load, shown
from replicate.errors import NotFoundError


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
    """Check the settings; exit code 78 names the first that is wrong."""
    loaded = _load()
    changed = {setting.key: value for setting, value in loaded.values() if value != setting.default}
    path = instance_path() / FILE_NAME
    emit(
        {"well": True, "path": path, "changed": changed},
        [f"{path}: well; {len(changed)} settings differ from defaults"],
    )


def _load() -> Config:
    directory = instance_path()
    if not directory.is_dir():
        raise NotFoundError("there is no such instance directory", where=str(directory), do="Name one with -i")
    return load(directory / FILE_NAME)
