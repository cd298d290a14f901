"""The processes of a cluster of Dask: connected, counted, and more of them where we may."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from distributed import Client

from toolkit.core.errors import Refused
from toolkit.runtime.cluster.agent import Agent, card
from toolkit.runtime.cluster.local import Local

#: Seconds in which a scheduler must answer, a missing worker may still come, and one of our own must have started.
CONNECT, COME, START = 10.0, 5.0, 60.0
#: Seconds in which a process must answer, and between two counts.
ANSWER, LOOK = 15.0, 2.0

T = TypeVar("T")


def connected(cluster: Any) -> Client:
    """A client of a cluster, or of the scheduler at an address; a client is itself."""
    if isinstance(cluster, Client):
        if cluster.asynchronous:
            raise Refused(
                "Dask was given an asynchronous client. A run is waited for, and would block the loop of that client. "
                "Give an ordinary Client, or the address of the scheduler."
            )
        return cluster
    try:
        return Client(cluster, timeout=CONNECT, set_as_default=False)
    except Exception as error:  # an address that cannot be is told in many ways
        raise Refused(
            f"No scheduler answered at {address(cluster)} within {CONNECT:g} s ({type(error).__name__}: {error}). A "
            f"run needs one. Check the address, start a scheduler there, or leave it out to start processes here."
        ) from None


def asked(client: Client, function: Callable[..., T], *arguments: Any) -> tuple[dict[str, T], list[str]]:
    """What ``function(*arguments, dask_worker)`` returns at each process, and the processes that do not answer."""

    async def ask(process: str) -> T:
        running = client.run(function, *arguments, workers=[process])
        answer: dict[str, T] = await asyncio.wait_for(running, ANSWER)
        return answer[process]

    async def all() -> list[T | BaseException]:
        return await asyncio.gather(*(ask(process) for process in processes), return_exceptions=True)

    processes = list(client.scheduler_info(n_workers=-1)["workers"])
    answers = dict(zip(processes, client.sync(all), strict=True))
    heard = {process: answer for process, answer in answers.items() if not isinstance(answer, BaseException)}
    return heard, [process for process, answer in answers.items() if isinstance(answer, TimeoutError)]


def equipped(client: Client) -> None:
    """Give an agent to every process, also to those that come later; one that does not answer is not waited for."""
    _, silent = asked(client, os.getpid)

    async def equip() -> None:
        with contextlib.suppress(TimeoutError):  # what an agent needs is imported first, which may take long
            await asyncio.wait_for(client.register_plugin(Agent()), ANSWER if silent else START)

    client.sync(equip)


def cards(client: Client, needed: int, owned: Local | None) -> list[dict[str, Any]]:
    """The cards of `needed` processes, those that take part in no run first; what is missing is waited for."""
    equipped(client)
    late = time.monotonic() + (COME if owned is None else START)
    while True:
        heard, silent = asked(client, card)
        found = [card for card in heard.values() if card is not None]
        if len(found) >= needed:
            return sorted(found, key=lambda c: (c["member"] is not None, c["machine"], c["address"]))[:needed]
        if time.monotonic() > late:
            mute = f", and {', '.join(silent)} gave no answer within {ANSWER:g} s" if silent else ""
            raise Refused(
                f"The run needs {needed} processes and the cluster at {address(client)} has {len(found)}{mute}. Each "
                f"host of places and the coordinator have one of their own. Start {needed - len(found)} more Dask "
                f"workers, or let places share a host by hosts={{place: host}}."
            )
        if owned is not None:
            owned.scale(needed)
        with contextlib.suppress(TimeoutError):
            client.wait_for_workers(needed, timeout=LOOK)


def address(cluster: Any) -> str:
    """The address of the scheduler of a client or cluster, or the address itself."""
    if isinstance(cluster, Client):
        return str(cluster.scheduler.address if cluster.scheduler else "a closed client")
    return str(getattr(cluster, "scheduler_address", cluster))


def warn_if_crowded(count: int, cards: Sequence[Mapping[str, Any]]) -> bool:
    """Say if more processes compute than there are cores for them, and return whether it is so."""
    cores = sum(len(c["cores"]) for c in {c["machine"]: c for c in cards}.values())
    if count > cores:
        warnings.warn_explicit(  # said in the background, where no line of the user's is to be seen
            f"{count} processes compute on {cores} cores: their steps take turns, and times say little about a real "
            f"cluster unless the steps are padded to fit. The record of the run is flagged as oversubscribed.",
            UserWarning,
            "toolkit",
            0,
        )
    return count > cores
