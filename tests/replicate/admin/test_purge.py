"""`replicate instance remove --purge`: the databases of a trial go with the instance; nothing outside of it does."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

import replicate
from replicate.admin.instance_removal import remove_instance
from replicate.admin.regions import add_region
from replicate.cli import common
from replicate.cli.root import root
from replicate.errors import AlreadyExistsError, AlreadyRunningError, NotFoundError, UndeliveredError, UsageError
from replicate.instance.instance import Instance
from replicate.security.certificate import issue, make_ca
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    made.acknowledge()
    return made


def remove(instance: Instance, *options: str, answer: str | None = None) -> str:
    result = CliRunner().invoke(
        root, ["instance", "remove", str(instance.path), "--purge", *options], input=answer, standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_trials_secondary_goes_in_one_command(pair: Pair) -> None:
    database = pair.secondary.path / "regions" / "main.db"
    size = database.stat().st_size
    told = remove(pair.secondary, "--yes")
    assert told.splitlines()[0] == f"removed: {database} ({size} bytes)"
    assert told.splitlines()[-1] == f"instance removed: {pair.secondary.path}"
    assert [name for name in os.listdir(pair.directory) if "west" in name] == []
    assert [name for name in os.listdir(pair.directory / "shm") if pair.secondary.content.uuid.hex() in name] == []


def test_a_region_outside_is_released_first(pair: Pair, tmp_path: Path) -> None:
    release = f"replicate -i {pair.primary.named} region release main"
    with pytest.raises(AlreadyExistsError, match="still has regions outside of its directory: main") as caught:
        remove(pair.primary, "--yes")
    assert release in caught.value.do
    # Where it really is counts, not how its path looks.
    odd = pair.primary.path / "regions" / ".." / ".." / "app.db"
    pair.primary.move_region("main", odd)
    with pytest.raises(AlreadyExistsError, match="outside of its directory"):
        remove(pair.primary, "--yes")
    assert (tmp_path / "app.db").exists()
    assert pair.primary.path.exists()


def test_databases_in_its_own_directory_go_and_what_is_none_stays(pair: Pair, tmp_path: Path) -> None:
    made = Instance.create(tmp_path / "trial", role="primary")
    with apsw.Connection(str(made.path / "shop.db")) as database:
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY)")
    add_region(made, made.path / "shop.db")
    shutil.copy(made.path / "shop.db", made.path / "regions" / "old.db")
    (made.path / "conflict" / "1.json").write_text("{}")
    notes = made.path / "notes.txt"
    notes.write_text("mine")
    (made.path / "link.db").symlink_to(tmp_path / "app.db")
    with pytest.raises(AlreadyExistsError, match=r"still holds link\.db, notes\.txt"):
        remove(made, "--yes")
    (made.path / "link.db").unlink()
    notes.unlink()
    (made.path / "regions" / "more").mkdir()
    with pytest.raises(AlreadyExistsError, match="still holds regions/more"):
        remove(made, "--yes")
    (made.path / "regions" / "more").rmdir()
    told = json.loads(remove(made, "--yes", "--json"))
    assert {Path(one["path"]).name for one in told["purged"]} >= {"shop.db", "old.db", "1.json"}
    assert told["lost"] is None
    assert not made.path.exists()
    assert (tmp_path / "app.db").exists()


def test_the_certificates_that_were_issued_to_it_go_and_the_ca_stays(pair: Pair, tmp_path: Path) -> None:
    make_ca(tmp_path / "ca", name="ours", days=10, now_s=time.time())
    tls = pair.secondary.path / "tls"
    issue("west", ca=tmp_path / "ca", out=tls, hosts=(), days=5, now_s=time.time())
    with pytest.raises(AlreadyExistsError, match="still has regions"):
        remove_instance(pair.secondary)
    more = (tls / "ca-key.pem", tls / "old")
    more[0].write_text("of a CA")
    more[1].mkdir()
    with pytest.raises(AlreadyExistsError, match=r"still holds tls/ca-key\.pem, tls/old"):
        remove(pair.secondary, "--yes")
    more[0].unlink()
    more[1].rmdir()
    told = remove(pair.secondary, "--yes")
    for name in ("ca.pem", "certificate.pem", "key.pem"):
        assert f"removed: {tls / name} (" in told
    assert not pair.secondary.path.exists()
    assert (tmp_path / "ca" / "ca-key.pem").exists()


def test_without_a_purge_and_through_a_link_no_certificate_goes(pair: Pair, tmp_path: Path) -> None:
    made = Instance.create(tmp_path / "trial", role="primary")
    make_ca(tmp_path / "ca", name="ours", days=10, now_s=time.time())
    issue("trial", ca=tmp_path / "ca", out=made.path / "tls", hosts=(), days=5, now_s=time.time())
    with pytest.raises(AlreadyExistsError, match="still holds tls "):
        remove_instance(made)
    (made.path / "tls").rename(tmp_path / "kept")
    (made.path / "tls").symlink_to(tmp_path / "kept")
    with pytest.raises(AlreadyExistsError, match="still holds tls "):
        remove(made, "--yes")
    assert len(list((tmp_path / "kept").iterdir())) == 3


def test_a_link_among_the_databases_leads_to_nothing_that_goes(pair: Pair, tmp_path: Path) -> None:
    (pair.secondary.path / "regions" / "link.db").symlink_to(tmp_path / "app.db")
    remove(pair.secondary, "--yes")
    assert (tmp_path / "app.db").exists()
    assert pair.rows("account", pair.primary) == []


def test_it_asks_at_a_terminal_and_wants_a_word_elsewhere(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    database = pair.secondary.path / "regions" / "main.db"
    with pytest.raises(UsageError, match=rf"goes with its journal and {database} \(.*repeat the command with --yes"):
        remove(pair.secondary)
    assert pair.secondary.path.exists()
    monkeypatch.setattr(common, "is_terminal", lambda: True)
    with pytest.raises(UsageError, match="not confirmed; nothing was changed"):
        remove(pair.secondary, answer="n\n")
    assert database.exists()
    told = remove(pair.secondary, answer="y\n")
    assert f"{database} (" in told.partition("Go on?")[0]
    assert not pair.secondary.path.exists()


def test_what_no_peer_has_is_refused_before_anybody_is_asked(pair: Pair) -> None:
    inside = pair.primary.path / "regions" / "app.db"
    last = pair.write(2)
    shutil.move(pair.directory / "app.db", inside)
    pair.primary.move_region("main", inside)
    with pytest.raises(UndeliveredError, match=rf"2 transactions \({last - 1} to {last}\) are on no peer"):
        remove(pair.primary)
    remove(pair.primary, "--force", "--yes")
    assert [name for name in os.listdir(pair.directory) if "east" in name] == [f"east-lost-{last - 1}-{last}.jsonl"]


def test_refused_while_an_application_uses_it(pair: Pair) -> None:
    connection = replicate.connect(pair.secondary.path)
    with pytest.raises(AlreadyRunningError, match="a process uses the instance"):
        remove(pair.secondary, "--yes")
    connection.close()
    assert "instance removed" in remove(pair.secondary, "--yes")


def test_a_removal_that_was_interrupted_is_finished_and_nothing_else_is(pair: Pair) -> None:
    path = pair.secondary.path
    left, other = path.with_name(".west.removed-0123abcd"), path.with_name(".west.removed-mine")
    for one in (left, other):
        one.mkdir()
        (one / "main.db").write_bytes(b"rows")
    path.rename(path.with_name("moved"))
    assert remove(pair.secondary) == f"instance removed: {path}\n"
    assert (left.exists(), other.exists()) == (False, True)
    with pytest.raises(NotFoundError, match="there is no such instance directory"):
        remove(pair.secondary)


def test_a_damaged_instance_file_does_not_tell_what_may_go(pair: Pair) -> None:
    (pair.secondary.path / "instance.json").write_text("{}")
    with pytest.raises(UsageError, match="Leave --purge out"):
        remove(pair.secondary, "--force", "--yes")
