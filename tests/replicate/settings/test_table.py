"""The table of settings: each row makes sense by itself, and its default stands nowhere else in the product."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.settings.load import SETTINGS, convert

ROOT = Path(__file__).parents[3]
PACKAGES = ("replicate", "source_server", "receiver_server", "update_process")


@pytest.mark.parametrize("key", SETTINGS)
def test_a_row_makes_sense(key: str) -> None:
    setting = SETTINGS[key]
    facts = setting.facts
    assert convert(setting, setting.default, "here") == setting.default, "within its own bounds"
    assert facts.sentence.endswith("."), "a sentence"
    assert (facts.least is None) == (facts.most is None)
    if facts.least is not None and facts.most is not None:
        assert facts.least < facts.most
    if facts.choices:
        assert setting.default in facts.choices
    assert (facts.unit == "s") == setting.name.endswith("_s"), "the unit stands at the end of the name"
    assert (facts.unit == "bytes") == setting.name.endswith("_bytes")


def defaults(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names of parameters and of fields that have a default, and which."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = node.args
            by_place = [*words.posonlyargs, *words.args]
            by_place = by_place[len(by_place) - len(words.defaults) :]
            yield from ((word.arg, default) for word, default in zip(by_place, words.defaults, strict=True))
            for word, default in zip(words.kwonlyargs, words.kw_defaults, strict=True):
                if default is not None:
                    yield word.arg, default
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value is not None:
                    yield one.target.id, one.value


def test_a_default_stands_in_the_table_alone() -> None:
    """Nothing that bears a setting's name has its default, too: anybody who changed the one would miss the other."""
    of_table: dict[str, set[object]] = {}
    for setting in SETTINGS.values():
        of_table.setdefault(setting.name, set()).add(setting.default)
    again = [
        f"{path.relative_to(ROOT)}:{default.lineno}: {name} = {default.value!r}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.parent.name != "settings"
        for name, default in defaults(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(default, ast.Constant) and default.value and default.value in of_table.get(name, ())
    ]
    assert again == []
