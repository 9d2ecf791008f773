"""source_server/unreachable.py: why nobody answers, told apart."""

from __future__ import annotations

import errno
import socket

import pytest
import trio

from source_server.unreachable import unreachable


def all_failed(*numbers: int) -> OSError:
    """As trio raises it when no address of a name could be connected to."""
    error = OSError("all attempts failed")
    error.__cause__ = ExceptionGroup("all", [OSError(number, "no") for number in numbers])
    return error


@pytest.mark.parametrize(
    ("error", "host", "reason", "number", "text", "do"),
    [
        (all_failed(errno.ECONNREFUSED), "192.0.2.2", "REFUSED_AT_ONCE", errno.ECONNREFUSED,
         "refused at once: the host is there, and nobody listens at that port (ECONNREFUSED, errno 111)",
         "There: replicate -i west status says how to start it"),
        (all_failed(errno.ENETUNREACH, errno.ECONNREFUSED), "db2", "REFUSED_AT_ONCE", errno.ECONNREFUSED,
         "ECONNREFUSED", "west status"),
        (trio.TooSlowError(), "192.0.2.2", "SILENT", None, "silence: no answer for 5 s", "the line between"),
        (trio.TooSlowError(), "db2.example.com", "SILENT", None, "for 5 s, from it or from the name service", "line"),
        (all_failed(errno.ETIMEDOUT), "192.0.2.2", "SILENT", errno.ETIMEDOUT, "(ETIMEDOUT, errno 110)", "line"),
        (socket.gaierror(socket.EAI_NONAME, "x"), "db2.example.com", "NO_SUCH_NAME", socket.EAI_NONAME,
         "there is no such name as db2.example.com (EAI_NONAME, errno -2)", "peer add west HOST:PORT --replace"),
        (socket.gaierror(socket.EAI_AGAIN, "x"), "db2", "NO_NAME_SERVICE", socket.EAI_AGAIN, "EAI_AGAIN", "name"),
        (all_failed(errno.EHOSTUNREACH), "192.0.2.2", "NO_WAY", errno.EHOSTUNREACH,
         "there is no way to that host (EHOSTUNREACH, errno 113)", "routes"),
        (all_failed(errno.EACCES), "192.0.2.2", "CONNECT_FAILED", errno.EACCES,
         "the connection failed: Permission denied (EACCES, errno 13)", "receiver status"),
        (OSError("no results found"), "db2", "CONNECT_FAILED", None, "no results found", "receiver status"),
    ],
)  # fmt: skip
def test_each_cause_has_its_reason_errno_and_advice(
    error: Exception, host: str, reason: str, number: int | None, text: str, do: str
) -> None:
    found = unreachable(error, peer="west", host=host, where=f"{host}:7430", timeout_s=5.0)
    assert (found.code, found.exit_code, found.facts) == ("UNREACHABLE", 69, {"reason": reason, "errno": number})
    assert text in found.what
    assert do in found.do
    assert found.where == f"{host}:7430"


@pytest.mark.trio
async def test_a_port_where_nobody_listens_and_a_name_that_is_none() -> None:
    """As the kernel and the name service really say it."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    for host, reason in (("127.0.0.1", "REFUSED_AT_ONCE"), ("localhost", "REFUSED_AT_ONCE")):
        with pytest.raises(OSError, match="attempts to connect") as caught:
            await trio.open_tcp_stream(host, port)
        found = unreachable(caught.value, peer="west", host=host, where="", timeout_s=5.0)
        assert found.facts == {"reason": reason, "errno": errno.ECONNREFUSED}
