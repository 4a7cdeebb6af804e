"""One running server of a kind under any control calls at all, while rollouts go through it.

Every verb is sent in every phase: in time and too late, twice, with other arguments, with ids that are open, ended or
new, for another process, without the token; calls are lost, late and repeated; leases end. What the server says and
what it is are held against docs/reference/protocol.md section 5, and against what was seen of it before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import httpx
import trio
import trio.testing
from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import precondition

from participants.identity import INCARNATION_HEADER
from participants.machines.control import Phase
from participants.net.http import ASGIApp
from participants.servers.participant import Participant
from participants.servers.policy_model import PolicyModel
from participants.servers.server import Server
from participants.servers.upstream import ReplyCutOff
from participants.serving.testing import Call, Fault, InMemoryNetwork
from statecore.testing.stateful import AsyncRuleBasedStateMachine, initialize, invariant, rule
from statecore.wire import encode
from stateful_tests.running_job import Generations
from tests.served_kinds import CONTROL, Fleet
from tests.small_job import ROOT, counter_resources, counting_agent, counting_environment

NAMES = ("policy_model", "tools", "simple_agent", "env")
TURNS = 3
REWARD = 6
GRACE_S = 5.0
BOUNDED_S = 2.0
"""A call may take so much longer than its deadline says."""
FAULTS = {
    "request lost": Fault(lose_request=True),
    "reply lost": Fault(lose_reply=True),
    "request late": Fault(request_s=3.0),
    "repeated": Fault(repeat_s=3.0),
    "silent": Fault(silent=True),
}
CLOSED = (Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED)

which_id = st.sampled_from(["open", "open", "new", "over"])
times = st.sampled_from([10.0, 0.5, -1.0])
patiences = st.sampled_from([0.0, 0.2, 4.0, 20.0])


@define(eq=False)
class Seen:
    """What has been seen of the server, by what it was after each step and by what it answered."""

    holding: str | None = None
    over: set[str] = field(factory=set)
    answers: dict[tuple[str, str, str], Any] = field(factory=dict)  # (verb, id, arguments): what it said first
    written: dict[str, bytes] = field(factory=dict)  # files, by path, of checkpoints that are over
    asked: set[str] = field(factory=set)  # directories, by commits
    retired: set[str] = field(factory=set)
    frozen: dict[str, Any] = field(factory=dict)  # by checkpoint: positions of the sessions


@define
class _Came:
    """What a call was answered; None: nothing."""

    reply: httpx.Response | None = None


def _takes(seconds: float) -> Any:
    async def work(*_of_what: object) -> None:
        await trio.sleep(seconds)

    return work


class KindRules(AsyncRuleBasedStateMachine):
    """Server `name` under test, with the other three beside it."""

    name: ClassVar[str]
    step_limit_s = 20_000.0
    made: ClassVar[dict[str, Any]] = {}
    """Makers of servers that are other ones, by name: what a fault is planted in."""
    came: ClassVar[dict[str, int]] = {}
    may_leave: ClassVar[bool] = False
    """Whether what is prepared may be given up by its owner, which is another server and open here."""
    stands: ClassVar[tuple[Phase, ...]] = (Phase.PREPARED, Phase.COMMITTED)
    """When none of its positions moves."""

    @initialize(
        allowed=st.lists(st.integers(0, TURNS), min_size=1, max_size=3), after_s=st.sampled_from([2.0, 1.1, 0.1])
    )
    async def open(self, allowed: list[int], after_s: float) -> None:
        """Four servers, and rollouts that go through them: the model, a tool call and a step take their time."""
        network: InMemoryNetwork = await self.nursery.start(self._keep_network)
        self.fleet = Fleet(network)
        self.model = Generations()
        config = self.fleet.config(*NAMES, lease_grace_seconds=GRACE_S)
        makers: dict[str, Any] = {
            "policy_model": self._policy,
            "tools": partial(counter_resources, before=_takes(1.5)),
            "simple_agent": partial(counting_agent, before=_takes(0.5)),
            "env": partial(counting_environment, before=_takes(1.0)),
            **self.made,
        }
        for name in NAMES:
            app: ASGIApp = makers[name](config, self.fleet.seams(name), network.transport(name))
            if name == self.name:
                self.server: Server = app.server  # type: ignore[attr-defined]
            await network.start(name, app)
        self.strikes: list[str] = []
        network.faults = self._fault
        self.seen = Seen()
        self.problems: list[str] = []
        self.runs: dict[str, int] = {}
        self.results: dict[str, Any] = {}
        self.numbered = 0
        for turns in allowed:
            self._start(turns)
        await trio.sleep(after_s)

    async def _keep_network(self, task_status: trio.TaskStatus[InMemoryNetwork]) -> None:
        async with InMemoryNetwork() as network:
            task_status.started(network)
            await trio.sleep_forever()

    def _policy(self, config: Any, seams: Any, transport: Any) -> ASGIApp:
        async def generate(path: str, body: dict[str, Any]) -> dict[str, Any]:
            return await self.model.generate(0, path, body)

        return PolicyModel("policy_model", config, generate, seams=seams, transport=transport).app()

    def _fault(self, call: Call) -> Fault | None:
        struck = call.source == "test" and CONTROL in call.path and bool(self.strikes)
        return FAULTS[self.strikes.pop()] if struck else None

    @property
    def participant(self) -> Participant:
        assert self.server.participant is not None
        return self.server.participant

    def _count(self, what: str) -> None:
        self.came[what] = self.came.get(what, 0) + 1

    # --- rollouts

    @precondition(lambda self: len(self.runs) < 4)
    @rule(turns=st.integers(0, TURNS))
    async def run(self, turns: int) -> None:
        """A rollout starts and may take some turns."""
        self._start(turns)
        await trio.sleep(0.1)

    def _start(self, turns: int) -> None:
        rollout = f"r{len(self.runs)}"
        self.runs[rollout] = 0
        self.model.allow(rollout, turns)
        self.nursery.start_soon(self._run, rollout)

    async def _run(self, rollout: str) -> None:
        task = {"episode_id": {"rollout_id": rollout}, "task": {"question": rollout, "turns": TURNS}}
        while True:
            reply = await self.fleet.post("env", "/run", task)
            if reply.status_code == 409 and reply.json()["error"]["code"] == "admission_closed":
                await trio.sleep(1.0)
                continue
            self.results[rollout] = (reply.status_code, reply.json())
            return

    @precondition(lambda self: bool(self.runs))
    @rule(number=st.integers(0, 3), turns=st.integers(1, TURNS))
    async def allow(self, number: int, turns: int) -> None:
        self.model.allow(sorted(self.runs)[number % len(self.runs)], turns)
        await trio.sleep(0.1)

    @rule(seconds=st.sampled_from([0.3, 2.0, 8.0, 40.0]))
    async def wait(self, seconds: float) -> None:
        await trio.sleep(seconds)

    # --- calls

    def _id(self, which: str) -> str:
        """The id of the open checkpoint, one that is over, or else a new one; every other is numbered as ours are."""
        if which == "open" and self.seen.holding is not None:
            return self.seen.holding
        if which == "over" and self.seen.over:
            return sorted(self.seen.over)[-1]
        self.numbered += 1
        return f"c{self.numbered}" if self.numbered % 2 else f"ck-000001-{self.numbered:06d}"

    @rule(which=which_id, within_s=times, patience_s=patiences)
    async def prepare(self, which: str, within_s: float, patience_s: float) -> None:
        """A prepare is sent, and not waited for longer than that."""
        self.nursery.start_soon(self._call, "prepare", self._id(which), within_s, {})
        await trio.sleep(patience_s)

    @rule(which=which_id, within_s=times, elsewhere=st.booleans(), some=st.booleans(), patience_s=patiences)
    async def commit(
        self, which: str, within_s: float, elsewhere: bool, some: bool, patience_s: float
    ) -> None:
        checkpoint_id = self._id(which)
        scope = [{"rollout_id": each} for each in sorted(self.runs) if each not in self.results]
        directory = str(ROOT / checkpoint_id / ("elsewhere" if elsewhere else self.name))
        body = {"checkpoint_dir": directory, "episode_ids": scope[: 1 if some else None]}
        self.nursery.start_soon(self._call, "commit", checkpoint_id, within_s, body)
        await trio.sleep(patience_s)

    @precondition(lambda self: bool(self.runs) and self.seen.holding is None)
    @rule()
    async def checkpoint(self) -> None:
        """Most of one, as a coordinator takes it: prepare, and commit of whoever has no result.

        Another commit under its id must be refused (S26), and who only looks whether it is there is answered (S20).
        """
        checkpoint_id = self._id("new")
        await self._call("prepare", checkpoint_id, -1.0, {})  # answered at once: what moves is named (S10)
        await self._call("prepare", checkpoint_id, 10.0, {})
        scope = [{"rollout_id": each} for each in sorted(self.runs) if each not in self.results]
        body = {"checkpoint_dir": str(ROOT / checkpoint_id / self.name), "episode_ids": scope}
        await self._call("commit", checkpoint_id, 10.0, body)
        elsewhere = str(ROOT / checkpoint_id / "elsewhere")
        await self._call("commit", checkpoint_id, 10.0, body | {"checkpoint_dir": elsewhere})
        probe = await self.fleet.client.get(self.fleet.network.url(self.name) + "/livez")
        assert probe.status_code in (200, 404), f"S20: a probe of {self.name} got {probe.status_code} {probe.text}"

    def _source(self, which: str) -> str:
        """A checkpoint that was committed here, if there is one and no new one is wanted."""
        committed = sorted(checkpoint_id for verb, checkpoint_id, _ in self.seen.answers if verb == "commit")
        return committed[-1] if committed and which != "new" else self._id(which)

    @rule(verb=st.sampled_from(["resume", "renew"]), which=which_id, within_s=times)
    async def end_or_renew(self, verb: str, which: str, within_s: float) -> None:
        await self._call(verb, self._id(which), within_s, {})

    async def _restore_at_work(self) -> None:
        """A restore that reaches a server with sessions, of what was committed here, is refused (S29)."""
        source = self._source("over")
        if self._positions() and any(key[:2] == ("commit", source) for key in self.seen.answers):
            body = {"checkpoint_dir": str(ROOT / source / self.name), "episode_ids": [{"rollout_id": "r0"}]}
            with self._may_retire("r0") as came:
                reply = came.reply = await self._call("restore", f"rs-000001-{self.numbered:06d}", 10.0, body)
            assert reply is None or reply.status_code != 200, f"I53: restored while it has sessions: {reply.text}"

    @rule(which=which_id, source=which_id)
    async def restore(self, which: str, source: str) -> None:
        """Into a server that has a session or an episode, or nothing to read: refused, and it goes on as before."""
        checkpoint_id = self._id(which)
        body = {"checkpoint_dir": str(ROOT / self._source(source) / self.name), "episode_ids": [{"rollout_id": "r0"}]}
        has, began = self._positions(), trio.current_time()
        idle = self.participant.control.checkpoint_id is None
        with self._may_retire("r0") as came:
            reply = came.reply = await self._call("restore", checkpoint_id, 10.0, body)
        if has and idle and reply is not None and began == trio.current_time():
            assert reply.status_code != 200 or checkpoint_id in self.seen.over, f"I53: {reply.text}"

    @precondition(lambda self: bool(self.runs))
    @rule(which=which_id, number=st.integers(0, 3))
    async def retire(self, which: str, number: int) -> None:
        """An attempt is ended here; what it still asks of this server is told so."""
        rollout = sorted(self.runs)[number % len(self.runs)]
        body = {"episode_ids": [{"rollout_id": rollout}]}
        with self._may_retire(rollout) as came:
            came.reply = await self._call("retire", self._id(which), 10.0, body)

    @contextmanager
    def _may_retire(self, rollout: str) -> Iterator[_Came]:
        """The call inside ends the first attempt if it comes about: with its answer, without one, or sent once more.

        Not of a rollout that has its result by then.
        """
        came, struck, over = _Came(), bool(self.strikes), rollout in self.results
        yield came
        if not over and (struck or came.reply is None or came.reply.status_code == 200):
            self.seen.retired.add(rollout)

    @rule(
        verb=st.sampled_from(["prepare", "commit", "restore", "resume", "renew", "retire", "forget"]),
        which=which_id,
        who=st.sampled_from(["nobody", "another token", "for another process", "with another field", "no deadline"]),
    )
    async def call_wrongly(self, verb: str, which: str, who: str) -> None:
        """A call that must not have any effect, whatever the phase is. Covers: I19, S59"""
        bodies: dict[str, dict[str, Any]] = {
            "commit": {"checkpoint_dir": str(ROOT / "x"), "episode_ids": []},
            "restore": {"checkpoint_dir": str(ROOT / "x"), "episode_ids": []},
            "retire": {"episode_ids": [{"rollout_id": "r0"}]},
            "forget": {"rollout_ids": ["r0"]},
        }
        body = {"checkpoint_id": self._id(which), "deadline_ts": self.fleet.now() + 10.0, **bodies.get(verb, {})}
        headers = {"authorization": "Bearer tok"}
        wanted = {"nobody": 401, "another token": 401, "for another process": 409}.get(who, 422)
        if who == "nobody":
            headers = {}
        elif who == "another token":
            headers = {"authorization": "Bearer other"}
        elif who == "for another process":
            headers[INCARNATION_HEADER] = "0" * 32
        elif who == "no deadline":
            del body["deadline_ts"]
        else:
            body["unheard_of"] = 1
        self.strikes.clear()
        await trio.testing.wait_all_tasks_blocked()  # a call that nobody waited for may be on its way
        before = self._control()
        url = self.fleet.network.url(self.name) + CONTROL + verb
        reply = await self.fleet.client.post(url, json=body, headers=headers)
        assert reply.status_code == wanted, f"I19: {verb} by {who} got {reply.status_code} {reply.text}"
        after = self._control()
        assert after == before or self._lease_is_over(before), f"I19: {verb} by {who} has an effect"

    def _control(self) -> Any:
        participant = self.participant
        return participant.phase, participant.control, self.server.admission.is_open

    def _lease_is_over(self, before: Any) -> bool:
        until = before[1].lease_until
        return until is not None and self.fleet.now() >= until

    @rule(what=st.sampled_from(sorted(FAULTS)))
    async def disturb(self, what: str) -> None:
        """The next control call is lost, late or repeated."""
        self.strikes.append(what)

    async def _call(
        self, verb: str, checkpoint_id: str, within_s: float, body: dict[str, Any]
    ) -> httpx.Response | None:
        """The call, and what can be said of its answer."""
        began = trio.current_time()
        was_over = checkpoint_id in self.seen.over
        wrote = len(self.fleet.disk.log)
        self.seen.asked |= {body["checkpoint_dir"]} if verb == "commit" else set()
        try:
            with trio.fail_after(max(0.0, within_s) + 60.0):
                reply = await self.fleet.control(self.name, verb, checkpoint_id, within_s=within_s, **body)
        except (httpx.TransportError, trio.TooSlowError):
            return None
        took_s = trio.current_time() - began
        late = took_s > max(0.0, within_s) + BOUNDED_S + 3.0  # 3 s on the way, if it is late
        if late:
            self.problems.append(f"I18: {verb} took {took_s:.1f} s of {within_s}")
        self._count(f"{verb} {reply.status_code}")
        if reply.status_code == 200:
            self._answered(verb, checkpoint_id, body, reply, was_over)
            if verb == "prepare" and (here := self._not_by_commits(self.fleet.disk.log[wrote:])):
                self.problems.append(f"I40: prepare wrote {here}")
        elif reply.status_code >= 500:
            self.problems.append(f"{verb} {checkpoint_id}: {reply.status_code} {reply.text}")
        return reply

    def _not_by_commits(self, log: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """What was done to files that no commit was asked to write, nor the directories above them."""
        asked = [Path(each) for each in self.seen.asked]
        return [
            (operation, path)
            for operation, path in log
            if not any(Path(path).is_relative_to(each) or each.is_relative_to(path) for each in asked)
        ]

    def _answered(self, verb: str, checkpoint_id: str, body: Any, reply: httpx.Response, was_over: bool) -> None:
        answer = {name: value for name, value in reply.json().items() if name not in ("server_ts", "epoch")}
        self._count(f"{verb}: {answer.get('phase')}")
        if was_over and verb in ("prepare", "commit", "renew") and answer.get("phase") != "idle":
            self.problems.append(f"I14: {verb} of {checkpoint_id}, which is over, was answered {answer}")
        if verb == "prepare" and answer.get("phase") == "preparing":
            named = answer["report"]["blocker_details"]
            if not named or not all(each["reason"] for each in named):
                self.problems.append(f"S10: {checkpoint_id} is not prepared, and it is not said why: {answer}")
        if answer.get("phase") in ("prepared", "committed") and verb in ("prepare", "commit"):
            first = self.seen.answers.setdefault((verb, checkpoint_id, encode(body).decode()), answer)
            if answer != first and answer["phase"] == first["phase"]:
                self.problems.append(f"I15: {verb} of {checkpoint_id} was answered {first}, and now {answer}")
            other = [key for key in self.seen.answers if key[:2] == (verb, checkpoint_id)]
            if verb == "commit" and len(other) > 1:
                self.problems.append(f"S26: {checkpoint_id} was committed with {[key[2] for key in other]}")

    # --- what must be true

    @invariant()
    async def promises_are_kept(self) -> None:
        """All that can be seen of the server now, and on the disk.

        Covers: I13, I14, I15, I16, I17, I18, I19, I21, I24, I40, I43, I48
        """
        assert not self.problems, self.problems
        raised = [each for each in self.fleet.network.errors if not isinstance(each.error, ReplyCutOff)]
        assert not raised, raised  # a reply to an attempt that is retired is cut off
        self._phases()
        self._ids()
        self._standing()
        self._files()

    def _phases(self) -> None:
        participant, now = self.participant, self.fleet.now()
        phase, is_open, control = participant.phase, self.server.admission.is_open, participant.control
        assert is_open == (phase is Phase.IDLE and control.reading is None), f"I16: {phase}, open: {is_open}"
        if phase in CLOSED:
            self._count(str(phase))
            assert control.lease_until is not None, f"I21: {phase} without a lease"
            assert now <= control.lease_until + 0.1, f"I21: {phase} {now - control.lease_until:.1f} s after its lease"

    def _ids(self) -> None:
        holding = self.participant.control.checkpoint_id
        before, self.seen.holding = self.seen.holding, holding
        if before is not None and holding != before:
            self.seen.over.add(before)
            self.seen.written |= self._under(before)
        assert holding not in self.seen.over, f"I14: {holding} was over and is open again"

    def _standing(self) -> None:
        """What is prepared does not move: sessions, an agent's boundaries, the steps of an environment's episodes."""
        holding, phase = self.participant.control.checkpoint_id, self.participant.phase
        if holding is None or phase not in (Phase.PREPARED, Phase.COMMITTED):
            return
        assert self.participant.admission.is_quiet, f"I24: {self.name} is {phase} and something moves"
        if phase not in self.stands:
            return
        now = self._positions()
        before = self.seen.frozen.setdefault(holding, now)
        there = now.keys() if self.may_leave else now.keys() | before.keys()
        moved = [key for key in there if now.get(key) != before.get(key)]
        assert not moved, f"I24: {moved} moved while {self.name} was {phase}"
        self.came["standing"] = self.came.get("standing", 0) + len(now)

    def _positions(self) -> dict[str, Any]:
        """Where each thing stands that this server goes on with."""
        return {}

    def _files(self) -> None:
        for checkpoint_id in self.seen.over:
            for path, content in self._under(checkpoint_id).items():
                known = self.seen.written.get(path)
                assert known == content, f"I43 I48: {path} was written or changed after {checkpoint_id} had ended"

    def _under(self, checkpoint_id: str) -> dict[str, bytes]:
        """The manifests of that checkpoint and what they name, by path."""
        found = {}
        for directory in (self.name, "elsewhere"):
            place = str(ROOT / checkpoint_id / directory)
            if self.fleet.disk.kind(f"{place}/manifest.json") == "file":
                for name in self.fleet.disk.listdir(place):
                    found[f"{place}/{name}"] = self.fleet.disk.read(f"{place}/{name}")
        return found

    async def teardown(self) -> None:  # type: ignore[override]
        """With all leases over, every rollout that was not retired ends with its result."""
        if not hasattr(self, "runs") or self.failed:
            return
        self.strikes.clear()
        await trio.sleep(100.0)
        await self.promises_are_kept()
        assert self.server.admission.is_open, f"I20 I21: {self.name} is closed"
        await self._restore_at_work()
        for rollout in self.runs:
            self.model.allow(rollout, TURNS)
        await trio.sleep(300.0)
        for rollout in self.runs:
            if rollout not in self.seen.retired:
                status, body = self.results.get(rollout, (0, "no answer"))
                assert status == 200, f"I74: {rollout} ended with {status} {body}"
                assert body["reward"] == REWARD, f"I74: {rollout} has {body}"
                self._count("results")


class Resources(KindRules):
    name = "tools"

    def _positions(self) -> dict[str, Any]:
        server: Any = self.server
        return {each.session_id: each.position for each in server._book}


class Agent(KindRules):
    name = "simple_agent"
    may_leave = True  # an environment whose step has ended closes its session, and a closed agent lets it

    def _positions(self) -> dict[str, Any]:
        server: Any = self.server
        there = {f"{live.episode.key}/{live.key}": live for live in server._sessions.values() if not live.restart}
        return {key: (live.boundary and live.boundary.line, live.activations) for key, live in there.items()}


class Environment(KindRules):
    name = "env"

    def _positions(self) -> dict[str, Any]:
        server: Any = self.server
        return {each.episode.key: encode(each.results) for each in server._episodes.values() if not each.restart}


class Policy(KindRules):
    name = "policy_model"
    may_leave = True  # what is retired leaves the ledger
    stands = (Phase.COMMITTED,)  # until the commit a call that was accepted may still come to its row

    def _positions(self) -> dict[str, Any]:
        server: Any = self.server
        return {
            f"{rollout}-{attempt}": [entry.row for entry in lineage.entries]
            for rollout, attempts in server.ledger._rollouts.items()
            for attempt, lineage in attempts.items()
        }


KINDS: tuple[type[KindRules], ...] = (Resources, Agent, Environment, Policy)
