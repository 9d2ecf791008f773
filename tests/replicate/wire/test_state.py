"""The state table, walked whole: every move in every state, and every interleaving of two ends."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from replicate.errors import InternalError, ProtocolViolationError
from replicate.wire.message import MessageType
from replicate.wire.state import TRANSITIONS, Conversation, Direction, Role, State

EVERYTHING = list(itertools.product(Role, State, Direction, MessageType))


def at(role: Role, state: State) -> Conversation:
    conversation = Conversation(role)
    conversation.state = state
    return conversation


def may_send(role: Role, state: State, message_type: MessageType) -> bool:
    return (Direction.SEND, message_type) in TRANSITIONS[role][state]


@pytest.mark.parametrize("role", Role)
def test_every_move_is_legal_or_raises_and_changes_nothing(role: Role) -> None:
    assert set(TRANSITIONS[role]) == set(State)
    for _, state, direction, message_type in (row for row in EVERYTHING if row[0] is role):
        conversation = at(role, state)
        to = TRANSITIONS[role][state].get((direction, message_type))
        move = conversation.sent if direction is Direction.SEND else conversation.received
        if to is not None:
            assert move(message_type) is to
            assert conversation.state is to
            continue
        kind = InternalError if direction is Direction.SEND else ProtocolViolationError
        with pytest.raises(kind, match=message_type.name):
            move(message_type)
        assert conversation.state is state


def test_closed_is_final() -> None:
    for role in Role:
        assert TRANSITIONS[role][State.CLOSED] == {}
        conversation = Conversation(role)
        conversation.close()
        assert conversation.state is State.CLOSED


def test_last_words_are_always_allowed() -> None:
    for role, state, direction, last in itertools.product(
        Role, State, Direction, (MessageType.BYE, MessageType.REFUSE)
    ):
        if state is not State.CLOSED:
            assert TRANSITIONS[role][state][direction, last] is State.CLOSED


def test_every_type_has_one_speaker_but_the_last_words() -> None:
    for message_type in MessageType:
        speakers = {
            role for role, rows in TRANSITIONS.items() for row in rows.values() if (Direction.SEND, message_type) in row
        }
        hearers = {
            role
            for role, rows in TRANSITIONS.items()
            for row in rows.values()
            if (Direction.RECEIVE, message_type) in row
        }
        if message_type in (MessageType.BYE, MessageType.REFUSE):
            assert speakers == hearers == set(Role)
        else:
            assert len(speakers) == len(hearers) == 1
            assert speakers != hearers


def kinds() -> list[MessageType]:
    """One message of all that go from and to the same states at both ends: which one it is makes no difference."""
    alike: dict[object, MessageType] = {}
    for message_type in MessageType:
        moves = [
            (role, state, direction, rows[state].get((direction, message_type)))
            for role, rows in TRANSITIONS.items()
            for state in State
            for direction in Direction
        ]
        alike.setdefault(tuple(moves), message_type)
    return list(alike.values())


def test_no_interleaving_makes_a_legal_message_illegal() -> None:
    """Two ends and two wires with up to three messages each: whatever one may send, the other can always receive."""
    wire_max, all_kinds = 3, kinds()
    assert len(all_kinds) < len(MessageType)
    start = (State.OPENING, State.OPENING, (), ())
    seen = {start}
    work = deque([start])
    states: set[tuple[State, State]] = set()
    while work:
        source, receiver, there, back = work.popleft()
        states.add((source, receiver))
        following = []
        for message_type in all_kinds:
            if len(there) < wire_max and may_send(Role.SOURCE, source, message_type):
                following.append((at(Role.SOURCE, source).sent(message_type), receiver, (*there, message_type), back))
            if len(back) < wire_max and may_send(Role.RECEIVER, receiver, message_type):
                following.append((source, at(Role.RECEIVER, receiver).sent(message_type), there, (*back, message_type)))
        if there:
            # A closed end hears nothing more: the links drop what comes after the last word.
            to = State.CLOSED if receiver is State.CLOSED else at(Role.RECEIVER, receiver).received(there[0])
            following.append((source, to, there[1:], back))
        if back:
            to = State.CLOSED if source is State.CLOSED else at(Role.SOURCE, source).received(back[0])
            following.append((to, receiver, there, back[1:]))
        for new in following:
            if new not in seen:
                seen.add(new)
                work.append(new)
    assert (State.STREAMING, State.STREAMING) in states
    assert (State.STREAMING, State.STOPPED) in states
    assert (State.STOPPED, State.STREAMING) in states


def test_a_source_that_heard_xoff_sends_nothing_that_the_pool_must_hold() -> None:
    allowed = {message for direction, message in TRANSITIONS[Role.SOURCE][State.STOPPED] if direction is Direction.SEND}
    roles = {MessageType.HANDOVER_ASK, MessageType.HANDOVER, MessageType.LOST_TAKEN}
    seeds = {MessageType.SEED_PREPARING, MessageType.SEED_START, MessageType.SEED_CHUNK, MessageType.SEED_END}
    assert allowed == {MessageType.HEARTBEAT, MessageType.BYE, MessageType.REFUSE, *roles, *seeds}
