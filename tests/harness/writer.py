"""A writer process for tests: `python -m tests.harness.writer INSTANCE`; commands are JSON lists, a line each.

    ["insert", region, id]          one row; answers its seqno, or [error code, text]
    ["large", region, id, rows]     a spooled transaction
    ["schema", region, sql, table]  a schema change
    ["many", region, id, count, n]  that many transactions, each a row of n characters; answers the last seqno
    ["begin", region, id]           begins and inserts; answers "begun"; ["commit", region] commits it
    ["arm", failpoint]              arms a failpoint from here on
    ["recover"]                     opens the door only

Leaves to others: what the test wants of it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from replicate.door.door import Door
from replicate.door.primary import RegionSession
from replicate.door.recovery.opening import open_door
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.region.protocol import CapturedChanges
from replicate.system import failpoint
from tests.harness import instances
from tests.harness.telling import tell


class Program:
    """The state between two commands."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.door: Door | None = None
        self.sessions: dict[str, RegionSession] = {}
        self.begun: dict[str, CapturedChanges] = {}

    def session(self, region: str) -> RegionSession:
        if self.door is None:
            self.door = open_door(Instance.open(self.path))
        if region not in self.sessions:
            self.sessions[region] = RegionSession(self.door, region)
        return self.sessions[region]

    def do(self, verb: str, *arguments: Any) -> Any:
        if verb == "arm":
            failpoint.arm(arguments[0])
            return "armed"
        if verb == "recover":
            self.door = open_door(Instance.open(self.path))
            return "open"
        session = self.session(arguments[0])
        if verb == "open":
            return "open"
        if verb == "insert":
            return instances.insert(session, arguments[1])
        if verb == "large":
            return session.commit(instances.begin_large(session, arguments[1], arguments[2]))
        if verb == "schema":
            return instances.change_schema(session, arguments[1], arguments[2])
        if verb == "many":
            seqno = 0
            for row_id in range(arguments[1], arguments[1] + arguments[2]):
                value = "x" * (arguments[3] if len(arguments) > 3 else 1)
                seqno = instances.insert(session, row_id, value, timeout_s=30.0)
            return seqno
        if verb == "begin":
            self.begun[arguments[0]] = instances.begin_insert(session, arguments[1])
            return "begun"
        assert verb == "commit"
        return session.commit(self.begun.pop(arguments[0]))

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()
        if self.door is not None:
            self.door.close()


def main() -> None:
    program = Program(sys.argv[1])
    for line in sys.stdin:
        try:
            answer = program.do(*json.loads(line))
        except ReplicateError as error:
            answer = [error.code, str(error)]
        tell(answer)
    program.close()


if __name__ == "__main__":
    main()
