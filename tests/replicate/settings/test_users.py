"""Each setting has its users, by its section or by its own line, and no line is for a setting that is gone."""

from __future__ import annotations

import pytest

from replicate.settings import users
from replicate.settings.load import SECTIONS, SETTINGS
from replicate.settings.users import APPLICATION, RECEIVER, SOURCE, UPDATE, users_of


def test_every_section_has_a_line_and_every_line_a_section() -> None:
    assert users._OF_SECTIONS.keys() == {*SECTIONS}


def test_exceptions_are_of_settings_that_there_are_and_say_something_else() -> None:
    for key, found in users._OF_KEYS.items():
        assert key in SETTINGS
        assert found != users._OF_SECTIONS[key.partition(".")[0]]


@pytest.mark.parametrize("key", SETTINGS)
def test_users_are_daemons_and_applications(key: str) -> None:
    assert {*users_of(key)} <= {SOURCE, RECEIVER, UPDATE, APPLICATION}


def test_what_no_release_knows_has_no_user() -> None:
    assert (users_of("nonsense.key"), users_of("nonsense")) == ((), ())
