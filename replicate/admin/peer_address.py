"""The address of a peer, as this instance can reach it: with its certificate, where that is needed.

Guarantees: what is given out can be registered. Leaves to others: connections, and whether anybody answers there.
"""

from __future__ import annotations

from replicate.errors import ConfigurationError
from replicate.instance.instance import Instance
from replicate.security.tls import require_identity
from replicate.security.tls_files import TlsFiles
from replicate.settings.load import Address, parse_address

WHERE = "HOST:PORT"


def checked_address(opened: Instance, name: str, address: str) -> Address:
    """The address of a Receiver Server, if this instance can reach it as it is. ConfigurationError, and what the look
    for a certificate raises."""
    where = parse_address(address, where=WHERE)
    if not where.port:
        raise ConfigurationError(
            f"nobody can be reached at port 0 of {where.host}",
            where=WHERE,
            do=f"Give the port that the Receiver Server of {name} listens at: there, replicate -i {name} status",
        )
    if not where.is_loopback:
        files = TlsFiles.of(opened.path, opened.config.tls)
        require_identity(files, opened.name, where=WHERE, wanted_for=where)
    return where
