"""cli/watched_instances.py: instances of this host and of other hosts' pages, as `watch` and `web` name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicate.cli.main import run
from replicate.cli.watched_instances import token_in, views_of
from replicate.errors import ConfigurationError
from tests.harness.certificates import Authority
from tests.harness.pair import Pair
from tests.harness.raw_page import answer, raw_page
from tests.replicate.seeing.test_read_picture import TOLD


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("REPLICATE_INSTANCE", raising=False)
    made = Pair.create(tmp_path)
    made.write(3)
    return made


def test_an_instance_of_another_host_stands_beside_one_of_this(
    pair: Pair, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 20)
    token.chmod(0o600)
    with raw_page(answer(TOLD)) as page:
        words = [
            "watch",
            "--once",
            "-i",
            str(pair.primary.path),
            "-i",
            f"{page.url}#west",
            "--pages-token-file",
            str(token),
        ]
        assert run(words) == 1
        assert b"Bearer " + b"t" * 20 in page.asked[0]
    out = capsys.readouterr().out
    assert out.index("primary east") < out.index("secondary west")
    assert f"  {page.url}: /srv/east" in out


def test_a_page_without_a_name_is_all_that_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with raw_page(answer(TOLD)) as page:
        assert run(["--json", "watch", "-i", page.url]) == 69  # one of them says GONE
    pictures = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in pictures] == ["east", "west", "x"]
    assert pictures[2]["error"] == "GONE"


def test_one_that_is_not_reached_is_named_and_the_others_are_shown(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    with raw_page(b"") as page:
        url = page.url
    assert run(["watch", "--once", "-i", f"{url}#west", "-i", str(pair.primary.path)]) == 69
    out = capsys.readouterr().out
    assert f"UNREACHABLE: nobody is reached: Connection refused [{url}]" in " ".join(out.split())
    assert "primary east" in out
    assert run(["watch", "--once", "-i", url]) == 69
    assert "UNREACHABLE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["watch", "--once", "-i", "http://db2#west"], 78, "http shows everything to all that listen [-i]"),
        (["watch", "--once", "-i", "https://db2/page"], 78, "is no address of a page [-i]. Write it like https://"),
        (["watch", "--once", "-i", "https://db2#west"], 78, "Name the CA's certificate: --pages-ca FILE; or"),
        (
            ["watch", "--once", "-i", "https://db2#west", "--pages-ca", "/none"],
            69,
            "CA's certificate is not there [/none]",
        ),
        (
            ["web", "--listen", "0.0.0.0:0", "-i", "http://localhost:1#x"],
            2,
            "no instance of this host whose certificate",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REPLICATE_INSTANCE", raising=False)
    assert run(words) == code
    assert said in capsys.readouterr().err


def test_the_certificate_shown_is_that_of_the_first_instance_of_this_host(pair: Pair, tmp_path: Path) -> None:
    names = ["https://localhost:1#x", str(pair.primary.path)]
    with pytest.raises(Exception, match="is not there"):
        views_of(names, past_s=60, ca=None, token_file=None)
    Authority(tmp_path).install(pair.primary)
    assert [one.name for one in views_of(names, past_s=60, ca=None, token_file=None)] == ["x", "east"]


def test_a_token_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text in ("short", "x" * 20 + "\n" + "y" * 20, "ü" * 20):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(ConfigurationError, match="the token has to be 16 characters"):
            token_in(file)
    file.write_text("x" * 20 + "\n")
    assert token_in(file) == "x" * 20
