"""The bytes of both protocols: what was recorded is understood, and nothing else does any harm."""

from __future__ import annotations

import json
import random
import struct
from io import BytesIO

import pytest

from steptime.capture.dynolog import Reply
from steptime.capture.wire import (
    MAX_DATAGRAM_BYTES,
    MAX_FRAME_BYTES,
    Context,
    Request,
    WireError,
    config_reply,
    context_reply,
    decode,
    frame,
    read_frame,
)
from tests.capture.recorded import ANCESTORS, ANSWER, BUSY_POLL, CONFIG, CONTEXT, CONTEXT_ANSWER, NOTHING, PID, POLL

FUZZED = 10_000


def test_recorded_datagrams_are_understood() -> None:
    assert decode(POLL) == Request(3, 0, (PID, *ANCESTORS))
    assert decode(BUSY_POLL) == Request(1, 0, (PID, *ANCESTORS))
    assert decode(CONTEXT) == Context(0, PID, 0)


def test_answers_are_those_that_the_process_took() -> None:
    assert config_reply("") == NOTHING
    assert config_reply(CONFIG) == ANSWER
    assert context_reply(1) == CONTEXT_ANSWER


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        POLL[:39],
        POLL[:-1],
        POLL + b"\0",
        POLL + bytes(MAX_DATAGRAM_BYTES),
        POLL.replace(b"req", b"rex"),
        POLL.replace(b"req", b"r\xff\0"),
        struct.pack("<Q32s", 0, b"req"),
        struct.pack("<Q32siiq", 16, b"req", 3, 0, 0),
        struct.pack("<Q32siiq", 16, b"req", 3, 2**31 - 1, 0),
        struct.pack("<Q32siiqi", 20, b"req", 3, -1, 0, 7),
        struct.pack("<Q32siiqi", 20, b"req", 3, 1, 0, -7),
        struct.pack("<Q32si", 4, b"ctxt", 0),
    ],
)
def test_what_is_no_message_is_refused(datagram: bytes) -> None:
    with pytest.raises(WireError):
        decode(datagram)


def spoilt(good: bytes, chance: random.Random) -> bytes:
    """Noise, or a good message with some of its bytes changed, cut, or doubled."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    data = bytearray(good)
    if kind == 1:
        del data[chance.randrange(len(data)) :]
    elif kind == 2:
        data += chance.randbytes(chance.randrange(1, 100))
    for _ in range(chance.randrange(1, 6)):
        if data:
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    return bytes(data)


def test_hostile_datagrams_raise_nothing_else() -> None:
    chance = random.Random(7)
    understood = 0
    for _ in range(FUZZED):
        try:
            message = decode(spoilt(chance.choice([POLL, BUSY_POLL, CONTEXT, ANSWER]), chance))
        except WireError:
            continue
        understood += 1
        assert not isinstance(message, Request) or 1 <= len(message.pids) <= 1024
    assert 0 < understood < FUZZED / 2


def replied(raw: bytes) -> Reply:
    return read_frame(BytesIO(raw).read, Reply)


#: The answer in dynolog's documentation of its RPC, framed by hand.
REPLY = b'{"processesMatched":[7,9],"activityProfilersTriggered":[9],"activityProfilersBusy":1,"eventProfilersBusy":0}'
REPLY_FRAME = struct.pack("=i", len(REPLY)) + REPLY


def test_an_rpc_frame_is_a_length_and_json() -> None:
    assert replied(REPLY_FRAME) == Reply([7, 9], [9], 1)
    raw = frame({"fn": "getStatus"})
    assert struct.unpack("=i", raw[:4])[0] == len(raw) - 4
    assert json.loads(raw[4:]) == {"fn": "getStatus"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        REPLY_FRAME[:3],
        REPLY_FRAME[:-1],
        struct.pack("=i", -1) + REPLY,
        struct.pack("=i", MAX_FRAME_BYTES + 1) + REPLY,
        struct.pack("=i", 2) + b"{}",
        struct.pack("=i", 4) + b"null",
        struct.pack("=i", 0),
        struct.pack("=i", 100_000) + b"[" * 100_000,
        struct.pack("=i", 53) + b'{"processesMatched":[],"activityProfilersTriggered":1}'[:53],
    ],
)
def test_what_is_no_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        replied(raw)


def test_hostile_frames_raise_nothing_else() -> None:
    chance = random.Random(8)
    understood = 0
    for _ in range(FUZZED):
        raw = spoilt(REPLY_FRAME, chance)
        if chance.random() < 0.5 and len(raw) > 4:
            raw = struct.pack("=i", len(raw) - 4) + raw[4:]  # So that the JSON is reached.
        try:
            replied(raw)
        except WireError:
            continue
        understood += 1
    assert 0 < understood < FUZZED / 2
