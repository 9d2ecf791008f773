"""The numbers that stand for messages on the wire are for good, and each has a limit before its body is read."""

from __future__ import annotations

import pytest

from replicate.errors import ReplicateError
from replicate.limits import BATCH_BYTES_MAX, FRAME_BYTES_MAX, HELLO_BYTES_MAX, MESSAGE_BYTES_MAX
from replicate.wire.introduction import refusal
from replicate.wire.message import CHUNK_BYTES, LIMITS, MESSAGE_TYPES, OPENING_LIMITS, MessageType, RefuseCode

# As they were given. A number is never used again and never changed; a new message has a new line here.
NUMBERS = {
    "HELLO": 1, "HELLO_REPLY": 2, "RESTART": 3, "START": 4, "CATALOGUE_CHUNK": 5, "CATALOGUE_END": 6, "DATA": 7,
    "PARTS": 8, "LARGE": 9, "HEARTBEAT": 10, "HEARTBEAT_REPLY": 11, "XOFF": 12, "XON": 13, "REFUSE": 14, "BYE": 15,
    "SEED_REQUEST": 16, "SEED_PREPARING": 17, "SEED_START": 18, "SEED_CHUNK": 19, "SEED_END": 20, "SEED_ACK": 21,
    "SEED_DONE": 22, "HANDOVER_ASK": 23, "HANDOVER_READY": 24, "HANDOVER": 25, "HANDOVER_DONE": 26, "LOST_OFFER": 27,
    "LOST_CHUNK": 28, "LOST_TAKEN": 29, "SEED_REQUEST_REGIONS": 30, "CHECK": 35, "SEED_REQUEST_PARTITIONS": 36,
}  # fmt: skip


def test_numbers_stay_as_they_were_given() -> None:
    assert {one.name: one.value for one in MessageType} == NUMBERS
    assert len({*NUMBERS.values()}) == len(NUMBERS)


def test_each_message_is_named_after_its_number_and_cannot_be_changed() -> None:
    for message, number in MESSAGE_TYPES.items():
        assert message.__name__.upper() == number.name.replace("_", "")
        assert message.__struct_config__.frozen
        assert "__slots__" in vars(message)


def test_nobody_sends_much_before_he_has_said_who_he_is() -> None:
    assert {MessageType(number).name for number in OPENING_LIMITS} == {"HELLO", "HELLO_REPLY", "REFUSE", "BYE"}
    for number, limit in OPENING_LIMITS.items():
        assert 0 < limit <= HELLO_BYTES_MAX
        assert LIMITS[number] == limit


def test_each_message_has_room_for_the_most_that_it_carries() -> None:
    assert LIMITS.keys() == {*MessageType}
    assert max(LIMITS.values()) <= MESSAGE_BYTES_MAX
    carried = {"CATALOGUE_CHUNK": CHUNK_BYTES, "SEED_CHUNK": CHUNK_BYTES, "LOST_CHUNK": CHUNK_BYTES}
    carried |= {"DATA": BATCH_BYTES_MAX, "PARTS": BATCH_BYTES_MAX, "LARGE": FRAME_BYTES_MAX}
    with_bytes = {MESSAGE_TYPES[message].name for message in MESSAGE_TYPES if "data" in message.__struct_fields__}
    assert with_bytes == carried.keys()
    for name, size in carried.items():
        assert LIMITS[MessageType[name]] >= size + 1024, name


@pytest.mark.parametrize("code", RefuseCode)
def test_every_refusal_is_an_error_with_something_to_do(code: RefuseCode) -> None:
    error = refusal(code, "why")
    assert isinstance(error, ReplicateError)
    assert error.what == "why"
    assert error.do or error.remedy
    assert 0 < error.exit_code < 128
