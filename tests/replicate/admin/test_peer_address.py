"""admin/peer_address.py: an address that can be registered, or why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.admin.peer_address import checked_address
from replicate.errors import ConfigurationError
from replicate.instance.instance import Instance
from replicate.settings.load import Address
from tests.harness.certificates import Authority


def test_another_host_is_reached_with_a_certificate_alone(tmp_path: Path) -> None:
    opened = Instance.create(tmp_path / "east", role="primary")
    assert checked_address(opened, "west", "127.0.0.1:7430") == Address("127.0.0.1", 7430)
    with pytest.raises(ConfigurationError, match="plain TCP does not leave the machine"):
        checked_address(opened, "west", "10.0.0.2:7430")
    with pytest.raises(ConfigurationError, match="nobody can be reached at port 0"):
        checked_address(opened, "west", "127.0.0.1:0")
    Authority(tmp_path).install(opened)
    assert checked_address(opened, "west", "10.0.0.2:7430") == Address("10.0.0.2", 7430)
