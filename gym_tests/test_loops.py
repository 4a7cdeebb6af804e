"""Gym's servers run on asyncio and the coordinator on trio; what is put around a server runs on both."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import httpx
import sniffio
import trio

from participants import Dispatch, Published, Settings, json_codec
from participants.gym.embedding import checkpointable
from participants.gym.held import held_in

from .fleet import TOKEN
from .in_process import gym_client, served
from .job import Keeper, counter_task, fleet_of, life, until

SERVERS = ["policy_model", "counter", "counter_agent"]
CLASSES = {
    "policy_model": "gym_tests.which_loop:Model",
    "counter": "gym_tests.which_loop:Counter",
    "counter_agent": "gym_tests.which_loop:Agent",
}
ROLLOUTS = 8


def test_a_coordinator_on_trio_stops_servers_on_asyncio(tmp_path: Path) -> None:
    """Each server says that it runs on asyncio, as Gym made it, and a coordinator on trio parks their rollouts under
    way, publishes, and lets them go on to their ends.

    Covers: I24
    """

    async def main() -> None:
        assert sniffio.current_async_library() == "trio"
        keeper = Keeper()
        with fleet_of(SERVERS, tmp_path, classes=CLASSES) as fleet:
            async with life(fleet, keeper) as job, httpx.AsyncClient(trust_env=False) as client:
                await job.recover()
                for name, url in fleet.urls.items():
                    assert (await client.get(f"{url}/which_loop")).json() == "asyncio", name
                tasks = [Dispatch(f"r{index}", counter_task(), "counter_agent") for index in range(ROLLOUTS)]
                async with trio.open_nursery() as nursery:
                    with fleet.standing(1):
                        nursery.start_soon(job.run_batch, job.runnable(tasks))
                        await until(lambda: len(fleet.model_calls()) >= 2 * ROLLOUTS)
                        outcome = await job.checkpoint()
                    assert isinstance(outcome, Published), outcome.story()
                    assert outcome.story().count(f"{ROLLOUTS} continue") == 1, outcome.story()
        assert [each["reward"] for each in keeper.results.values()] == [1.0] * ROLLOUTS

    trio.run(main)


def counter_server(settings: Settings) -> Any:
    """Gym's counter, embedded, as an application of this process."""
    component: Any = importlib.import_module("resources_servers.example_session_state_mgmt.app")
    embedded = checkpointable(
        component.StatefulCounterResourcesServer,
        codec=held_in("session_id_to_counter", json_codec()),
        settings=settings,
    )
    config = component.StatefulCounterResourcesServerConfig(
        host="127.0.0.1", port=1, entrypoint="app.py", name="counter", domain="agent"
    )
    return embedded(config=config, server_client=gym_client()).setup_webserver()


def test_an_embedded_resources_server_runs_on_trio_too(tmp_path: Path) -> None:
    """Gym's counter on hypercorn's trio worker: a session is seeded, changed, held while the server is closed, and goes
    on where it stood. (Gym's model and agent servers cannot run there: their client is aiohttp.)

    Covers: I24, I36
    """
    settings = Settings(enabled=True, control_auth_token=TOKEN, root=tmp_path)
    added: list[int] = []

    async def main() -> None:
        async with served(counter_server(settings)) as server:

            async def add(count: int) -> None:
                assert await server.post("/increment_counter", {"count": count}) == {"success": True}
                added.append(count)

            await server.post("/ng-rollout/r1/seed_session", {"initial_count": 3})
            await add(4)
            assert (await server.control("prepare", "on-trio"))["phase"] == "prepared"
            async with trio.open_nursery() as held:
                held.start_soon(add, 5)
                await trio.sleep(0.5)  # it comes meanwhile
                assert added == [4]
                await server.control("resume", "on-trio")
            value = await server.client.post("/get_counter_value", json={})
            assert value.json() == {"count": 12}
            # nobody knows which tools only read, so each call counts
            assert value.headers["x-nemo-gym-resource-state-revision"] == "3"

    trio.run(main)
