"""The tables that a script makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import ConfigurationError
from replicate.region.sqlite.script_tables import scripted_definitions


def test_tables_are_read_as_in_a_region(tmp_path: Path) -> None:
    script = tmp_path / "there.sql"
    script.write_text("CREATE TABLE a (x TEXT COLLATE NOCASE, y NOT NULL); CREATE VIEW v AS SELECT 1;"
                      "CREATE TABLE b (k INTEGER PRIMARY KEY, s AS (k + 1)) STRICT;")  # fmt: skip
    with pytest.raises(ConfigurationError, match="missing datatype"):
        scripted_definitions(script, region="shop")
    script.write_text(script.read_text().replace("s AS", "s INT AS"))
    a, b = scripted_definitions(script, region="shop")
    assert (a.region, a.table, a.rowid, a.key, a.columns[0].collation) == ("shop", "a", True, (0,), "NOCASE")
    assert (b.table, b.strict, [column.name for column in b.columns]) == ("b", True, ["k"])


def test_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        scripted_definitions(tmp_path / "there.sql", region="shop")
