"""The table of findings: codes that scripts match on, each with one sentence; and what `--explain` says of any word."""

from __future__ import annotations

import re

import pytest

from replicate.errors import ERRORS, UsageError
from replicate.model.findings import CODES, SEVERITIES, Finding, explained


def test_every_code_is_a_word_for_one_thing() -> None:
    for code, kind in CODES.items():
        assert kind.code == code
        assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code)
        assert kind.severity in SEVERITIES
        assert re.fullmatch(r"[A-Z][^\n]*[.]", kind.meaning), code
        assert len(kind.meaning) <= 120


def test_a_finding_has_its_codes_severity_and_knows_no_other_code() -> None:
    for code, kind in CODES.items():
        found = Finding(code, "what", "do")
        assert found.severity == kind.severity
        assert found.is_wrong == (kind.severity != "info")
    with pytest.raises(KeyError):
        Finding("NONSENSE", "what", "do")


@pytest.mark.parametrize("code", CODES)
def test_a_code_is_explained_however_it_is_spelt(code: str) -> None:
    assert explained(code.lower().replace("_", "-")) is CODES[code]


@pytest.mark.parametrize("code", [code for code in ERRORS if code not in CODES])
def test_an_error_is_explained_by_its_first_sentence_and_exit_code(code: str) -> None:
    kind = explained(code)
    assert (kind.code, kind.severity) == (code, None)
    assert re.fullmatch(rf"An error of exit code {ERRORS[code].exit_code}: [A-Z`].+[.]", kind.meaning)
    assert "\n" not in kind.meaning


def test_a_word_that_is_none_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        explained("jurnal-full")
    assert caught.value.do == "Did you mean JOURNAL_FULL?"
    with pytest.raises(UsageError) as caught:
        explained("zzz")
    assert caught.value.do == "`replicate status --explain all` lists the findings"
