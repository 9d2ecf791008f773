"""Changes one setting in an instance's replicate.toml: `replicate config set` and `unset`.

Guarantees: comments, order and layout of the file stay, and so do its owner, group and mode; what the file says after
the change is what it said before, but for this one setting, or nothing is written; a value that the table of settings
(settings/table.py) refuses, alone or with the others, changes nothing. The change is durable, and one at a time.
Leaves to others: who reads a setting, and when (settings/users.py).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import tomlkit
from msgspec import Struct
from tomlkit.exceptions import TOMLKitError

from replicate.errors import ConfigurationError, PermissionRefusedError
from replicate.instance.instance import Instance
from replicate.instance.private_files import check_settings
from replicate.settings.load import (
    FILE_NAME,
    SETTINGS,
    Config,
    Refused,
    parse_what_can_be,
    read_settings,
    shown,
    unknown_key,
)
from replicate.settings.table import Scalar, Setting
from replicate.system.asking_user import user_name
from replicate.system.files import check_writable, replace_file

COMMAND_LINE: Final = "command line"


class Changed(Struct, frozen=True):
    """What was done: texts as the file shows them. `was_default`, `is_default`: the file says nothing of it."""

    key: str
    was: str
    now: str
    was_default: bool
    is_default: bool
    path: Path
    config: Config
    """As the file has it now."""
    still_refused: tuple[Refused, ...]
    """What else of the file is refused, as it was before."""

    @property
    def is_changed(self) -> bool:
        """Whether the file says something else now."""
        return (self.was, self.was_default) != (self.now, self.is_default)


def set_setting(instance: Instance, key: str, text: str) -> Changed:
    """Have replicate.toml say that `key` is `text`, as a flag gives it. Makes the file, and the section.

    ConfigurationError for a key that is unknown, a value that it cannot have, alone or beside the others, and a file
    that is not valid TOML; PermissionRefusedError, JournalIOError. Nothing is changed then.
    """
    if key not in SETTINGS:
        raise unknown_key(key, COMMAND_LINE)
    setting = SETTINGS[key]

    def changed(before: str, config: Config) -> str:
        made = config.with_values({key: text}, where=COMMAND_LINE)
        return _with(before, setting, _written(setting, getattr(getattr(made, setting.section), setting.name)))

    return _change(instance, key, changed)


def unset_setting(instance: Instance, key: str) -> Changed:
    """Have replicate.toml say nothing of `key`, so that its default holds; also of one that no release knows, but
    stands there. Errors: as `set_setting`."""

    def changed(before: str, _config: Config) -> str:
        if key not in SETTINGS and not _has(tomllib.loads(before), key):
            raise unknown_key(key, COMMAND_LINE)
        return _without(before, key)

    return _change(instance, key, changed)


def _change(instance: Instance, key: str, changed: Callable[[str, Config], str]) -> Changed:
    path = instance.path / FILE_NAME
    with instance.locked():
        check_settings(instance.path)
        before = read_settings(path)
        config, refused = parse_what_can_be(before, str(path))
        try:
            old = tomllib.loads(before)
        except (ValueError, RecursionError):
            raise refused[0].error from None
        after = changed(before, config)
        made, still_refused = parse_what_can_be(after, str(path))
        known = {str(one.error) for one in refused}
        for one in still_refused:
            if str(one.error) not in known:
                raise one.error
        if after != before:
            _write(path, after)
    new = tomllib.loads(after)
    was, was_default = _said(old, key)
    now, is_default = _said(new, key)
    return Changed(key, was, now, was_default, is_default, path, made, still_refused)


def _write(path: Path, text: str) -> None:
    like = None
    if path.exists():
        check_writable(path)
        like = os.stat(path)
        if like.st_uid != os.geteuid():
            raise PermissionRefusedError(
                f"this belongs to user {user_name(like.st_uid)}, and only that user changes it",
                where=str(path),
                do=f"Run as user {user_name(like.st_uid)}, or change the file there by hand",
            )
    replace_file(path, text.encode(), like=like)


def _written(setting: Setting, value: Scalar) -> Scalar:
    """What the file gets: a size in its largest whole unit, as in the default file."""
    if setting.facts.unit == "bytes":
        text = shown(setting, value)
        return text.strip('"') if text.startswith('"') else value
    return value


def _with(text: str, setting: Setting, value: Scalar) -> str:
    old = tomllib.loads(text)
    wanted = {**old, setting.section: {**_section(old, setting.section), setting.name: value}}
    for made in (_beside_its_comment(text, setting, value), _by_the_document(text, setting, value)):
        if made is not None and _means(made, wanted):
            return made
    raise ConfigurationError(
        f"{setting.key} cannot be set here without changing something else",
        where=FILE_NAME,
        do=f"Write by hand, in section [{setting.section}]: {setting.name} = {tomlkit.item(value).as_string()}",
    )


def _beside_its_comment(text: str, setting: Setting, value: Scalar) -> str | None:
    """A setting that does not stand there yet, after the line of the default file that it takes the place of."""
    if setting.name in _section(tomllib.loads(text), setting.section):
        return None
    place = re.search(
        rf"^\[{setting.section}\][^\n]*\n(?:(?!\[)[^\n]*\n)*?# {setting.name} = [^\n]*\n", text, flags=re.MULTILINE
    )
    if place is None:
        return None
    end = "\r\n" if place[0].endswith("\r\n") else "\n"
    line = f"{setting.name} = {tomlkit.item(value).as_string()}{end}"
    return text[: place.end()] + line + text[place.end() :]


def _by_the_document(text: str, setting: Setting, value: Scalar) -> str | None:
    try:
        document = tomlkit.parse(text)
        if setting.section not in document:
            if text.strip():
                document.add(tomlkit.nl())
            document.add(setting.section, tomlkit.table())
        document[setting.section][setting.name] = value
        return document.as_string()
    except (TOMLKitError, TypeError):
        return None


def _without(text: str, key: str) -> str:
    old = tomllib.loads(text)
    if not _has(old, key):
        return text
    section, _, name = key.partition(".")
    try:
        document = tomlkit.parse(text)
        if name:
            wanted = {**old, section: {one: value for one, value in old[section].items() if one != name}}
            del document[section][name]
        else:
            wanted = {one: value for one, value in old.items() if one != section}
            del document[section]
        made = document.as_string()
        if _means(made, wanted) or _means(made, {k: v for k, v in wanted.items() if v != {}}):
            return made
    except TOMLKitError:
        pass
    raise ConfigurationError(
        f"{key} cannot be taken out without changing something else", where=FILE_NAME, do="Take it out by hand"
    )


def _means(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except ValueError:
        return False


def _section(document: dict[str, Any], section: str) -> dict[str, Any]:
    found = document.get(section)
    return found if isinstance(found, dict) else {}


def _has(document: dict[str, Any], key: str) -> bool:
    section, _, name = key.partition(".")
    return name in _section(document, section) if name else section in document


def _said(document: dict[str, Any], key: str) -> tuple[str, bool]:
    """What the file says of a key, as it shows it; its default, and True, where it says nothing."""
    section, _, name = key.partition(".")
    if name and _has(document, key):
        return tomlkit.item(document[section][name]).as_string(), False
    setting = SETTINGS.get(key)
    return (shown(setting, setting.default), True) if setting is not None else ("nothing", True)
