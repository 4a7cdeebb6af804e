"""Gym's servers as applications of this process, on hypercorn's trio worker, with control calls by hand."""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import trio
from attrs import frozen

from participants.serving.serve import serve

from .control import CONTROL
from .fleet import TOKEN


def gym_client() -> Any:
    """Gym's client for a server that calls nobody: its configuration is empty."""
    gym: Any = importlib.import_module("nemo_gym.server_utils")
    omegaconf: Any = importlib.import_module("omegaconf")
    head = gym.BaseServerConfig(host="127.0.0.1", port=1)
    return gym.ServerClient(head_server_config=head, global_config_dict=omegaconf.OmegaConf.create({}))


@frozen
class Served:
    """A server that runs, and a client of it that keeps cookies."""

    client: httpx.AsyncClient

    async def post(self, path: str, body: Any) -> Any:
        """The body of the answer, which is 200."""
        return await self._answered(path, body, {})

    async def control(self, verb: str, checkpoint_id: str, **fields: Any) -> Any:
        body = {"checkpoint_id": checkpoint_id, "deadline_ts": time.time() + 60} | fields
        return await self._answered(f"{CONTROL}/{verb}", body, {"authorization": f"Bearer {TOKEN}"})

    async def _answered(self, path: str, body: Any, headers: dict[str, str]) -> Any:
        reply = await self.client.post(path, json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        return reply.json()


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[Served]:
    """Inside of the block the application is served."""
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        url = await nursery.start(lambda **told: serve(app, shutdown=ended, **told))
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            yield Served(client)
        ended.set()
