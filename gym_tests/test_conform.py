"""Embedded NeMo Gym servers keep the protocol, as `statecore conform` asks for it: a server of each kind, on real HTTP.

They are not asked what needs something that takes long: none of these components has it. `python -m
gym_tests.test_conform` asks everything else of them; the tests ask what depends on the kind, since a fresh process of
Gym's takes seconds.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from participants.commands.console import show
from participants.conformance import Driver, Report, Result, Rules, Subject, Target, conform
from participants.conformance.report import tell
from participants.identity import EpisodeId, with_prefix

from .control import named
from .fleet import TOKEN, Fleet
from .job import counter_task, fleet_of, until, weather_task

SETTINGS = {"STATECORE_LEASE_GRACE_SECONDS": "1"}
SERVERS = ["policy_model", "counter", "counter_agent", "weather", "weather_agent", "weather_env"]
NOT_APPLYING = {"bad-input/acknowledgements-that-are-none"}
OF_EACH_KIND = (
    "authentication/every-route-wants-the-token",
    "phases/prepared",
    "phases/committed",
    "phases/closed-until-the-resume",
    "fencing/an-older-attempt",
    "fencing/a-retired-attempt",
    "lease/opens-the-gate",
    "lost-replies/of-a-checkpoint",
    "lost-replies/of-a-commit",
    "export-restore/comes-back-equal",
    "tombstones",
    "bad-input/acknowledgements-that-are-none",
    "bad-input/bodies-that-are-no-object",
)


class OnGym(Driver):
    """The server of that name in a fleet; a fresh process takes its place."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet = fleet
        self.name = name

    @property
    def target(self) -> Target:
        return Target(url=self.fleet.urls[self.name], token=TOKEN, root=self.fleet.root)

    def fresh(self) -> AbstractAsyncContextManager[Target]:
        return self._fresh()

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[Target]:
        def anew() -> None:
            self.fleet.kill(self.name)
            self.fleet.spawn(self.name)
            self.fleet.wait(self.name)

        await trio.to_thread.run_sync(anew)
        yield self.target


class Model(OnGym):
    """The model server: one answer is a rollout's state."""

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        reply = await self.touch(server, episode)
        assert reply.status_code == 200, reply.text

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        path = with_prefix(episode, "/v1/responses")
        return await server.client.post(server.url + path, json={"input": [{"role": "user", "content": "Hello."}]})


class Counter(OnGym):
    """The resources server: its session is seeded, and counts."""

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        reply = await self.touch(server, episode)
        assert reply.status_code == 200, reply.text

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        seeded = await server.client.post(server.url + with_prefix(episode, "/seed_session"), json={"initial_count": 3})
        if seeded.status_code != 200:
            return seeded
        cookie = {"cookie": seeded.headers["set-cookie"].split(";")[0]}
        path = with_prefix(episode, "/increment_counter")
        return await server.client.post(server.url + path, json={"count": 2}, headers=cookie)


class Running(OnGym):
    """An agent or an environment: its rollout stands in its second model call, or runs to its end."""

    def __init__(self, fleet: Fleet, name: str, task: Callable[[], dict[str, Any]]) -> None:
        super().__init__(fleet, name)
        self.task = task

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        made = len(self.fleet.model_calls())
        self.fleet.allow(1)
        server.background(self.run, server, episode)
        await until(lambda: len(self.fleet.model_calls()) >= made + 2)

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        self.fleet.allow(None)
        return await self.run(server, episode)

    async def run(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        return await server.client.post(f"{server.url}/run", json=self.asked(episode))

    def asked(self, episode: EpisodeId) -> dict[str, Any]:
        return named(self.task(), episode.rollout_id, episode.attempt)


class Episodes(Running):
    """An environment server, whose `/run` takes the task apart from who runs it."""

    def asked(self, episode: EpisodeId) -> dict[str, Any]:
        named = {"rollout_id": episode.rollout_id, "attempt": episode.attempt}
        return {"episode_id": named, "task": self.task()}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of(SERVERS, tmp_path_factory.mktemp("conform"), settings=SETTINGS) as made:
        made.up()
        yield made


DRIVERS: dict[str, Callable[[Fleet], OnGym]] = {
    "policy_model": lambda fleet: Model(fleet, "policy_model"),
    "counter": lambda fleet: Counter(fleet, "counter"),
    "counter_agent": lambda fleet: Running(fleet, "counter_agent", counter_task),
    "weather_env": lambda fleet: Episodes(fleet, "weather_env", weather_task),
}


@pytest.mark.parametrize("name", DRIVERS)
def test_an_embedded_server_of_each_kind_conforms(fleet: Fleet, name: str) -> None:
    """All that can be tried of it is as it is written.

    Covers: I14, I15, I17, I19, I21, I35, I53, I54
    """
    report = asked(fleet, name, OF_EACH_KIND)
    assert report.failed == (), text(report)
    assert not report.untried, text(report)
    assert {row.check.full_name for row in report.rows if row.result is Result.DOES_NOT_APPLY} <= NOT_APPLYING


def asked(fleet: Fleet, name: str, only: Iterable[str] = ()) -> Report:
    driver = DRIVERS[name](fleet)
    return trio.run(lambda: conform(driver.target, driver, rules=Rules(moment_s=0.5, lease_s=1.0), only=only))


def text(report: Report) -> str:
    out = io.StringIO()
    show(tell(report, verbose=True), out, plain=True)
    return out.getvalue()


def main() -> int:
    """All of them, asked everything; 1 if one does not conform."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder, fleet_of(SERVERS, Path(folder), settings=SETTINGS) as fleet:
        fleet.up()
        for name in DRIVERS:
            report = asked(fleet, name)
            print(text(report), flush=True)
            failed += bool(report.failed)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
