"""Only a secondary is seeded: every other one is told what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import PermissionRefusedError
from replicate.roles.supplier import convert
from replicate.transfer.seed.only_secondary import require_secondary
from tests.harness.pair import Pair


def test_who_is_told_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    pair = Pair.create(tmp_path)
    pair.write(1)
    require_secondary(pair.secondary)
    with pytest.raises(PermissionRefusedError, match="is primary: only a secondary is seeded") as caught:
        require_secondary(pair.primary)
    assert caught.value.do == "Name the secondary with -i"
    convert(pair.primary, "supplier", timeout_s=30)
    with pytest.raises(PermissionRefusedError, match="is supplier: only a secondary is seeded") as caught:
        require_secondary(pair.primary)
    assert caught.value.do == f"First: {pair.primary.way_out}"
    assert "instance convert --role secondary --force, then" in caught.value.do
