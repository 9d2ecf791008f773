"""`replicate certificate init|issue|show`: a small CA, and the certificates of the instances, for those without one."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replicate.cli.common import Noun, columns, emit, has_instance, instance_path, open_instance
from replicate.errors import NotFoundError, UsageError
from replicate.security.tls_files import DAY_S

if TYPE_CHECKING:
    from replicate.security.certificate import Described

_PATH = click.Path(path_type=Path)
_DAYS = click.IntRange(1, 36_500)


@click.group(cls=Noun)
def certificate() -> None:
    """Certificates, for instances on two hosts."""


@certificate.command()
@click.argument("directory", type=_PATH)
@click.option("--name", default="Dualsite Replicate CA", show_default=True, help="The name that the CA bears.")
@click.option("--days", type=_DAYS, default=3650, show_default=True, help="How long it is valid.")
def init(directory: Path, name: str, days: int) -> None:
    """Make a small private CA in DIRECTORY. Its key never leaves it: keep it safe, and off the two hosts if you can."""
    from replicate.security.certificate import make_ca

    made = make_ca(directory, name=name, days=days, now_s=time.time())
    next_step = f"next: replicate certificate issue NAME --ca {directory} --out DIR, for each instance"
    emit(made, [f"CA made in {directory}, valid until {_day(made.not_after_s)}", next_step])


@certificate.command()
@click.argument("name")
@click.option("--ca", type=_PATH, required=True, metavar="DIR", help="The directory of the CA.")
@click.option("--out", type=_PATH, metavar="DIR", help="Where to put it [the directory tls of the instance, -i].")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Also name this host (for other tools).")
@click.option("--days", type=_DAYS, default=730, show_default=True, help="How long it is valid.")
@click.option("--replace", is_flag=True, help="Replace what is there; daemons use it from the next connection on.")
def issue(name: str, ca: Path, out: Path | None, hosts: tuple[str, ...], days: int, replace: bool) -> None:
    """Issue a certificate for the instance NAME: three files, for the directory `tls` of that instance."""
    from replicate.security.certificate import issue as issue_certificate

    belong = ["they belong into the directory tls of the instance"] if out is not None else []
    if out is None:
        if not has_instance():
            raise UsageError("nothing says where to put the certificate", do="Give --out DIR, or -i INSTANCE")
        opened = open_instance()
        if opened.name != name:
            raise UsageError(f"{name} is not the instance {opened.name}", do="Give --out DIR for another instance")
        out = opened.path / "tls"
    made = issue_certificate(name, ca=ca, out=out, hosts=hosts, days=days, now_s=time.time(), replace=replace)
    where = f"{out}: ca.pem, certificate.pem, key.pem, valid until {_day(made.not_after_s)}"
    emit(made, [f"certificate of {name} issued in {where}", *belong])


@certificate.command()
@click.argument("file", type=_PATH, required=False)
def show(file: Path | None) -> None:
    """Show the certificate in FILE, or that of the instance (-i) and its CA's."""
    from replicate.security.certificate import describe
    from replicate.security.guarded_file import read_guarded
    from replicate.security.tls_files import TlsFiles

    if file is not None:
        files = [file]
    else:
        opened = open_instance(("tls",))
        found = TlsFiles.of(instance_path(), opened.config.tls)
        files = [found.certificate, found.ca]
    try:
        data = {path: read_guarded(path, is_secret=False, what="the certificate") for path in files}
    except NotFoundError as error:
        do = "Issue one: replicate certificate issue NAME --ca DIR -i INSTANCE; or name another file"
        raise NotFoundError(error.what, where=error.where, do=do) from error
    shown = {str(path): describe(content, where=str(path)) for path, content in data.items()}
    emit(shown, [line for path, facts in shown.items() for line in _lines(path, facts)])


def _lines(path: str, facts: Described) -> list[str]:
    left = (facts.not_after_s - time.time()) / DAY_S
    rows = [
        ("  instance", ", ".join(facts.instances) or "-"),
        ("  names", ", ".join(facts.names) or "-"),
        ("  subject", facts.subject),
        ("  issuer", facts.issuer),
        ("  serial", facts.serial),
        ("  valid", f"{_day(facts.not_before_s)} to {_day(facts.not_after_s)} ({left:.0f} days left)"),
        ("  SHA-256", facts.fingerprint),
    ]
    return [f"{path}{': a CA' if facts.is_ca else ''}", *columns(rows)]


def _day(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%d")
