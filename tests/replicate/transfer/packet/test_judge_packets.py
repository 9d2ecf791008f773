"""Which packets count: for us, of our network, of one who may send; and what a peer says is judged as on a line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from replicate.errors import NotAuthenticatedError, PeerError, WrongInstanceError
from replicate.instance.consumers import Consumer, read_consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.security.certificate import issue, make_ca
from replicate.transfer.packet.epochs_file import read_epochs
from replicate.transfer.packet.judge_packets import look, take_words
from tests.harness.packets import export, take
from tests.harness.pair import Pair


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    return made


def certify(pair: Pair, **named: str) -> None:
    """Certificates for both sites; west takes what east sends. `named`: other names in them."""
    make_ca(pair.directory / "ca", name="ours", days=30, now_s=time.time())
    for instance in (pair.primary, pair.secondary):
        name = named.get(instance.name, instance.name)
        issue(name, ca=pair.directory / "ca", out=instance.path / "tls", hosts=[], days=9, now_s=time.time())
    with open(pair.secondary.path / "replicate.toml", "a") as file:
        file.write('[receiver]\nallow = "east"\n')
    pair.secondary = Instance.open(pair.secondary.path)


def increment(pair: Pair) -> Path:
    pair.write(3)
    (made,) = export(pair.primary, pair.directory / "out", "west")
    return made.path


def receipt(pair: Pair) -> Path:
    (made,) = export(pair.secondary, pair.directory / "back", "east", receipt=True)
    return made.path


def test_signed_by_one_who_may_send(pair: Pair) -> None:
    certify(pair)
    take(pair.secondary, increment(pair))
    assert pair.last_seqno(pair.secondary) == pair.last_seqno()
    take(pair.primary, receipt(pair))
    consumer = read_consumer(pair.primary.consumers_directory, "west")
    assert consumer is not None
    assert consumer.acknowledged_seqno == pair.last_seqno()


def test_unsigned_where_there_is_a_certificate(pair: Pair) -> None:
    path = increment(pair)
    certify(pair)
    with pytest.raises(NotAuthenticatedError, match="is not signed") as caught:
        take(pair.secondary, path)
    assert "packets.unsigned accept" in caught.value.do
    with open(pair.secondary.path / "replicate.toml", "a") as file:
        file.write('[packets]\nunsigned = "accept"\n')
    take(Instance.open(pair.secondary.path), path)


def test_signed_by_one_who_may_not_send(pair: Pair) -> None:
    certify(pair, east="north")
    path = increment(pair)
    with pytest.raises(PeerError, match="north") as caught:
        take(pair.secondary, path)
    assert caught.value.where == str(path)
    assert pair.last_seqno(pair.secondary) < pair.last_seqno()


def test_signed_by_a_certificate_that_has_expired_since(pair: Pair) -> None:
    """A packet may be weeks on its way: its signer's certificate must be valid when it is taken."""
    certify(pair)
    path = increment(pair)
    late_s = time.time() + 10 * 86_400
    inbox = look(pair.secondary, [path], late_s)
    assert inbox.packets == ()
    (error,) = inbox.refused
    assert isinstance(error, NotAuthenticatedError)
    assert "have expired" in error.do
    assert error.where == str(path)
    assert look(pair.secondary, [path], time.time()).refused == ()


def test_signed_by_another_than_it_says(pair: Pair) -> None:
    certify(pair, east="north")
    toml = pair.secondary.path / "replicate.toml"
    toml.write_text(toml.read_text().replace('"east"', '"east, north"'))
    pair.secondary = Instance.open(pair.secondary.path)
    with pytest.raises(WrongInstanceError, match="says that east made it, and north has signed it"):
        take(pair.secondary, increment(pair))


def test_a_receipt_of_one_who_is_not_that_peer(pair: Pair) -> None:
    certify(pair, west="south")
    with pytest.raises(NotAuthenticatedError):
        take(pair.primary, receipt(pair))
    assert read_epochs(pair.primary.consumers_directory).replicas == {}


def test_a_receipt_of_another_instance_of_that_name(pair: Pair) -> None:
    write_consumer(pair.primary.consumers_directory, Consumer("west", 2, "ab" * 16, 1))
    with pytest.raises(WrongInstanceError, match="not the peer of that name"):
        take(pair.primary, receipt(pair))


def test_a_receipt_that_is_ahead_is_refused_as_on_a_line(pair: Pair) -> None:
    """A primary that was restored from a backup keeps and sends nothing by it."""
    take(pair.secondary, increment(pair))
    (told,) = look(pair.primary, [receipt(pair)], time.time()).packets
    (pair.directory / "other").mkdir()
    other = Pair.create(pair.directory / "other")
    heard, refused = take_words(other.primary, [told], ())
    assert heard == ()
    assert "says that west has transaction" in refused[0][1].what
    assert refused[0][1].do
    assert read_epochs(other.primary.consumers_directory).replicas == {}
    assert read_consumer(other.primary.consumers_directory, "west") is None


def test_the_newest_word_counts(pair: Pair) -> None:
    old = receipt(pair)
    take(pair.secondary, increment(pair))
    new = receipt(pair)
    take(pair.primary, new, old)
    take(pair.primary, old)
    heard = read_epochs(pair.primary.consumers_directory).of("west").heard
    assert heard is not None
    assert heard.seqno == pair.last_seqno()
    consumer = read_consumer(pair.primary.consumers_directory, "west")
    assert consumer is not None
    assert consumer.acknowledged_seqno == pair.last_seqno()


def test_an_inbox_tells_what_is_in_it(pair: Pair) -> None:
    path = increment(pair)
    (path.parent / "bad.packet").write_bytes(b"bad")
    receipt_path = receipt(pair)
    receipt_path.rename(path.parent / receipt_path.name)
    inbox = look(pair.secondary, [path.parent], time.time())
    assert [one.path.name for one in inbox.packets] == [path.name]
    assert [error.code for error in inbox.refused] == ["DAMAGED"]
    assert inbox.for_others == 1
