"""Whether the daemons of an instance could start, as far as its files and addresses decide that.

Guarantees: refuses what the start of one of them would refuse by now, with the same errors where a daemon has one error
for it. Only looks: nothing is made, opened for writing, or listened on, and what runs is not disturbed; an address that
the very daemon for it holds is well.
Leaves to others: certificates and keys (security/authenticate.py), and what is in journal and regions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.daemon.files import DaemonFiles
from replicate.daemon.listening import try_listen
from replicate.daemon.lock_file import daemon_names
from replicate.door.recovery.opening import make_chain
from replicate.errors import AlreadyExistsError, ConfigurationError
from replicate.instance.instance import Instance
from replicate.instance.private_files import DIRECTORY_MODES, check_contents
from replicate.journal.durable import SIDECAR_NAME
from replicate.region.sqlite.open import check_region_writable, region_facts
from replicate.security.authenticate import LISTEN
from replicate.settings.load import FILE_NAME, Address, parse_address
from replicate.system.files import check_writable

_ANY: Final = ("0.0.0.0", "::")
_NOT_WRITTEN: Final = "regions"
"""Its files are the regions': they may as well be elsewhere."""


class _Wanted(Struct, frozen=True):
    """An address of the settings: of which daemons, under which name in their status, set by what."""

    kind: str
    fact: str
    where: str
    text: str

    @property
    def address(self) -> Address:
        return parse_address(self.text, where=self.where)

    def meets(self, other: Address) -> bool:
        """Whether not both can be listened on."""
        if self.address.port != other.port or not other.port:
            return False
        ours, theirs = ("127.0.0.1" if one == "localhost" else one for one in (self.address.host, other.host))
        return ours == theirs or ((":" in ours) == (":" in theirs) and (ours in _ANY or theirs in _ANY))


def check_files(instance: Instance) -> None:
    """Refuse files that are too open, or that a daemon writes and this user may not. PermissionRefusedError (exit code
    77); NotFoundError for a region that is not there."""
    check_contents(instance.path)
    for path in _written(instance):
        if path.exists():
            check_writable(path)
    for entry in instance.regions:
        region_facts(entry.path)
        check_region_writable(entry.path)


def check_addresses(instance: Instance) -> None:
    """Refuse addresses that cannot be listened on: taken by somebody else, not this machine's, not allowed, or one
    for two daemons. AlreadyExistsError, ConfigurationError, PermissionRefusedError."""
    earlier: list[_Wanted] = []
    for wanted in _wanted(instance):
        for other in earlier:
            if wanted.meets(other.address):
                raise ConfigurationError(
                    f"{other.where} = {other.text!r} and {wanted.where} = {wanted.text!r} cannot both be listened on",
                    where=str(instance.path / FILE_NAME),
                    do="Give each a port of its own",
                )
        earlier.append(wanted)
        if not _is_held_by_ours(instance, wanted):
            try_listen(wanted.text, where=wanted.where)


def _names(instance: Instance) -> list[str]:
    names = [f"source-{peer.name}" for peer in instance.peers if not peer.by_packets]
    return names + ["receiver", "update"] * instance.receives


def _written(instance: Instance) -> Iterator[Path]:
    for name in DIRECTORY_MODES:
        if name != _NOT_WRITTEN:
            yield instance.path / name
    for name in _names(instance):
        files = DaemonFiles(instance.path, name)
        yield from (files.lock.path, files.lock.second_path, files.log, files.standard_error)
    chain = make_chain(instance)
    yield Path(chain.directory) / SIDECAR_NAME
    if first_seqnos := chain.first_seqnos():
        yield Path(chain.path_of(first_seqnos[-1]))


def _wanted(instance: Instance) -> Iterator[_Wanted]:
    config = instance.config
    yield from _metrics("source", config.source.metrics_listen)
    if instance.receives:
        yield _Wanted("receiver", "listen", LISTEN, config.receiver.listen)
        yield from _metrics("receiver", config.receiver.metrics_listen)
        yield from _metrics("update", config.update.metrics_listen)


def _metrics(kind: str, text: str) -> Iterator[_Wanted]:
    if text:
        yield _Wanted(kind, "metrics_listen", f"{kind}.metrics_listen", text)


def _is_held_by_ours(instance: Instance, wanted: _Wanted) -> bool:
    """Whether a daemon of that kind listens there: it would give the port back before it starts again. Raises
    AlreadyExistsError where it is another one of the instance."""
    for name in daemon_names(instance.path):
        said = DaemonFiles(instance.path, name).read_status()
        if said is None or not said.is_running:
            continue
        for fact in ("listen", "metrics_listen"):
            text = said.facts.get(fact)
            if not text or not wanted.meets(parse_address(text, where=name)):
                continue
            if (name.partition("-")[0], fact) == (wanted.kind, wanted.fact):
                return True
            raise AlreadyExistsError(
                f"{name} of this instance (process {said.pid}) listens on {text} already",
                where=wanted.where,
                do="Choose another port (0 takes a free one)",
            )
    return False
