"""Errors: a code and an exit code each, and what they print can be pasted: it names an instance, the right one."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest

from replicate.cli.main import run
from replicate.errors import ERRORS, EXIT_CODES, NotFoundError, ReplicateError, pasteable
from replicate.instance.instance import Instance

pytestmark = pytest.mark.turns(1)  # a rule of every commit

ROOT = Path(__file__).resolve().parent.parent.parent
VERBS = (
    "archive|certificate|compare|config|digest|instance|journal|peer|rebuild|receiver|region|replay|seed|source|status|"
    "update|wait"
)
WITHOUT = re.compile(
    rf"\breplicate (?!(?:instance (?:create|remove)|certificate init|certificate issue NAME --ca|region plain"
    rf"|status --explain|config check; a)\b)(?:(?:{VERBS})\b|…)"
)
"""A command without an instance, but for those that need none."""
NO_COMMANDS = (r"another `replicate archive`", r"^replicate …: ……$")


def test_a_code_stands_for_one_error_and_its_exit_code_is_in_the_table() -> None:
    """And nothing that can be raised is left out of ERRORS, which is the manual's list."""

    def below(kind: type[ReplicateError]) -> set[type[ReplicateError]]:
        return {kind, *(one for child in kind.__subclasses__() for one in below(child))}

    own = {kind for kind in below(ReplicateError) if kind.__module__ == "replicate.errors"}
    told = {kind for kind in own - {ReplicateError} if "code" in vars(kind)}  # the root has its last child's
    assert {kind.code: kind for kind in told} == ERRORS
    assert len(ERRORS) == len(told) > 30
    assert {kind.exit_code for kind in own} <= EXIT_CODES.keys()


def test_an_error_says_what_where_and_what_to_do() -> None:
    error = NotFoundError("the key is not there", where="/a/key", do="Make one", key="k")
    assert (error.what, error.where, error.do, error.facts) == (
        "the key is not there",
        "/a/key",
        "Make one",
        {"key": "k"},
    )
    assert str(error) == "NOT_FOUND: the key is not there [/a/key]. Make one"


def strings(path: Path) -> list[tuple[int, str]]:
    """All texts of a source file but its docstrings, with what stands for an inserted value."""
    tree = ast.parse(path.read_text())
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append((node.lineno, "".join(str(getattr(part, "value", "…")) for part in node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            found.append((node.lineno, node.value))
    return found


def test_commands_in_texts_name_an_instance() -> None:
    seen, bad = 0, []
    for package in ("replicate", "source_server", "receiver_server", "update_process"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, text in strings(path):
                for other in NO_COMMANDS:
                    text = re.sub(other, "", text)
                seen += len(re.findall(r"\breplicate -i ", text))
                bad += [f"{path.relative_to(ROOT)}:{line}: {text}"] if WITHOUT.search(text) else []
    assert not bad, "\n".join(bad)
    assert seen > 80


def test_the_name_stands_where_the_instance_is_meant_and_nowhere_else() -> None:
    text = "replicate -i INSTANCE update stop; there: replicate -i PRIMARY source status"
    assert pasteable(text, "east") == "replicate -i east update stop; there: replicate -i PRIMARY source status"


def test_a_daemons_full_path_is_the_name_too_and_no_longer_one() -> None:
    text = (
        "replicate -i '/srv/a b/west' seed; replicate -i '/srv/a b/west'; replicate -i '/srv/a b/west'2 [/srv/a b/west]"
    )
    told = "replicate -i west seed; replicate -i '/srv/a b/west'; replicate -i '/srv/a b/west'2 [/srv/a b/west]"
    assert pasteable(text, "west", "/srv/a b/west") == told
    assert pasteable(text, "west") == text
    assert pasteable("Run: replicate -i /srv/west", "west", "/srv/west") == "Run: replicate -i west"


def test_an_instance_is_named_as_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    assert Instance.create("east", role="primary").named == "east"
    with pytest.raises(NotFoundError, match=r"replicate -i east region add PATH"):
        Instance.open("east").region("main")
    spaced = tmp_path / "of two words"
    Instance.create(spaced, role="primary", name="west")
    assert shlex.split(Instance.open(spaced).named) == [str(spaced)]


def command(*arguments: str) -> tuple[int, str, str]:
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        code = run(list(arguments))
    return code, out.getvalue(), said.getvalue()


@pytest.mark.parametrize("where", ["before", "after", "environment"])
def test_the_command_line_prints_commands_with_its_instance(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    network = json.loads(command("instance", "create", "east", "--json")[1])["network"]
    made = command("instance", "create", "west", "--role", "secondary", "--network", network)[1]
    assert "next: replicate -i west receiver start" in made
    if where == "environment":
        monkeypatch.setenv("REPLICATE_INSTANCE", "west")
    before = ("-i", "west") if where == "before" else ()
    after = ("-iwest",) if where == "after" else ()
    code, out, _ = command(*before, "status", *after)
    assert code == 1
    assert "Next: replicate -i west receiver start" in out
    assert "-i INSTANCE" not in out
    found = json.loads(command(*before, "status", "--json", *after)[1])["findings"]
    assert {finding["do"] for finding in found if finding["code"] == "NO_REGION"} == {"replicate -i west seed"}
    code, _, said = command(*before, "seed", *after)
    assert (code, "replicate -i west receiver start; or" in said) == (69, True), said
    code, _, said = command(*before, "add", *after)
    assert (code, "replicate -i west region add PATH" in said) == (2, True), said


def test_what_a_daemon_says_names_the_instance_as_the_command_line_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    network = json.loads(command("instance", "create", "east", "--json")[1])["network"]
    command("instance", "create", "west", "--role", "secondary", "--network", network)
    code, _, said = command("-i", "west", "update", "start")
    assert (code, "Run: replicate -i west seed" in said) == (69, True), said
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("-i", "./west", "update", "status")
    assert (code, "Run: replicate -i ./west seed" in out) == (1, True), out
    told = json.loads(command("-i", "./west", "update", "status", "--json")[1])["update"]
    assert "-i ./west seed" in told["error"]
    assert "-i ./west seed" in told["text"]
    assert f"-i {tmp_path}" not in command("-i", "west", "status")[1]
