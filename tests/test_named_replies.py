"""Every reply to a data call names the process that made it, also one that no application made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from participants.identity import INCARNATION_HEADER
from participants.net.http import ASGIApp
from participants.serving.testing import InMemoryNetwork
from statecore.seams import MemoryDisk
from tests.small_job import counter_resources, counting_agent, counting_environment, plain_policy, seams, settings

Maker = Callable[..., ASGIApp]
EPISODE = {"rollout_id": "p1", "attempt": 0}


@pytest.mark.trio
async def test_results_sessions_and_errors_name_the_process() -> None:
    """A result, the same one asked for again, an agent's session, a seed, a refusal: each once. Covers: I97."""
    async with InMemoryNetwork() as network:
        names = ("policy_model", "tools", "simple_agent", "env")
        config = settings(servers={name: network.url(name) for name in names})
        disk = MemoryDisk()
        makers: list[tuple[str, Maker]] = [("tools", counter_resources), ("simple_agent", counting_agent)]
        for name, make in [*makers, ("env", counting_environment)]:
            await network.start(name, make(config, seams(disk, name), network.transport(name)))
        await network.start("policy_model", plain_policy(), lifespan=False)
        run = {"episode_id": EPISODE, "task": {"question": "why", "turns": 2}}
        calls = [
            ("env", "/run", run),
            ("env", "/run", run),
            ("env", "/run", {"task": {}}),
            ("simple_agent", "/v1/agent_sessions", {"agent_session_id": "s", "episode_id": {"rollout_id": "p2"}}),
            ("simple_agent", "/v1/responses", {"episode_id": {"rollout_id": "p3"}}),
            ("tools", "/seed_session", {}),
            ("tools", "/increment", {"by": 1}),
        ]
        async with network.client() as client:
            for name, path, body in calls:
                reply = await client.post(network.url(name) + path, json=body)
                status = (await client.get(
                    f"{network.url(name)}/ng-control/v1/checkpoint/status", headers={"authorization": "Bearer tok"}
                )).json()  # fmt: skip
                assert reply.headers.get_list(INCARNATION_HEADER) == [status["incarnation"]], (path, reply.text)
