"""Messages between two ends of a connection in one process."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from distributed.comm import connect

from toolkit.core.errors import Lost
from toolkit.runtime.cluster.channel import Channel, blob, listening


def ends(heard, talk):
    """Talk over a connection whose other end hears; what talking returns."""

    async def both():
        gone = asyncio.Event()
        listener = await listening("inproc://", heard, lambda channel: gone.set(), {})
        channel = Channel(lambda channel, message: None).open(listener.contact_address)
        try:
            return await talk(channel, gone)
        finally:
            await channel.close()
            listener.stop()

    return asyncio.run(asyncio.wait_for(both(), 20))


def test_messages_keep_their_order_and_their_arrays():
    heard = []

    async def talk(channel, gone):
        for i in range(50):
            channel.send("say", [np.full(i, i)], number=i)
        await channel.ask("over")

    ends(lambda channel, message: heard.append(message), talk)
    assert [m["number"] for m in heard[:-1]] == list(range(50))
    assert all(np.array_equal(m["arrays"][0], np.full(i, i)) for i, m in enumerate(heard[:-1]))


def test_questions_are_answered_also_out_of_order():
    async def slowly(seconds):
        await asyncio.sleep(seconds)
        return {"slept": seconds}

    async def talk(channel, gone):
        return await asyncio.gather(*(channel.ask("sleep", 5.0, seconds=s) for s in (0.05, 0.0)))

    answers = ends(lambda channel, message: slowly(message["seconds"]), talk)
    assert [answer["slept"] for answer in answers] == [0.05, 0.0]


@pytest.mark.parametrize("error", [Lost("gone"), ValueError("no")])
def test_an_error_is_raised_where_the_question_was_asked(error):
    def heard(channel, message):
        raise error

    async def talk(channel, gone):
        await channel.ask("fail")

    with pytest.raises(type(error), match=str(error)):
        ends(heard, talk)


def test_an_error_that_cannot_travel_is_told_in_words():
    class Local(Exception):
        def __init__(self, a, b):
            super().__init__(a)

    async def fail():
        raise Local("one", "two")

    async def talk(channel, gone):
        await channel.ask("fail")

    with pytest.raises(RuntimeError, match="Local: one"):
        ends(lambda channel, message: fail(), talk)


def test_a_question_without_an_answer_ends_with_the_connection():
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

    ends(lambda channel, message: forever(), talk)


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
        listener = await listening("inproc://", lambda c, m: heard.append(m), lambda c: gone.set(), {})
        comm = await connect(listener.contact_address)
        await comm.write(strange)
        await gone.wait()
        listener.stop()

    asyncio.run(asyncio.wait_for(talk(), 20))
    assert heard == []


def test_bytes_travel_as_an_array():
    assert blob(b"abc").tobytes() == b"abc"
