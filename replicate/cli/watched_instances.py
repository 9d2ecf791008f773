"""What `watch` and `web` look at: instances of this host, and, by the address of a page, those of other hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from replicate.errors import ConfigurationError

if TYPE_CHECKING:
    from replicate.seeing.instance_view import SeenView
    from replicate.seeing.page_client import TlsContexts

_Command = TypeVar("_Command", bound=Callable[..., Any])
WHERE = "-i"


def pages_options(command: _Command) -> _Command:
    """How pages of other hosts are asked."""
    for option in (
        click.option(
            "--pages-token-file", type=click.Path(path_type=Path), metavar="FILE",
            help="A file of mode 0600 with the token that the pages of other hosts ask for.",
        ),
        click.option(
            "--pages-ca", type=click.Path(path_type=Path), metavar="FILE",
            help="The CA of those pages' certificates, unless it is that of the first instance of this host.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def views_of(names: Sequence[str], *, past_s: float, ca: Path | None, token_file: Path | None) -> list[SeenView]:
    """Each that is named, in that order. `past_s`: of the curves, as they are wanted first. Raises what opening an
    instance, a certificate or a file raises; and, of a page that is named without an instance, what asking it does."""
    from replicate.seeing.instance_view import InstanceView
    from replicate.seeing.other_host import ElsewhereView, names_on
    from replicate.seeing.page_client import PageAddress, PageClient, is_page

    token = "" if token_file is None else token_in(token_file)
    contexts: TlsContexts | None = None
    views: list[SeenView] = []
    for named in names:
        if not is_page(named):
            views.append(InstanceView(named))
            continue
        address = PageAddress.parse(named, where=WHERE)
        if address.is_tls and contexts is None:
            contexts = _contexts([one for one in names if not is_page(one)], ca, named)
        client = PageClient(address, contexts, token)
        clients = [client] if address.name else [client.of(name) for name in names_on(client)]
        views += [ElsewhereView(one, past_s=past_s) for one in clients]
    return views


def _contexts(own: Sequence[str], ca: Path | None, named: str) -> TlsContexts:
    """TLS as it is to be at each connection: with the CA that is named, or as the first of `own` has it now."""
    from replicate.instance.instance import Instance
    from replicate.security.identity import for_pages
    from replicate.security.tls import Credentials
    from replicate.security.tls_files import TlsFiles

    if ca is not None:
        made = for_pages(ca)
        return lambda: made
    if not own:
        raise ConfigurationError(
            f"whose certificate {named} has to show is not known",
            where=WHERE,
            do="Name the CA's certificate: --pages-ca FILE; or an instance of this host that has one of it: -i",
        )
    opened = Instance.open(own[0], needs=("tls",))
    files = TlsFiles.of(opened.path, opened.config.tls)
    credentials = Credentials(files, opened.name, lambda _made: None, lambda _trouble: None)
    credentials.identity()
    return lambda: for_pages(credentials.identity())


def token_in(path: Path) -> str:
    """The token in a file that nobody else can read. ConfigurationError, and what security/guarded_file.py raises."""
    from replicate.security.guarded_file import read_guarded
    from replicate.web.request import TOKEN_LEAST

    token = read_guarded(path, is_secret=True, what="the token").decode("ascii", "replace").strip()
    if len(token) < TOKEN_LEAST or not token.isascii() or not token.isprintable():
        raise ConfigurationError(
            f"the token has to be {TOKEN_LEAST} characters of ASCII at least, in one line",
            where=str(path),
            do=f"Make one: (umask 077; head -c 24 /dev/urandom | base64 >{path})",
        )
    return token
