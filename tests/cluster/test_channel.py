"""Messages between two ends of a connection in one process."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from distributed.comm import connect

from toolkit.core.errors import Lost
from toolkit.runtime.cluster.channel import Channel, Listening, blob
from toolkit.runtime.cluster.shared import near, shareable

WAYS = pytest.mark.parametrize("where", ["inproc://", "tcp://127.0.0.1"])  # by Dask's connections, by shared memory


def ends(where, heard, talk):
    """Talk over a connection whose other end hears; what talking returns."""

    async def both():
        gone = asyncio.Event()
        listener = await Listening(heard, lambda channel: gone.set()).start(where, {})
        channel = Channel(lambda channel, message: None).open(listener.address)
        try:
            return await talk(channel, gone)
        finally:
            await channel.close()
            listener.stop()

    return asyncio.run(asyncio.wait_for(both(), 20))


@WAYS
def test_messages_keep_their_order_and_their_arrays(where):
    heard = []

    async def talk(channel, gone):
        for i in range(50):
            channel.send("say", [np.full(i, i)], number=i)
        await channel.ask("over")

    ends(where, lambda channel, message: heard.append(message), talk)
    assert [m["number"] for m in heard[:-1]] == list(range(50))
    assert all(np.array_equal(m["arrays"][0], np.full(i, i)) for i, m in enumerate(heard[:-1]))


@WAYS
def test_questions_are_answered_also_out_of_order(where):
    async def slowly(seconds):
        await asyncio.sleep(seconds)
        return {"slept": seconds}

    async def talk(channel, gone):
        return await asyncio.gather(*(channel.ask("sleep", 5.0, seconds=s) for s in (0.05, 0.0)))

    answers = ends(where, lambda channel, message: slowly(message["seconds"]), talk)
    assert [answer["slept"] for answer in answers] == [0.05, 0.0]


@pytest.mark.parametrize("error", [Lost("gone"), ValueError("no")])
@WAYS
def test_an_error_is_raised_where_the_question_was_asked(error, where):
    def heard(channel, message):
        raise error

    async def talk(channel, gone):
        await channel.ask("fail")

    with pytest.raises(type(error), match=str(error)):
        ends(where, heard, talk)


@WAYS
def test_an_error_that_cannot_travel_is_told_in_words(where):
    class Local(Exception):
        def __init__(self, a, b):
            super().__init__(a)

    async def fail():
        raise Local("one", "two")

    async def talk(channel, gone):
        await channel.ask("fail")

    with pytest.raises(RuntimeError, match="Local: one"):
        ends(where, lambda channel, message: fail(), talk)


@WAYS
def test_a_question_without_an_answer_ends_with_the_connection(where):
    async def forever():
        await asyncio.sleep(1000)

    async def talk(channel, gone):
        asked = asyncio.ensure_future(channel.ask("wait"))
        await asyncio.sleep(0.05)
        channel.abort()
        with pytest.raises(ConnectionError):
            await asked
        with pytest.raises(ConnectionError):
            await channel.ask("wait")

    ends(where, lambda channel, message: forever(), talk)


def test_nobody_at_an_address_is_a_broken_connection():
    async def talk():
        with pytest.raises(ConnectionError):
            await Channel(lambda channel, message: None).open("inproc://nowhere/1/2").ask("hello")

    asyncio.run(asyncio.wait_for(talk(), 20))


@pytest.mark.parametrize("strange", ["text", {"no": "op"}, {"op": 3}, [1, 2]])
def test_what_is_no_message_ends_the_connection(strange):
    heard = []

    async def talk():
        gone = asyncio.Event()
        listener = await Listening(lambda c, m: heard.append(m), lambda c: gone.set()).start("inproc://", {})
        comm = await connect(listener.address)
        await comm.write(strange)
        await gone.wait()
        listener.stop()

    asyncio.run(asyncio.wait_for(talk(), 20))
    assert heard == []


def test_bytes_travel_as_an_array():
    assert blob(b"abc").tobytes() == b"abc"


def test_memory_is_shared_between_processes_of_a_machine_only_over_plain_tcp():
    assert shareable("tcp://127.0.0.1:1") is not None
    assert [shareable(address) for address in ("tls://127.0.0.1:1", "inproc://a/1/2", "ucx://127.0.0.1:1")] == [
        None
    ] * 3
    assert near("tcp://127.0.0.1:1") is None  # nobody listens there


def test_shared_arrays_last_as_long_as_anything_refers_to_them_and_their_memory_is_used_again():
    heard = []

    async def talk(channel, gone):
        for i in range(20):
            channel.send("say", [np.full(5000, i)], number=i)
            await channel.ask("over")
        return channel._way._segments

    def keep(channel, message):
        if message["op"] == "say" and message["number"] in (3, 7):
            heard.append(message["arrays"][0][10:20])

    segments = ends("tcp://127.0.0.1", keep, talk)
    assert [a.tolist() for a in heard] == [[3] * 10, [7] * 10]
    with pytest.raises(ValueError, match="read-only"):
        heard[0][0] = 1
    assert segments == {}


def test_memory_that_is_read_no_more_is_written_again():
    counts = []

    async def talk(channel, gone):
        for i in range(20):
            channel.send("say", [np.full(5000, i)])
            await channel.ask("over")
            counts.append(sum(map(len, channel._way._segments.values())))

    ends("tcp://127.0.0.1", lambda channel, message: None, talk)
    assert counts == [1] * 20


def test_long_messages_travel_in_shared_memory():
    async def talk(channel, gone):
        return await channel.ask("echo", 5.0, text="x" * 1_000_000)

    answer = ends("tcp://127.0.0.1", lambda channel, message: {"text": message["text"]}, talk)
    assert answer["text"] == "x" * 1_000_000


def test_a_slow_reader_loses_nothing():
    heard = []

    async def talk(channel, gone):
        for i in range(5000):
            channel.send("say", number=i)
        await channel.ask("over")

    ends("tcp://127.0.0.1", lambda channel, message: heard.append(message.get("number")), talk)
    assert heard[:-1] == list(range(5000))
