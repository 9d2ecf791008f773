"""The peer GT.M: two instances of our own on loopback, its replication between them; catching up and latency measured.

Needs Debian's package fis-gtm (`--install` of tests.benchmarks.all fetches it) and a user who may run it. Settings are
those in SETTINGS, the rest are GT.M's defaults: its secondary waits for the disk at no transaction, so `durable` is not
part of its figure. A transaction is one SET of a global variable, or ten between TSTART and TCOMMIT.

Guarantees: all of its servers are stopped, its shared memory is given back, and its data removed, whatever happens.
Leaves to others: our own daemons.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = "fis-gtm"
SETTINGS: Final = {
    "pools": "256 MiB",
    "global_buffer_count": 16384,
    "journal": "enable,nobefore",
    "order of update": "keys a golden section apart, so that neighbours are far from each other",
    "transactions": "TSTART with transactionid BATCH where several rows, else single SETs",
}
POOL_BYTES: Final = 256 << 20
ENDING: Final = (signal.SIGTERM, signal.SIGINT)

PROGRAM: Final = """
insert(n,size) new i
 for i=1:1:n set ^item(i)=$$value(i,".",size)
 quit
ten(n,size) new i,k
 for i=1:10:n tstart ():transactionid="BATCH"  do  tcommit
 . for k=i:1:i+9 set ^item(k)=$$value(k,".",size)
 quit
update(n,size) new i,k,step
 for step=n\\.6180339887:1 quit:$$gcd(step,n)=1
 set k=0
 for i=1:1:n set k=k+step#n set ^item(k+1)=$$value(k+1,"-",size)
 quit
mixed(n,size) new step,last,deleted,k
 set (last,deleted)=0
 for step=0:1:n-1 do
 . if step#2=0 set last=last+1,^item(last)=$$value(last,".",size) quit
 . if step#10=9 set deleted=deleted+1 kill ^item(deleted) quit
 . set k=deleted+1+$random(last-deleted),^item(k)=$$value(k,"-",size)
 quit
gcd(a,b) new c
 for  quit:b=0  set c=a#b,a=b,b=c
 quit a
value(i,mark,size) quit $extract($translate($justify(i,12)," ","0")_mark_^fill,1,size)
fill(size) set ^fill=$translate($justify("",size)," ","v")
 quit
end set ^ended=1
 quit
begin set ^begun=1
 quit
level for  quit:$data(^ended)  hang .01
 quit
watch new first
 for  quit:$data(^begun)  hang .0005
 set first=$zut
 for  quit:$data(^ended)  hang .0005
 write "first ",first," last ",$zut,!
 quit
again kill ^begun,^ended
 quit
commits(from,n,pause,size) new i
 for i=from:1:from+n-1 do
 . tstart ():serial  set ^seen(i)=$$value(i,".",size)  tcommit
 . write i," ",$zut,!
 . hang pause*(.5+($random(1000)/1000))
 quit
write new line,n,i,begun,ended,cpu,at
 set at=0 write $char(34),"ready",$char(34),!
 for  read line quit:$zeof  do
 . set n=$piece(line," ",2),cpu=$zgetjpi(0,"CPUTIM"),begun=$zut
 . for i=1:1:n set at=at+1 tstart ():serial  set ^t($job,at)="a name of some length|"_(i*.5)  tcommit
 . set ended=$zut,cpu=$zgetjpi(0,"CPUTIM")-cpu
 . write $translate("{'begun':","'",$char(34)),$justify(begun/1E6,0,6)
 . write $translate(",'ended':","'",$char(34)),$justify(ended/1E6,0,6)
 . write $translate(",'cpu_s':","'",$char(34)),$justify(cpu/100,0,2),"}",!
 quit
reader(from,n) new i
 write "ready",!
 for i=from:1:from+n-1 do
 . for  quit:$data(^seen(i))  hang .0001
 . write i," ",$zut,!
 quit
"""


def distribution() -> Path:
    """Where the package has put it; FileNotFoundError when it is not installed."""
    for path in sorted(Path("/usr/lib").glob("*/fis-gtm/V*"), reverse=True):
        if (path / "mupip").exists():
            return path
    raise FileNotFoundError(f"GT.M is not installed: apt-get install {PACKAGE}")


class Instance:
    """One GT.M instance with one region below `directory`. `stack`: ends what runs of it, and gives its memory back."""

    def __init__(self, directory: Path, name: str, stack: contextlib.ExitStack) -> None:
        self.directory = directory
        self.name = name
        self._gtm = distribution()
        self._watching: list[subprocess.Popen[str]] = []
        (directory / "r").mkdir(parents=True)
        (directory / "r" / "bench.m").write_text(PROGRAM.lstrip())
        self.environment = {
            **os.environ,
            "gtm_dist": str(self._gtm),
            "gtmgbldir": str(directory / "m.gld"),
            "gtm_repl_instance": str(directory / "m.repl"),
            "gtm_repl_instname": name,
            "gtmroutines": f"{directory}/r {self._gtm}/libgtmutil.so {self._gtm}",
            "gtm_tmp": str(directory),
            "gtm_log": str(directory),
        }
        layout = (
            f'change -segment DEFAULT -file_name="{directory}/m.dat" -allocation=60000 -extension=60000 '
            f"-global_buffer_count={SETTINGS['global_buffer_count']}\n"
            "change -region DEFAULT -record_size=4000 -key_size=255\nexit\n"
        )
        stack.callback(self._close)
        self.run("mumps", "-run", "GDE", feed=layout)
        self.run("mupip", "create")
        journal = f"-journal={SETTINGS['journal']},file={directory}/m.mjl"
        self.run("mupip", "set", "-replication=on", journal, "-region", "DEFAULT")
        self.run("mupip", "replicate", "-instance_create", f"-name={name}")

    def run(self, program: str, *words: str, feed: str = "", check: bool = True) -> str:
        """Run one of its programs; what it says. RuntimeError with its words when it fails."""
        # Not pipes: a server that is started would inherit them, and we should wait for its end.
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as source:
            source.write(feed)
            source.seek(0)
            command = [str(self._gtm / program), *words]
            done = subprocess.run(
                command,
                env=self.environment,
                stdin=source,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                check=False,
            )
            output.seek(0)
            text = output.read()
        if check and done.returncode:
            raise RuntimeError(f"GT.M: {program} {' '.join(words)}: {text}")
        return text

    def call(self, what: str) -> str:
        """Call a routine of PROGRAM."""
        return self.run("mumps", "-run", "%XCMD", f"do {what}")

    def watching(self, what: str) -> subprocess.Popen[str]:
        """The same in the background, its output a pipe; ended with the instance at the latest."""
        command = [str(self._gtm / "mumps"), "-run", "%XCMD", f"do {what}"]
        with _whole():
            process = subprocess.Popen(
                command, env=self.environment, stdout=subprocess.PIPE, text=True, cwd=self.directory
            )
            self._watching.append(process)
        return process

    def replicate(self, *words: str, check: bool = True) -> str:
        """`mupip replicate …`."""
        with _whole():
            return self.run("mupip", "replicate", *words, check=check)

    def _close(self) -> None:
        with _whole():
            for process in self._watching:
                if process.poll() is None:  # else it would wait for ever, and the shared memory be in use
                    process.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        _finish(process, 20.0)
            self._watching.clear()
            self.replicate("-receiver", "-shutdown", "-timeout=0", check=False)
            self.replicate("-source", "-shutdown", "-timeout=0", check=False)
            self.run("mupip", "rundown", "-region", "*", check=False)


class Pair:
    """A primary with its Source Server, and a secondary whose Receiver Server is started on demand."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        """`stack`: stops what has been begun, also where not everything was."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.primary = Instance(directory / "a", "BENCHA", stack)
        self.secondary = Instance(directory / "b", "BENCHB", stack)
        self.primary.replicate(
            "-source", "-start", f"-secondary=127.0.0.1:{self._port}", "-instsecondary=BENCHB",
            f"-buffsize={POOL_BYTES}", f"-log={directory}/source.log", "-connectparams=5,50,1,0,15,60",
        )  # fmt: skip
        self.secondary.replicate(
            "-source", "-start", "-passive", "-instsecondary=BENCHC", f"-buffsize={POOL_BYTES}",
            f"-log={directory}/passive.log",
        )  # fmt: skip
        self._log = directory / "receiver.log"

    def connect(self) -> None:
        """Start the Receiver Server."""
        self.secondary.replicate(
            "-receiver", "-start", f"-listenport={self._port}", f"-buffsize={POOL_BYTES}", f"-log={self._log}"
        )

    def disconnect(self) -> None:
        """Stop it."""
        self.secondary.replicate("-receiver", "-shutdown", "-timeout=0")


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """What asks us to end comes when the block is done: of what it begins everybody knows then, and what it ends has
    ended. Children begin as those of any other time."""
    asked: list[int] = []
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in asked[:1]:
            signal.raise_signal(number)


@contextlib.contextmanager
def pair() -> Iterator[Pair]:
    """Two instances, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-gtm-") as name, contextlib.ExitStack() as stack:
        both = Pair(Path(name), stack)
        yield both


def catch_up(kind: str, count: int, value_bytes: int) -> dict[str, float]:
    """Rows a second until the last one is applied, from the first one applied: `from_first`. Kinds: insert, update,
    mixed (as replicate.bench.catch_up has it), ten."""
    with pair() as both:
        primary, secondary = both.primary, both.secondary
        primary.call(f"fill^bench({value_bytes - 13})")
        if kind == "update":
            primary.call(f"insert^bench({count},{value_bytes})")
        primary.call("end^bench")
        both.connect()
        _finish(secondary.watching("level^bench"))
        both.disconnect()
        primary.call("again^bench")
        primary.call("begin^bench")
        primary.call(f"{kind}^bench({count},{value_bytes})")
        primary.call("end^bench")
        watcher = secondary.watching("watch^bench")
        both.connect()
        words = _finish(watcher).split()
        first_us, last_us = int(words[1]), int(words[3])
        return {"from_first": count / (last_us - first_us) * 1e6}


class Writers:
    """A primary whose transactions wait for the disk, as TCOMMIT does unless it is told BATCH, and its Source Server,
    whom nobody answers. `command` and `environment` are of one writer, who serves as commit_worker.py does: `row N`
    commits N transactions of one SET; its CPU seconds are whole hundredths."""

    def __init__(self, directory: Path) -> None:
        with contextlib.ExitStack() as stack:
            primary = Instance(directory / "gtm", "BENCHW", stack)
            primary.replicate(
                "-source", "-start", "-secondary=127.0.0.1:1", "-instsecondary=BENCHB",
                f"-buffsize={POOL_BYTES}", f"-log={directory}/gtm-source.log",
            )  # fmt: skip
            self._stack = stack.pop_all()
        self.command = [str(distribution() / "mumps"), "-run", "%XCMD", "do write^bench"]
        self.environment = primary.environment

    def close(self) -> None:
        """Stop everything."""
        self._stack.close()


def latency(commits: int, pause_s: float) -> list[float]:
    """Milliseconds from a TCOMMIT's return on the primary to the variable's being seen on the secondary."""
    with pair() as both:
        primary, secondary = both.primary, both.secondary
        both.connect()
        primary.call("fill^bench(87)")
        primary.call("end^bench")
        _finish(secondary.watching("level^bench"))
        reader = secondary.watching(f"reader^bench(1,{commits})")
        assert reader.stdout is not None
        reader.stdout.readline()
        returned = _times(primary.call(f"commits^bench(1,{commits},{pause_s},100)"))
        seen = _times(_finish(reader))
        return [(seen[number] - at) / 1e3 for number, at in returned.items()]


def _times(text: str) -> dict[int, int]:
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2:
            found[int(words[0])] = int(words[1])
    return found


def _finish(process: subprocess.Popen[str], timeout_s: float = 300.0) -> str:
    try:
        return process.communicate(timeout=timeout_s)[0]
    finally:
        process.kill()
        process.wait()
