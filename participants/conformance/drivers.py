"""Drivers of the kinds here, for servers whose data routes are those of docs/reference/routes.md section 3.

They make rollouts and touch them. How something is made to take long, and where a fresh process is, is nothing that a
route says: for that, derive from one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import trio

from statecore.targets import UsageError

from ..identity import EpisodeId, with_prefix
from .said import NotTried
from .subject import Subject
from .target import Driver

MESSAGES: Final = [{"role": "user", "content": "Say a word."}]
STEP_S: Final = 0.1


class ModelDriver(Driver):
    """A policy model: one call of the chat API is a rollout's state."""

    def __init__(self, messages: Any = None, model: str = "model") -> None:
        self.body = {"model": model, "messages": MESSAGES if messages is None else messages}

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        _served(await self.touch(server, episode))

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        return await post(server, episode, "/v1/chat/completions", self.body)


class ResourcesDriver(Driver):
    """A resources server: a session is seeded, and changed by a tool call if there is one, `[path, body]`."""

    def __init__(self, tool: Any = None, seed: Any = None) -> None:
        if tool is not None and not (isinstance(tool, list) and len(tool) == 2 and isinstance(tool[0], str)):
            raise UsageError("the task of a resources server is a tool call: [PATH, BODY]")
        self.tool = tool
        self.seed = {} if seed is None else seed

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        _served(await self.touch(server, episode))

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        seeded = await post(server, episode, "/seed_session", self.seed)
        if self.tool is None or seeded.status_code != 200:
            return seeded
        cookies = {} if "set-cookie" not in seeded.headers else {"cookie": seeded.headers["set-cookie"].split(";")[0]}
        return await post(server, episode, self.tool[0], self.tool[1], cookies)


class RunDriver(Driver):
    """An environment, or an agent that owns its episodes: `/run` with the task, in the background.

    What a rollout takes until it stands is not known: `start` waits until a status counts one more, or it is over.
    """

    def __init__(self, task: Any = None) -> None:
        if task is None:
            raise UsageError("the driver of /run needs a task: give --task JSON")
        self.task = task

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        before = sum((await server.standing()).counts.values())
        replies: list[httpx.Response] = []

        async def run() -> None:
            replies.append(await self.touch(server, episode))

        server.background(run)
        while True:
            over = tuple(replies)
            if sum((await server.standing()).counts.values()) > before:
                return
            if over:
                _served(over[0])
                raise NotTried("the driver's rollout was over before a status counted it")
            await trio.sleep(STEP_S)

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        named = {"rollout_id": episode.rollout_id, "attempt": episode.attempt}
        return await server.client.post(f"{server.url}/run", json={"episode_id": named, "task": self.task})


DRIVERS: Final[Mapping[str, Callable[[Any], Driver]]] = {
    "model": ModelDriver,
    "agent": RunDriver,
    "resources": ResourcesDriver,
    "environment": RunDriver,
}


def made_of(kind: str, task: Any) -> Driver:
    """The driver of that kind."""
    return DRIVERS[kind](task)


async def post(
    server: Subject, episode: EpisodeId, path: str, body: Any, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """The answer to a call of the execution, which its path names."""
    return await server.client.post(server.url + with_prefix(episode, path), json=body, headers=headers)


def _served(reply: httpx.Response) -> None:
    if not 200 <= reply.status_code < 300:
        raise NotTried(f"the driver's rollout was not made: {reply.status_code} {reply.text[:200]}")
