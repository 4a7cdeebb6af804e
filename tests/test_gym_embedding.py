"""The layer around servers in the manner of NeMo Gym, in memory; on real ones: gym_tests."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
from starlette.requests import Request
from starlette.responses import Response

from participants.coordination.coordinator import Coordinator, Published
from participants.coordination.trainer import Dispatch
from participants.gym.agent import GymAgent
from participants.gym.codecs import blackjack_sessions
from participants.gym.environment import GymEnvironment
from participants.gym.held import held_in
from participants.identity import OPERATION_HEADER, POSITION_HEADER, RESTART_HEADER, TRY_HEADER, VERIFY_HEADER
from participants.records.records import Disposition
from participants.servers.modes import Mode
from participants.servers.resources import Verify
from participants.serving.testing import Fault, once
from participants.settings import Settings
from tests.gym_like import Chatter, Counter, Seated, Turns, gym_counter
from tests.served_kinds import Fleet
from tests.served_kinds import run as run_fleet
from tests.whole_job import WholeJob, run, settle


def dispatch(rollout: str, turns: int) -> Dispatch:
    return Dispatch(rollout, {"question": rollout, "turns": turns}, "simple_agent")


def gym_job(job: WholeJob, counters: list[Counter], chatters: list[Chatter], *, twist: int = 0) -> None:
    """The job's tools and agent are in the manner of Gym; each start makes new ones, agents with so much more twist."""

    def tools(config: Settings, seams: Any, transport: Any) -> Any:
        counters.append(Counter())
        return gym_counter(config, seams, counters[-1]).wrap(counters[-1].app())

    def agent(config: Settings, seams: Any, transport: Any) -> Any:
        chatters.append(Chatter(twist * len(chatters)))
        gym = GymAgent("simple_agent", config, cookie="Chatter___simple_agent", seams=seams, transport=transport)
        return gym.wrap(chatters[-1].app())

    job.makers |= {"tools": tools, "simple_agent": agent}


async def until_generated(job: WholeJob, first: Coordinator, rollouts: list[Dispatch]) -> None:
    """A checkpoint holds what these rollouts could do so far, and then all servers are killed."""
    with trio.CancelScope() as abandoned:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run_batch, first.runnable(rollouts))
            await settle()
            outcome = await first.checkpoint(timeout_s=60)
            assert isinstance(outcome, Published), outcome.story()
            assert job.launcher is not None
            job.launcher.kill(*job.launcher.up)
            abandoned.cancel()


def test_a_loop_without_boundaries_goes_on_where_its_answers_end() -> None:
    """A loop whose state is in local variables runs again from the top: the calls that the checkpoint held are answered
    from it, none is made again, no session is seeded again, and the end is that of an undisturbed run.

    Covers: I54, I58, I61
    """

    async def test(job: WholeJob) -> None:
        counters: list[Counter] = []
        chatters: list[Chatter] = []
        gym_job(job, counters, chatters)
        async with job.coordinator() as first:
            await first.recover()
            job.turnstile.allow("A", 2)
            await until_generated(job, first, [dispatch("A", 5)])
        async with job.coordinator() as second:
            recovered = await second.recover()
            assert recovered.count(Disposition.CONTINUE) == 1
            job.turnstile.allow("A", 5)
            report = await second.run_batch(recovered.runnable())
            assert report.delivered == 1, report
        assert job.turnstile.seen == [("A", turn) for turn in range(1, 6)]
        assert [counter.seeds for counter in counters] == [1, 0]
        assert [counter.calls.count("/add") for counter in counters] == [2, 3]
        assert [chatter.loops for chatter in chatters] == [1, 1]
        assert [chatter.bodies[0]["_ng_attempt_index"] for chatter in chatters] == [0, 1]
        assert job.trainer is not None
        body = job.trainer.accepted["A"]
        assert body["reward"] == 15 and body["usage"] == 10
        assert [each["content"] for each in body["messages"] if each["role"] == "tool"] == ["1", "3", "6", "10", "15"]

    run(test)


def test_a_loop_that_asks_for_something_else_is_not_continued() -> None:
    """A loop that makes another call than it made before ends without a result, and says which call it was."""

    async def test(job: WholeJob) -> None:
        counters: list[Counter] = []
        chatters: list[Chatter] = []
        gym_job(job, counters, chatters, twist=1)
        async with job.coordinator() as first:
            await first.recover()
            job.turnstile.allow("A", 2)
            await until_generated(job, first, [dispatch("A", 5)])
        async with job.coordinator() as second:
            recovered = await second.recover()
            job.turnstile.allow("A", 5)
            report = await second.run_batch(recovered.runnable())
        assert list(report.lost) == ["A"]
        assert "cannot be continued: call 1 of run/1 was tools /add" in report.lost["A"]
        assert counters[-1].calls == []

    run(test)


async def started(fleet: Fleet, counter: Counter, **options: Any) -> None:
    """A counter in the manner of Gym is served, under the name `tools`."""
    participant = gym_counter(fleet.config(), fleet.seams("tools"), counter, **options)
    await fleet.start("tools", participant.wrap(counter.app()))


def test_a_rollout_over_a_server_that_takes_no_part_starts_over() -> None:
    """What such a server keeps is in no checkpoint, so the rollout is not continued without it."""

    async def test(job: WholeJob) -> None:
        counters: list[Counter] = []
        chatters: list[Chatter] = []
        gym_job(job, counters, chatters)

        def plain(config: Settings, seams: Any, transport: Any) -> Any:
            counters.append(Counter())
            return counters[-1].app()

        job.makers |= {"tools": plain}
        async with job.coordinator() as first:
            await first.recover()
            job.turnstile.allow("A", 2)
            await until_generated(job, first, [dispatch("A", 3)])
        async with job.coordinator() as second:
            recovered = await second.recover()
            assert recovered.count(Disposition.FRESH) == 1
            job.turnstile.allow("A", 3)
            report = await second.run_batch(recovered.runnable())
            assert report.delivered == 1, report
        assert [counter.seeds for counter in counters] == [1, 1]
        assert job.trainer is not None and job.trainer.accepted["A"]["reward"] == 6

    run(test)


def episode_job(job: WholeJob, counters: list[Counter], agents: list[Seated], environments: list[Turns]) -> None:
    """The job's tools, agent and environment are in the manner of Gym, and episodes are the environment's."""
    gym_job(job, counters, [])

    def agent(config: Settings, seams: Any, transport: Any) -> Any:
        agents.append(Seated(job.network.client("agent")))
        gym = GymAgent("simple_agent", config, cookie=Seated.KEY, seams=seams, transport=transport)
        return gym.wrap(agents[-1].app())

    def environment(config: Settings, seams: Any, transport: Any) -> Any:
        environments.append(Turns(config.servers))
        return GymEnvironment("env", config, seams=seams, transport=transport).wrap(environments[-1].app())

    job.makers |= {"simple_agent": agent, "env": environment}


Parts = tuple[list[Counter], list[Seated], list[Turns]]
"""The counters, agents and environments of each life of a job."""


async def crashed(job: WholeJob, *, turns: int, allowed: int) -> Parts:
    """An episode of so many turns, some of them allowed, is in a checkpoint, and all servers are killed."""
    parts: Parts = [], [], []
    episode_job(job, *parts)
    async with job.coordinator() as first:
        await first.recover()
        job.turnstile.allow("A", allowed)
        await until_generated(job, first, job.dispatches(turns, "A"))
    return parts


def test_an_episode_goes_on_under_the_names_that_it_had() -> None:
    """An environment whose handler draws new names when it runs again, an agent whose session is opened again in it,
    and tools that are called past its client: the calls that the checkpoint held are made once, the end is the same.

    Covers: I38, I54, I58
    """

    async def test(job: WholeJob) -> None:
        counters, agents, environments = await crashed(job, turns=4, allowed=2)
        async with job.coordinator() as second:
            recovered = await second.recover()
            assert recovered.count(Disposition.CONTINUE) == 1
            job.turnstile.allow("A", 4)
            report = await second.run_batch(recovered.runnable())
            assert report.delivered == 1, report
        assert job.turnstile.seen == [("A", turn) for turn in range(1, 5)]
        assert [counter.seeds for counter in counters] == [1, 0]
        assert [counter.calls.count("/add") for counter in counters] == [2, 2]
        old, new = (each.drawn for each in environments)
        assert old != new
        assert [each["agent_session_id"] for agent in agents for each in agent.opened] == [*old, *old]
        assert [agent.opened[0]["episode_id"]["attempt"] for agent in agents] == [0, 1]
        assert [agent.tools for agent in agents][1] == {}
        assert job.trainer is not None and job.trainer.accepted["A"]["reward"] == 10

    run(test)


def test_an_episode_that_has_closed_its_agents_session_goes_on_without_it() -> None:
    """A cut between the closing of the session and the verification: the agent has nothing of the rollout any more, and
    nobody misses it. The episode goes on from there, with no turn and no tool call made again.

    Covers: I54, I57, I58
    """

    async def test(job: WholeJob) -> None:
        job.network.faults = once(Fault(reply_s=5.0), path="/v1/agent_sessions/close")
        counters, agents, _ = await crashed(job, turns=3, allowed=3)
        async with job.coordinator() as second:
            recovered = await second.recover()
            assert recovered.count(Disposition.CONTINUE) == 1, recovered.verdicts
            report = await second.run_batch(recovered.runnable())
            assert report.delivered == 1, report
        assert job.turnstile.seen == [("A", turn) for turn in range(1, 4)]
        assert [counter.calls.count("/add") for counter in counters] == [3, 0]
        assert [len(agent.opened) for agent in agents] == [1, 0]
        assert job.trainer is not None and job.trainer.accepted["A"]["reward"] == 6

    run(test)


def test_an_episode_of_which_a_part_is_lost_has_no_result() -> None:
    """Gym's loops take the text of an error for a tool's answer. What is lost is none: the episode runs again."""

    async def test(job: WholeJob) -> None:
        counters: list[Counter] = []
        agents: list[Seated] = []
        episode_job(job, counters, agents, [])
        async with job.coordinator() as first:
            recovered = await first.recover()
            job.turnstile.allow("A", 1)
            async with trio.open_nursery() as nursery:

                async def play() -> None:
                    report = await first.run_batch(recovered.runnable(job.dispatches(2, "A")))
                    assert report.delivered == 1, report

                nursery.start_soon(play)
                await settle()
                assert job.launcher is not None
                job.launcher.kill("tools")
                job.turnstile.allow("A", 2)
        assert job.trainer is not None and job.trainer.accepted["A"]["reward"] == 3

    run(test)


class Client:
    """A caller of `tools` with a cookie jar."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.cookies: dict[str, str] = {}

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        jar = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        reply = await self.fleet.post("tools", path, body, headers=headers | ({"cookie": jar} if jar else {}))
        self.cookies |= dict(reply.cookies)
        return reply

    async def seed(self, rollout: str = "r1", **headers: str) -> httpx.Response:
        reply = await self.post(f"/ng-rollout/{rollout}/seed_session", {"at": 3}, **headers)
        assert reply.status_code == 200, reply.text
        return reply


def test_a_session_is_bound_when_it_is_seeded_and_named_by_its_cookie_from_then_on() -> None:
    """A tool call carries no rollout: its cookie names the session, whose position moves with each change. Gym's own
    replies come through as they are, and no cookie of ours with them.

    Covers: I36
    """

    async def test(fleet: Fleet) -> None:
        await started(fleet, Counter())
        caller = Client(fleet)
        seed = await caller.seed()
        assert seed.headers[VERIFY_HEADER] == "wait"
        assert [name for name, _ in seed.cookies.items()] == ["Counter___tools"]
        added = await caller.post("/add", {"by": 2})
        assert added.json() == {"value": 5}
        assert added.headers[POSITION_HEADER].split(".")[0] == "1"
        assert added.headers[POSITION_HEADER].split(".")[2] == seed.headers[POSITION_HEADER].split(".")[2]

    run_fleet(test)


def test_what_a_handler_raises_is_the_reply_that_gym_makes_and_moves_the_session() -> None:
    """A handler that failed may have changed the state: the position says so, and the reply is the one that Gym's
    outermost layer gives.
    """

    async def test(fleet: Fleet) -> None:
        await started(fleet, Counter())
        caller = Client(fleet)
        await caller.seed()
        failed = await caller.post("/fail")
        assert (failed.status_code, failed.json()) == (500, "ValueError('half done')")
        assert failed.headers[POSITION_HEADER].split(".")[0] == "1"
        assert (await caller.post("/add", {"by": 0})).json() == {"value": 4}

    run_fleet(test)


def test_a_call_or_a_seed_that_is_sent_again_is_not_applied_again() -> None:
    """Under the operation id of an earlier call its recorded reply comes back, cookie and all."""

    async def test(fleet: Fleet) -> None:
        counter = Counter()
        await started(fleet, counter)
        caller = Client(fleet)
        first = await caller.seed(**{OPERATION_HEADER: "seed-1"})
        caller.cookies.clear()
        again = await caller.seed(**{OPERATION_HEADER: "seed-1"})
        assert again.headers["set-cookie"] == first.headers["set-cookie"]
        for _ in range(3):
            added = await caller.post("/add", {"by": 1}, **{OPERATION_HEADER: "add-1"})
            assert added.json() == {"value": 4}
        for _ in range(2):
            verdict = await caller.post("/verify", **{OPERATION_HEADER: "verify-1"})
            assert verdict.json() == {"reward": 4}
        assert counter.calls == ["/seed_session", "/add", "/verify"]

    run_fleet(test)


class Slow(Counter):
    """A counter whose first calls of a path wait, each for its event; the first of them fails if it is to."""

    def __init__(self, path: str, *, waits: int, fails: bool = False) -> None:
        super().__init__()
        self.path, self.fails = path, fails
        self.go_on = [trio.Event() for _ in range(waits)]
        self.begun = 0

    async def serve(self, request: Request) -> Response:
        if request.url.path == self.path:
            number, self.begun = self.begun, self.begun + 1
            if number < len(self.go_on):
                await self.go_on[number].wait()
            if self.fails and number == 0:
                raise ValueError("not this time")
        return await super().serve(request)


async def sent_thrice(fleet: Fleet, counter: Slow, path: str, caller: Client) -> list[httpx.Response]:
    """One sending is under way and a second waits for it; the third comes when the first has ended."""
    replies: list[httpx.Response] = []

    async def send(number: int) -> None:
        sent = {OPERATION_HEADER: "op", TRY_HEADER: str(number)}
        replies.append(await caller.post(path, {"at": 3}, **sent))

    async with trio.open_nursery() as nursery:
        for number in (1, 2):
            nursery.start_soon(send, number)
            await settle()
        counter.go_on[0].set()
        await settle()
        nursery.start_soon(send, 3)
        await settle()
        for each in counter.go_on:
            each.set()
    return replies


def test_seeds_of_one_rollout_wait_for_each_other() -> None:
    """One fails, and of those behind it one makes the session; the others find it. Two would be two records of one
    rollout, which no restore takes. Covers: I51, I58.
    """

    async def test(fleet: Fleet) -> None:
        counter = Slow("/seed_session", waits=2, fails=True)
        await started(fleet, counter)
        replies = await sent_thrice(fleet, counter, "/ng-rollout/r1/seed_session", Client(fleet))
        assert sorted(each.status_code for each in replies) == [200, 200, 500]
        assert (await fleet.status("tools"))["report"]["counts"]["sessions"] == counter.seeds == 1

    run_fleet(test)


def test_a_close_that_is_sent_again_does_not_reach_gym_again() -> None:
    """Neither while the first one runs nor when it has its reply: what Gym says of a session that is not there is
    nobody's answer. Covers: I57, S33.
    """

    async def test(fleet: Fleet) -> None:
        counter = Slow("/close_session", waits=1)
        await started(fleet, counter)
        caller = Client(fleet)
        await caller.seed()
        replies = await sent_thrice(fleet, counter, "/ng-rollout/r1/close_session", caller)
        again = {OPERATION_HEADER: "op", TRY_HEADER: "4"}
        replies.append(await caller.post("/ng-rollout/r1/close_session", **again))
        assert [each.status_code for each in replies] == [200] * 4
        assert counter.calls.count("/close_session") == 1

    run_fleet(test)


def test_a_rollout_without_its_session_is_told_so_and_a_stranger_is_served_as_ever() -> None:
    """A server that does not know the session of a rollout never makes it again; who names no rollout gets what Gym
    gives.

    Covers: I95
    """

    async def test(fleet: Fleet) -> None:
        await started(fleet, Counter())
        caller = Client(fleet)
        lost = await caller.post("/ng-rollout/r1/add", {"by": 1})
        assert (lost.status_code, lost.json()["error"]["code"]) == (409, "session_lost")
        assert (await caller.post("/add", {"by": 1})).json() == {"value": 1}

    run_fleet(test)


def test_a_codec_that_does_not_hold_is_found_out_at_the_first_seed() -> None:
    """A codec that cannot carry what the server keeps ends the call in words that no loop takes for an answer."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, Counter(), held=blackjack_like_codec())
        caller = Client(fleet)
        reply = await caller.post("/ng-rollout/r1/seed_session", {"at": 3})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "participant_broken")
        assert "gym:blackjack" in reply.json()["error"]["detail"]

    run_fleet(test)


def blackjack_like_codec() -> Any:
    """Blackjack's codec for a dictionary of another name."""
    codec: Any = blackjack_sessions().codec
    return held_in("counts", codec.inner)


@pytest.mark.parametrize(("mode", "header"), [(Mode.STATELESS, None), (Mode.RESTART_ONLY, "1"), (Mode.DRAIN_ONLY, "1")])
def test_a_server_without_a_codec_says_what_becomes_of_its_rollouts(mode: Mode, header: str | None) -> None:
    """A stateless server has no sessions; rollouts of the others start over, and are told so at their seed."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, Counter(), held=None, mode=mode)
        caller = Client(fleet)
        seed = await caller.seed()
        assert seed.headers.get(RESTART_HEADER) == header
        assert (await caller.post("/add", {"by": 1})).json() == {"value": 4}
        status = await fleet.status("tools")
        assert status["mode"] == mode.wire
        assert status["report"]["restarts"] == ([] if header is None else ["r1"])

    run_fleet(test)


def test_a_verification_that_may_run_again_leaves_the_session() -> None:
    """With Verify.REPLAY it runs as often as it is asked, also while a checkpoint is open."""

    async def test(fleet: Fleet) -> None:
        counter = Counter()
        await started(fleet, counter, verify=Verify.REPLAY)
        caller = Client(fleet)
        seed = await caller.seed()
        assert seed.headers[VERIFY_HEADER] == "replay"
        assert (await fleet.control("tools", "prepare")).json()["phase"] == "prepared"
        for _ in range(2):
            assert (await caller.post("/verify")).json() == {"reward": 3}
        await fleet.control("tools", "resume")
        assert counter.calls.count("/verify") == 2

    run_fleet(test)


def test_what_is_over_leaves_nothing_in_gyms_own_memory() -> None:
    """A closed session and a retired one are gone from the server's dictionary too."""

    async def test(fleet: Fleet) -> None:
        counter = Counter()
        await started(fleet, counter)
        caller = Client(fleet)
        await caller.seed()
        await caller.post("/close_session")
        await Client(fleet).seed("r2")
        assert len(counter.counts) == 1
        reply = await fleet.control("tools", "retire", episode_ids=[{"rollout_id": "r2", "attempt": 0}])
        assert reply.json()["retired"] == ["r2"]
        assert counter.counts == {}
        assert (await fleet.status("tools"))["report"]["counts"]["sessions"] == 0

    run_fleet(test)
