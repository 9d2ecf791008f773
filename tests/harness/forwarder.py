"""The command `replicate` of a shell, carried out by a fork server (fork_server.py): run without the product, and
without site packages, so that it costs a tenth of what a new interpreter does.

Guarantees: arguments, environment, directory, umask and standard streams are passed on, and so are SIGINT and SIGTERM;
it ends as what it stands for ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main() -> int:
    """Have it run; its exit code."""
    umask = os.umask(0o077)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {
        "words": ["-m", "replicate.cli.main", *sys.argv[1:]],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "session": False,
        "umask": umask,
        "passed": [],
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server, theirs:
        server.connect("\0" + os.environ["REPLICATE_TEST_FORKS"])
        socket.send_fds(server, [json.dumps(request).encode()], [theirs.fileno(), 0, 1, 2])
        pid = int(mine.recv(64))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = os.waitstatus_to_exitcode(int(mine.recv(64)))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
