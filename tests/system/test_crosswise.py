"""Two sites, each primary for some tables and secondary for others: two pairs of instances, crosswise, on the same two
hosts. An application reads what comes from the other site beside its own, and writes its own alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.street import QUICK, Street

CROSS = """
import sys, replicate
connection = replicate.connect(sys.argv[1], timeout=60)
connection.execute("ATTACH ? AS other", (sys.argv[2],))
for number in range(int(sys.argv[3])):
    (seen,) = connection.execute("SELECT count(*) FROM other.account").fetchone()
    connection.execute("INSERT INTO account (owner, balance) SELECT owner, ? FROM other.account WHERE id = 1", (seen,))
    connection.commit()
for refused in ("INSERT INTO other.account (owner) VALUES ('x')", "DELETE FROM other.entry", "DROP TABLE other.audit"):
    try:
        connection.execute(refused)
    except replicate.NotSupportedError as error:
        assert "attached for reading only" in str(error), error
    else:
        raise AssertionError(refused)
    connection.rollback()
print(connection.execute("SELECT max(balance) FROM account").fetchone()[0])
connection.close()
"""


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Street, Street]]:
    """The first one's primary is at the site where the second one's secondary is."""
    made = [Street(tmp_path / name, settings=QUICK) for name in ("here", "there") if (tmp_path / name).mkdir() is None]
    try:
        first, second = made
        for street in made:
            street.environment["REPLICATE_SHM_DIR"] = first.environment["REPLICATE_SHM_DIR"]
            street._usual = street._of_process()
            street.build().start()
        yield first, second
    finally:
        for street in made:
            street.close()


@pytest.mark.slow
def test_each_site_writes_its_own_tables_and_reads_the_others(both: tuple[Street, Street]) -> None:
    first, second = both
    writers = [street.writer(1, 80, pause_s=0.002) for street in both]
    crossing = [
        street.python(CROSS, str(street.primary), str(other.secondary / "regions" / "main.db"), "40")
        for street, other in (both, both[::-1])
    ]
    for process in crossing:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert int(output) > 1  # it has seen the other site's table grow
    for street, there in zip(both, writers, strict=True):
        street.finish([there])
    for street in both:
        street.prove_equal()
    refused = first.python(CROSS, str(second.secondary), str(first.database), "1")
    assert "is secondary" in refused.communicate(timeout=60)[1]
    # One site is lost as a primary; what it received goes on, and so does the other pair.
    first.kill(first.primary, "source-secondary")
    second.write("INSERT INTO audit VALUES ('alone', 1)")
    second.prove_equal()
    first.start_source()
    first.prove_equal()
