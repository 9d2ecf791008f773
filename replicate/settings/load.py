"""The settings of an instance, checked: the file that sets them, and what cannot work together.

Guarantees: a `Config` in hand has been checked: every key known, every value of its type and within its bounds, no
combination that cannot work. Whatever is wrong is refused with a `ConfigurationError` that names the key, the bounds
or the nearest known key. The default file is written from the same table (table.py), so the two cannot differ.
Leaves to others: who uses a setting. Pure, apart from `load`, which reads the one file.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields, replace

from replicate.errors import ConfigurationError, PermissionRefusedError, ReplicateError
from replicate.limits import DEFAULT_PORT, KIB, MIB
from replicate.settings.peer_authority import parse_allow
from replicate.settings.table import (
    GIB,
    ApplicationConfig,
    DaemonConfig,
    JournalConfig,
    LogConfig,
    LoopbackConfig,
    PacketsConfig,
    ReceiverConfig,
    RegionConfig,
    Scalar,
    Setting,
    SourceConfig,
    StatusConfig,
    TlsConfig,
    UpdateConfig,
)

FILE_NAME: Final = "replicate.toml"
BYTES_MAX: Final = MIB
"""Of the file; the whole table, with its comments, is a hundredth of it."""


class Address(Struct, frozen=True):
    """HOST and PORT of a TCP end; an IPv6 host is kept without its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        # ::ffff:127.0.0.1 is one for Python from 3.13 on; a socket of IPv6 alone, as ours are, cannot be bound to it.
        return address.is_loopback and getattr(address, "ipv4_mapped", None) is None


class Config(Struct, frozen=True):
    """All sections. Made by `parse` or `load`; `Config()` is the defaults. Immutable."""

    journal: JournalConfig = JournalConfig()
    source: SourceConfig = SourceConfig()
    receiver: ReceiverConfig = ReceiverConfig()
    update: UpdateConfig = UpdateConfig()
    packets: PacketsConfig = PacketsConfig()
    tls: TlsConfig = TlsConfig()
    loopback: LoopbackConfig = LoopbackConfig()
    daemon: DaemonConfig = DaemonConfig()
    status: StatusConfig = StatusConfig()
    log: LogConfig = LogConfig()
    region: RegionConfig = RegionConfig()
    application: ApplicationConfig = ApplicationConfig()

    def values(self) -> Iterator[tuple[Setting, Scalar]]:
        """Every setting with the value it has here, in the order of the file."""
        for setting in SETTINGS.values():
            yield setting, getattr(getattr(self, setting.section), setting.name)

    def with_values(self, values: Mapping[str, object], *, where: str = "command line") -> Config:
        """The same with `{"section.name": value}` set; a text is converted, as a flag gives it. Checked again.

        Raises ConfigurationError naming `where`; self is unchanged in any case.
        """
        changed: dict[str, dict[str, Scalar]] = {}
        for key, value in values.items():
            setting = SETTINGS.get(key)
            if setting is None:
                raise unknown_key(key, where)
            changed.setdefault(setting.section, {})[setting.name] = convert(setting, value, where)
        parts: dict[str, Any] = {
            section: replace(getattr(self, section), **names) for section, names in changed.items()
        }
        made = replace(self, **parts)
        for check in _COMBINATIONS.values():
            check(made, where)
        return made


class Refused(Struct, frozen=True):
    """A part of a file that is not taken, and why. `section`: of which it is a part; "" where it may be of any."""

    section: str
    error: ReplicateError


def _table() -> dict[str, Setting]:
    rows = {}
    for section in fields(Config):
        for item in fields(section.type):
            key = f"{section.name}.{item.name}"
            (facts,) = item.type.__metadata__
            rows[key] = Setting(key, item.default, facts)
    return rows


SETTINGS: Final[Mapping[str, Setting]] = _table()
SECTIONS: Final = tuple(item.name for item in fields(Config))


def parse(text: str, *, where: str = FILE_NAME) -> Config:
    """A checked Config from TOML text; what is not set there has its default. Raises ConfigurationError."""
    config, refused = parse_what_can_be(text, where)
    if refused:
        raise refused[0].error
    return config


def load(path: Path) -> Config:
    """The Config of the file at `path` (a file that is not there sets nothing). Raises ConfigurationError."""
    return parse(read_settings(path), where=str(path))


def load_what_can_be(path: Path) -> tuple[Config, tuple[Refused, ...]]:
    """For a look: what of the file can be taken, and why the rest cannot, which has its default. A section
    whose values cannot work together has all of its defaults."""
    try:
        text = read_settings(path)
    except ReplicateError as error:
        return Config(), (Refused("", error),)
    return parse_what_can_be(text, str(path))


def parse_what_can_be(text: str, where: str) -> tuple[Config, tuple[Refused, ...]]:
    """`load_what_can_be` of a text; `where` names it in errors."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is one; also numbers and nesting without an end
        wrong = ConfigurationError(f"not valid TOML: {error}", where=where, do="Mend that line")
        wrong.__cause__ = error
        return Config(), (Refused("", wrong),)
    config = Config()
    refused: list[Refused] = []
    for section, content in document.items():
        if section not in SECTIONS:
            refused.append(Refused("", unknown_key(section, where)))
            continue
        if not isinstance(content, dict):
            wrong = ConfigurationError(f"{section} is a section, not a key", where=where, do=f"Write [{section}]")
            refused.append(Refused(section, wrong))
            continue
        values = {}
        for name, value in content.items():
            key = f"{section}.{name}"
            try:
                if key not in SETTINGS:
                    raise unknown_key(key, where)
                values[name] = convert(SETTINGS[key], value, where)
            except ConfigurationError as error:
                refused.append(Refused(section, error))
        parts: dict[str, Any] = {section: replace(getattr(config, section), **values)}
        config = replace(config, **parts)
    known = {one.section for one in refused}
    for section, check in _COMBINATIONS.items():
        try:
            check(config, where)
        except ConfigurationError as error:
            parts = {section: getattr(Config(), section)}
            config = replace(config, **parts)
            if section not in known:  # else a default that stands in for a bad value does not go with the others
                refused.append(Refused(section, error))
    return config, tuple(refused)


def read_settings(path: Path) -> str:
    """The text of the file, "" where there is none. ConfigurationError, PermissionRefusedError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.read(fd, BYTES_MAX)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return ""
    except PermissionError as error:
        raise PermissionRefusedError(
            "the configuration cannot be read", where=str(path), do="Run as the instance's owner"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if len(data) == BYTES_MAX:
        raise ConfigurationError(f"longer than {BYTES_MAX} bytes", where=str(path), do="Leave out what has its default")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"byte {error.start} is not UTF-8", where=str(path), do="Save it as UTF-8") from error


def default_text() -> str:
    """A commented file that lists every setting with its default; `parse(default_text()) == Config()`."""
    lines = [
        "# Settings of this instance. What is commented out has the default shown.",
        "# After a change: replicate config check; a daemon reads the file when it starts.",
    ]
    section = ""
    for setting in SETTINGS.values():
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"]
        lines += [
            f"# {setting.facts.sentence}{_bounds(setting)}",
            f"# {setting.name} = {shown(setting, setting.default)}",
        ]
    return "\n".join(lines) + "\n"


def shown(setting: Setting, value: Scalar) -> str:
    """The value as the file shows it: a size in its largest whole unit."""
    if setting.facts.unit == "bytes" and isinstance(value, int) and value:
        for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value % unit == 0:
                return f'"{value // unit} {name}"'
    return toml_value(value)


_ESCAPES: Final = {code: f"\\u{code:04X}" for code in (*range(32), 127)} | {
    ord(letter): f"\\{escape}" for letter, escape in {"\\": "\\", '"': '"', "\n": "n", "\r": "r", "\t": "t"}.items()
}


def toml_value(value: Scalar) -> str:
    """The value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    return repr(value)


def parse_address(text: str, *, where: str, default_port: int = DEFAULT_PORT) -> Address:
    """HOST:PORT, [IPV6]:PORT, or HOST alone (the default port). Raises ConfigurationError naming `where`."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]/]+))(?::([0-9]{1,5}))?", text)
    port = default_port if match is None or match[3] is None else int(match[3])
    if match is None or port > 65535:
        raise ConfigurationError(
            f"{text!r} is not HOST:PORT", where=where, do=f"Write it like 127.0.0.1:{default_port}"
        )
    return Address(match[1] or match[2], port)


def unknown_key(key: str, where: str) -> ConfigurationError:
    """The error of a key, or section, that the table has not: it names the nearest one."""
    section, _, name = key.partition(".")
    if name and section in SECTIONS:
        elsewhere = [k for k in SETTINGS if k.endswith(f".{name}")]
        known = [s.name for s in SETTINGS.values() if s.section == section]
        near = elsewhere or [f"{section}.{n}" for n in difflib.get_close_matches(name, known, 1)]
        do = f"Did you mean {' or '.join(near)}?" if near else f"[{section}] knows {', '.join(known)}"
        return ConfigurationError(f"unknown key {key}", where=where, do=do)
    near = difflib.get_close_matches(section, SECTIONS, 1)
    do = f"Did you mean [{near[0]}]?" if near else f"Known are {', '.join(SECTIONS)}"
    inside = [f"[{k.partition('.')[0]}]" for k in SETTINGS if k.endswith(f".{key}")]
    if inside:
        do = f"It belongs into {' or '.join(inside)}"
    return ConfigurationError(f"unknown section or key {key}", where=where, do=do)


_UNITS: Final = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1024 * GIB}


def convert(setting: Setting, value: object, where: str) -> Scalar:
    """`value` as the setting's type, within its bounds. ConfigurationError names the key and what would be right."""
    kind, facts = setting.kind, setting.facts
    converted: Scalar | None = None
    if kind is bool:
        converted = value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
    elif kind is str:
        converted = value if isinstance(value, str) else None
    elif isinstance(value, str):
        converted = _number(value, setting)
    elif isinstance(value, bool):
        converted = None
    elif kind is float and isinstance(value, (int, float)):
        converted = float(value)
    elif kind is int and isinstance(value, int):
        converted = value
    name = {bool: "true or false", str: "a text", int: "a whole number", float: "a number"}[kind]
    name = 'a size such as "64 MiB"' if facts.unit == "bytes" else name
    if converted is None:
        raise ConfigurationError(f"{setting.key} = {value!r} is not {name}", where=where, do=_allowed(setting))
    if facts.choices and converted not in facts.choices:
        near = difflib.get_close_matches(str(converted), facts.choices, 1)
        do = f"Did you mean {near[0]!r}? {_allowed(setting)}" if near else _allowed(setting)
        raise ConfigurationError(f"{setting.key} = {converted!r} is none of its values", where=where, do=do)
    if not isinstance(converted, (str, bool)):
        low, high = facts.least, facts.most
        if (
            not math.isfinite(converted)
            or (low is not None and converted < low)
            or (high is not None and converted > high)
        ):
            raise ConfigurationError(f"{setting.key} = {converted} is out of bounds", where=where, do=_allowed(setting))
    return converted


def _number(text: str, setting: Setting) -> int | float | None:
    """Flags come as text; sizes may also be written like "64 MiB"."""
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None:
        return None
    unit = (
        _UNITS.get(match[2].lower()) if setting.facts.unit == "bytes" else {"": 1, setting.facts.unit: 1}.get(match[2])
    )
    if unit is None:
        return None
    number = float(match[1]) * unit
    if setting.kind is float:
        return number
    return int(number) if number.is_integer() else None


def _allowed(setting: Setting) -> str:
    facts = setting.facts
    if facts.choices:
        return f"Use one of {', '.join(facts.choices)}"
    if facts.unit == "bytes" and facts.least is not None and facts.most is not None:
        return f"Use {shown(setting, int(facts.least))} to {shown(setting, int(facts.most))}"
    if facts.least is not None and facts.most is not None:
        return f"Use {facts.least:g} to {facts.most:g} {facts.unit}".rstrip()
    return f"The default is {toml_value(setting.default)}"


def _bounds(setting: Setting) -> str:
    facts = setting.facts
    if facts.choices:
        return " One of: " + ", ".join(facts.choices) + "."
    if facts.least is None or facts.most is None:
        return ""
    if facts.unit == "bytes":
        return f" {shown(setting, int(facts.least))} to {shown(setting, int(facts.most))}, or a number of bytes."
    return f" {'In ' + facts.unit + '; ' if facts.unit else ''}{facts.least:g} to {facts.most:g}."


# Values of one section that are each right and cannot work together.


def _check_journal(config: Config, where: str) -> None:
    if config.journal.cap_bytes < 2 * config.journal.segment_bytes:
        raise ConfigurationError(
            f"journal.cap_bytes = {config.journal.cap_bytes} does not hold two segments of "
            f"journal.segment_bytes = {config.journal.segment_bytes}",
            where=where,
            do="Raise cap_bytes or lower segment_bytes",
        )
    if config.journal.cap_policy == "prune-archived" and not config.journal.archive:
        raise ConfigurationError(
            "journal.cap_policy is prune-archived, and journal.archive names no archive",
            where=where,
            do="Set journal.archive, or another cap_policy",
        )


def _check_source(config: Config, where: str) -> None:
    _check_periods("source", config.source, where)
    parse_hours(config.source.patrol_hours, where=f"{where}: source.patrol_hours")
    _check_metrics_listen(config.source.metrics_listen, f"{where}: source.metrics_listen")


def parse_hours(text: str, *, where: str) -> tuple[int, int] | None:
    """`22-6`: from 22:00 to 6:00; None for "", which is always. ConfigurationError for anything else."""
    if not text:
        return None
    first, _, last = text.partition("-")
    hours = [int(word) if re.fullmatch(r"[0-9]{1,2}", word) else -1 for word in (first, last)]
    if not all(0 <= hour <= 24 for hour in hours) or hours[0] == hours[1]:
        raise ConfigurationError(f"{text!r} are no hours", where=where, do="Say from which hour to which, such as 22-6")
    return hours[0], hours[1]


def _check_receiver(config: Config, where: str) -> None:
    _check_periods("receiver", config.receiver, where)
    parse_hours(config.receiver.patrol_hours, where=f"{where}: receiver.patrol_hours")
    if config.receiver.xon_percent >= config.receiver.xoff_percent:
        raise ConfigurationError(
            f"receiver.xon_percent = {config.receiver.xon_percent} is not below "
            f"receiver.xoff_percent = {config.receiver.xoff_percent}: the source would never go on",
            where=where,
            do="Set xon_percent below xoff_percent (defaults 80 and 90)",
        )
    parse_address(config.receiver.listen, where=f"{where}: receiver.listen")
    parse_allow(config.receiver.allow, where=f"{where}: receiver.allow")
    _check_metrics_listen(config.receiver.metrics_listen, f"{where}: receiver.metrics_listen")


def _check_update(config: Config, where: str) -> None:
    _check_metrics_listen(config.update.metrics_listen, f"{where}: update.metrics_listen")


_COMBINATIONS: Final[Mapping[str, Callable[[Config, str], None]]] = {
    "source": _check_source,
    "receiver": _check_receiver,
    "journal": _check_journal,
    "update": _check_update,
}


def _check_periods(section: str, part: SourceConfig | ReceiverConfig, where: str) -> None:
    if part.dead_after_s <= part.heartbeat_period_s:
        raise ConfigurationError(
            f"{section}.dead_after_s = {part.dead_after_s:g} is not above "
            f"{section}.heartbeat_period_s = {part.heartbeat_period_s:g}: every peer would look dead",
            where=where,
            do=f"Set {section}.dead_after_s to at least two periods",
        )


def _check_metrics_listen(text: str, where: str) -> None:
    if not text:
        return
    address = parse_address(text, where=where)
    if re.search(r":\d+\Z", text) is None:
        raise ConfigurationError(f"{text!r} names no port", where=where, do="Write it like 127.0.0.1:9743")
    if not address.is_loopback:
        raise ConfigurationError(
            f"{address} is not a loopback address, and metrics are given to everybody who asks",
            where=where,
            do="Use 127.0.0.1, [::1] or localhost (with a proxy of your own that knows who may ask)",
        )
