"""Anything may happen to a job at any time, and every promise that can be seen is looked at after each step.

Rules start and end coordinators, let rollouts take turns, take checkpoints of every kind, kill servers, bring them
back empty, take the machine down at any operation of its disk, and lose, delay, repeat and cut calls. `everything_ends`
stops the faults: then the job must end, with every result once and right (docs/reference/protocol.md sections 5 to 12).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import trio
from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import precondition

from participants.coordination.coordinator import Aborted
from participants.coordination.stragglers import Stragglers
from participants.coordination.trainer import Dispatch
from participants.machines.control import Phase
from participants.records.manifests import CheckpointId
from participants.records.records import Disposition
from participants.servers.asgi import ACKNOWLEDGE
from participants.servers.resources import Resources
from participants.serving.testing import Call, Fault, InMemoryNetwork
from statecore.testing.stateful import AsyncRuleBasedStateMachine, initialize, invariant, rule
from statecore.wire import parse
from stateful_tests.running_job import NAMES, Address, Job, Life, Maker, Strike, held_turns, turns_of
from tests.crash_disk import Crash, Survives

CLOSED = (Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED)
LATE_S = 4.0

moments = st.sampled_from([0.015, 0.05, 0.3, 3.0, 30.0])
"""Seconds until the next step: from less than one way of a message to longer than any checkpoint here may take."""
FAULTS = {
    "refused": Fault(refuse=True),
    "request lost": Fault(lose_request=True),
    "reply lost": Fault(lose_reply=True),
    "request late": Fault(request_s=LATE_S),
    "reply late": Fault(reply_s=LATE_S),
    "repeated": Fault(repeat_s=LATE_S),
}
KILLED = "killed"


@define(eq=False)
class Seen:
    """What was seen so far, and must stay so or come out so."""

    published: dict[CheckpointId, dict[str, bytes]] = field(factory=dict)
    epochs: dict[int, str] = field(factory=dict)
    held: dict[tuple[int, str], int] = field(factory=dict)  # (epoch, rollout): turns that its base holds
    learnt: set[tuple[int, int]] = field(factory=set)
    frozen: dict[tuple[str, str], dict[str, Any]] = field(factory=dict)
    read: tuple[int, int] = (0, -1)


def _has_ended(life: Life) -> bool:
    return bool(life.over) or (life.at_work and not life.batches)


class JobRules(AsyncRuleBasedStateMachine):
    """One job, from its first life to its last."""

    step_limit_s = 50_000.0
    makers: ClassVar[dict[str, Maker]] = {}
    came: ClassVar[dict[str, int]] = {}
    """How often what has come about, over all examples: the runs are not empty."""

    @initialize(turns=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    async def open(self, turns: list[int]) -> None:
        network: InMemoryNetwork = await self.nursery.start(self._keep_network)
        self.job = Job(network, self.nursery, makers=dict(self.makers))
        self.job.watchers.append(self._watch)
        self.seen = Seen()
        self.problems: list[str] = []
        self.ended = 0
        for each in turns:
            self._add(each)

    async def _keep_network(self, task_status: trio.TaskStatus[InMemoryNetwork]) -> None:
        async with InMemoryNetwork() as network:
            task_status.started(network)
            await trio.sleep_forever()

    def _add(self, turns: int) -> Dispatch:
        name = f"r{len(self.job.tasks)}"
        self.job.tasks.append(Dispatch(name, {"question": name, "turns": turns}, "env"))
        return self.job.tasks[-1]

    def _count(self, what: str) -> None:
        self.came[what] = self.came.get(what, 0) + 1

    # --- what its owner does

    @precondition(lambda self: self.job.life is None)
    @rule(patience_s=moments)
    async def begin(self, patience_s: float) -> None:
        """A coordinator starts, and is looked at again after a while."""
        await self._begin(patience_s)

    async def _begin(self, patience_s: float) -> Life:
        life = self.job.begin()
        with trio.move_on_after(patience_s):
            await life.ready.wait()
        return life

    @precondition(lambda self: self.job.life is not None and self.job.life.at_work and len(self.job.lives) < 6)
    @rule(patience_s=moments, turns=st.sampled_from([4, 1, 0]), goes_on=st.booleans())
    async def begin_another(self, patience_s: float, turns: int, goes_on: bool) -> None:
        """A second coordinator starts while the first one lives, which may go on as if nothing were."""
        self._count("second coordinators")
        first = self.job.life
        await self._begin(patience_s)
        for task in self.job.tasks:
            self.job.model.allow(task.rollout_id, turns)
        await trio.sleep(1.0)
        if goes_on and first in self._free():
            self._begin_checkpoint(first, 20.0, Stragglers.ABORT)
            await trio.sleep(3.0)

    @precondition(lambda self: len(self.job.tasks) < 5)
    @rule(turns=st.integers(1, 3))
    async def dispatch(self, turns: int) -> None:
        task = self._add(turns)
        if self.job.life is not None and self.job.life.at_work:
            self.job.run(self.job.life, [task])
        await trio.sleep(0.3)

    @rule(number=st.integers(0, 4), turns=st.integers(1, 4), patience_s=moments)
    async def allow(self, number: int, turns: int, patience_s: float) -> None:
        """A rollout may take more turns."""
        self.job.model.allow(self.job.tasks[number % len(self.job.tasks)].rollout_id, turns)
        await trio.sleep(patience_s)

    @rule(patience_s=moments)
    async def wait(self, patience_s: float) -> None:
        await trio.sleep(patience_s)

    @precondition(lambda self: self._free())
    @rule(
        number=st.integers(0, 5),
        timeout_s=st.sampled_from([3.0, 20.0]),
        stragglers=st.sampled_from(list(Stragglers)),
        patience_s=moments,
    )
    async def checkpoint(self, number: int, timeout_s: float, stragglers: Stragglers, patience_s: float) -> None:
        """One of those that think that they are the coordinator takes a checkpoint."""
        free = self._free()
        self._begin_checkpoint(free[-1 - number % len(free)], timeout_s, stragglers)
        await trio.sleep(patience_s)

    def _free(self) -> list[Life]:
        """The lives that can begin a checkpoint."""
        return [each for each in self.job.lives if each.at_work and not each.checkpointing]

    def _begin_checkpoint(self, life: Life | None, timeout_s: float, stragglers: Stragglers) -> None:
        assert life is not None
        assert life.work is not None
        life.checkpointing = True
        life.work.start_soon(self.job.checkpoint, life, timeout_s, stragglers)

    @rule(turns=st.integers(1, 3))
    async def work_undisturbed(self, turns: int) -> None:
        """For a while nothing else happens: rollouts take some turns, and a checkpoint is asked for."""
        life = self.job.life or await self._begin(60.0)
        for task in self.job.tasks:
            self.job.model.allow(task.rollout_id, turns)
        await trio.sleep(3.0)
        await self._until(lambda: not life.checkpointing, 60.0)
        if life in self._free():
            self._begin_checkpoint(life, 20.0, Stragglers.ABORT)
            await self._until(lambda: not life.checkpointing, 60.0)

    # --- what goes wrong

    @precondition(lambda self: bool(self.job.network.up))
    @rule(number=st.integers(0, 11), patience_s=moments)
    async def kill(self, number: int, patience_s: float) -> None:
        up = sorted(self.job.network.up)
        self._count("killed")
        self.job.kill(up[number % len(up)])
        await trio.sleep(patience_s)

    @precondition(lambda self: self._gone())
    @rule(number=st.integers(0, 11), patience_s=moments)
    async def bring_back(self, number: int, patience_s: float) -> None:
        """A supervisor starts a dead server again, under its address, with nothing in it."""
        gone = self._gone()
        each = gone[number % len(gone)]
        self._count("brought back")
        await self.job.network.start(each.where, self.job.made(each))
        await trio.sleep(patience_s)

    def _gone(self) -> list[Address]:
        return [
            each
            for life in self.job.lives
            if not life.over
            for each in life.addresses
            if each.where in self.job.servers and each.where not in self.job.network.up
        ]

    @precondition(lambda self: any(not each.over for each in self.job.lives))
    @rule(number=st.integers(0, 5), patience_s=moments)
    async def give_up(self, number: int, patience_s: float) -> None:
        """A coordinator is gone, and its servers are left to themselves."""
        there = [each for each in self.job.lives if not each.over]
        self._count("coordinators killed")
        there[-1 - number % len(there)].scope.cancel()
        await trio.sleep(patience_s)

    @precondition(lambda self: bool(self.job.network.up))
    @rule(
        operations=st.integers(0, 80),
        survives=st.sampled_from(list(Survives)),
        seed=st.integers(0, 99),
        patience_s=moments,
    )
    async def go_down(self, operations: int, survives: Survives, seed: int, patience_s: float) -> None:
        """The machine is gone instead of doing one of the next operations of its disk, with what was not synced."""
        self._count("machines down")
        self.job.go_down_at(operations, survives, seed)
        await trio.sleep(patience_s)

    @rule(
        calls=st.integers(1, 8),
        name=st.sampled_from(["", *NAMES]),
        what=st.sampled_from([*sorted(FAULTS), KILLED]),
        patience_s=moments,
    )
    async def strike(self, calls: int, name: str, what: str, patience_s: float) -> None:
        """A call soon to come is lost, late, repeated or cut off, or kills whom it is for."""

        def struck(call: Call) -> Fault | None:
            if what == KILLED:
                self.job.kill(call.server)
            return FAULTS.get(what)

        self.job.strikes.append(Strike(calls, name, struck))
        await trio.sleep(patience_s)

    @precondition(lambda self: self.job.life is not None and self.job.life.at_work)
    @rule(number=st.integers(0, 4), turns=st.integers(1, 4))
    async def lose_what_a_tool_says(self, number: int, turns: int) -> None:
        """A rollout may take more turns, and the reply of its next tool call is lost: the call is sent again."""
        task = self.job.tasks[number % len(self.job.tasks)]
        self.job.strikes.append(Strike(1, "tools", lambda _call: FAULTS["reply lost"], "/increment"))
        self.job.model.allow(task.rollout_id, turns)
        await trio.sleep(3.0)

    @precondition(lambda self: self._free())
    @rule(
        after_s=st.sampled_from([0.015, 0.035, 0.055, 0.1, 0.2]),
        what=st.sampled_from(["given up", "overtaken", *NAMES]),
        timeout_s=st.sampled_from([3.0, 20.0]),
        patience_s=moments,
    )
    async def cut_a_checkpoint(self, after_s: float, what: str, timeout_s: float, patience_s: float) -> None:
        """A checkpoint begins, and in its middle its coordinator or a server dies, or another coordinator starts."""
        life = self._free()[-1]
        self._begin_checkpoint(life, timeout_s, Stragglers.ABORT)
        await trio.sleep(after_s)
        if what == "given up":
            life.scope.cancel()
        elif what == "overtaken":
            self.job.begin()
        else:
            self.job.kill(*(each.where for each in life.addresses if each.name == what))
        await trio.sleep(patience_s)

    # --- what must come of it

    @precondition(lambda self: len(self.job.tasks) > self.ended)
    @rule()
    async def everything_ends(self) -> None:
        """No faults from now on: every rollout ends, its result is right and saved, and all servers are open."""
        await self._end()

    async def _end(self) -> None:
        self.job.strikes.clear()
        self.job.disk.fault = lambda operation, path: None
        for task in self.job.tasks:
            self.job.model.allow(task.rollout_id, task.task["turns"])
        for _ in range(8):
            life = self.job.life or await self._begin(300.0)
            await self._until(partial(_has_ended, life), 3000.0)
            if life.at_work and not life.batches and not life.lost and await self._saved(life):
                break
            life.scope.cancel()
            await trio.sleep(30.0)
        else:
            raise AssertionError(f"the job does not end: {[each.over for each in self.job.lives]}")
        self._count("ended")
        self.ended = len(self.job.tasks)
        wanted = {each.rollout_id: sum(range(1, each.task["turns"] + 1)) for each in self.job.tasks}
        assert life.trainer.accepted == wanted, f"I65 I68 I97: {life.trainer.accepted} and not {wanted}"
        servers = [self.job.servers[each.where] for each in life.addresses]
        await self._until(lambda: all(each.admission.is_open for each in servers), 300.0)
        closed = [each.name for each in servers if not each.admission.is_open]
        assert not closed, f"I20 I21: {closed} are closed"

    async def _until(self, come: Callable[[], object], limit_s: float) -> None:
        with trio.move_on_after(limit_s):
            while not come():  # noqa: ASYNC110 (in virtual time)
                await trio.sleep(1.0)

    async def _saved(self, life: Life) -> bool:
        """A checkpoint is published that has every result; the first may have to end an older one."""
        for _ in range(3):
            await self._until(lambda: not life.checkpointing, 300.0)
            if not life.at_work or life.checkpointing:
                return False
            self._begin_checkpoint(life, 60.0, Stragglers.ABORT)
            await self._until(lambda: not life.checkpointing, 300.0)
            if life.outcomes and life.outcomes[-1].published:
                store = self.job.store()
                newest = store.read(store.published()[-1])
                rows = {row.rollout_id: row.disposition for row in newest.registry}
                assert rows == dict.fromkeys(life.trainer.accepted, Disposition.COMPLETED), f"I65: {rows}"
                return True
        return False

    @invariant()
    async def promises_are_kept(self) -> None:
        """One invariant for all of them, so that a failure prints little beside its steps."""
        for promise in PROMISES:
            getattr(self, promise)()

    def nothing_raised(self) -> None:
        """No application let an exception out, but for the end of its disk; nobody found an invariant broken."""
        raised = [each for each in self.job.network.errors if not isinstance(each.error, Crash)]
        assert not raised, raised
        for life in self.job.lives:
            broken = [each for each in life.outcomes if isinstance(each, Aborted) and each.broken]
            assert not broken or "Crash" in broken[0].reason, broken[0].story()
        assert not self.problems, self.problems

    def what_is_published_stays(self) -> None:
        """It validates, its halves are of one moment, and no byte of it changes.

        Covers: I41, I42, I43, I44, I65, I84
        """
        now = id(self.job.disk), len(self.job.disk.log)
        if self.seen.read == now:
            return
        self.seen.read = now
        store = self.job.store()
        published = store.published()
        missing = set(self.seen.published) - set(published)
        assert not missing, f"I43: {missing} were published and are gone"
        for each in published:
            files = self._files(str(store.path(each)))
            known = self.seen.published.setdefault(each, files)
            assert files == known, f"I43: {each} has changed"
            if known is files:
                self._count("published")
                self._look_into(each)
        claims = sorted(store.claims())
        assert claims == list(range(1, len(claims) + 1)), f"I96: claims {claims}"

    def _files(self, path: str) -> dict[str, bytes]:
        if self.job.disk.kind(path) == "file":
            return {path: self.job.disk.read(path)}
        found: dict[str, bytes] = {}
        for name in self.job.disk.listdir(path):
            found |= self._files(f"{path}/{name}")
        return found

    def _look_into(self, which: CheckpointId) -> None:
        whole = self.job.store().read(which)
        results = {row.rollout_id for row in whole.ledger if row.receipt is not None}
        for row in whole.registry:
            assert (row.rollout_id in results) == (row.disposition is Disposition.COMPLETED), f"I65: {which} {row}"
            if row.disposition is Disposition.CONTINUE:
                self._count("continued")
        consumed = set(json.loads(self.job.disk.read(f"{whole.framework}/trainer.json")))
        assert consumed <= results, f"I84: {which} has {consumed} consumed and {results} in its ledger"
        for part in whole.of_kind("resources"):
            for record in part.records:
                turns_of(record["state"]["data"]["value"])

    def no_two_starts_share_an_epoch(self) -> None:
        """Each start of servers has an epoch of its own. Covers: I96"""
        for life in self.job.lives:
            for each in life.addresses:
                started = each.where.removeprefix(f"{each.name}-")
                assert self.seen.epochs.setdefault(each.epoch, started) == started, f"I96: epoch {each.epoch} twice"

    def held_turns_are_not_played_again(self) -> None:
        """What a life continues from its base it does not generate again; N becomes N+1. Covers: I54, I57, I58, I61"""
        for life in self.job.lives:
            reports: list[Any] = [life.recovered] if life.recovered is not None else []
            for number, report in enumerate([*reports, *life.restarts]):
                if (life.number, number) not in self.seen.learnt:
                    self._learn(report)
                    self.seen.learnt.add((life.number, number))
        for epoch, rollout, turn in self.job.model.made:
            held = self.seen.held.get((epoch, rollout), 0)
            assert turn > held, f"I57: {rollout} has {held} turns in the base of epoch {epoch}, and plays turn {turn}"

    def _learn(self, report: Any) -> None:
        if report.restore_failed:
            return
        for rollout, turns in held_turns(self.job, report.checkpoint_id, report.verdicts).items():
            self.seen.held[report.epoch, rollout] = turns
            self._count("gone on")
        for verdict in report.verdicts:
            if verdict.disposition is Disposition.CONTINUE:
                assert verdict.next_attempt is not None
                assert verdict.next_attempt > verdict.attempt, f"I54: {verdict}"

    def results_come_once(self) -> None:
        """No trainer is given a result twice, and none is wrong. Covers: I11, I65, I68, I97"""
        wanted = {each.rollout_id: sum(range(1, each.task["turns"] + 1)) for each in self.job.tasks}
        for life in self.job.lives:
            assert not life.trainer.twice, f"I68: {life.trainer.twice} came twice"
            for rollout, reward in life.trainer.accepted.items():
                assert reward == wanted[rollout], f"I97: {rollout} has {reward} and not {wanted[rollout]}"

    def servers_keep_their_phases(self) -> None:
        """Phase and gate agree, and a lease that is over has opened. Covers: I13, I16, I17, I21, I69"""
        now = self.job.clock.time()
        for where, server in self.job.up.items():
            participant = server.participant
            assert participant is not None
            closed = participant.phase in CLOSED
            assert not (closed and server.admission.is_open), f"I16: {where} is {participant.phase} and open"
            if participant.phase is Phase.IDLE and not participant.born_closed:
                assert server.admission.is_open or participant.control.reading, f"I16: {where} is idle and closed"
            if closed:
                until = participant.control.lease_until
                assert until is not None, f"I21: {where} is {participant.phase} without a lease"
                assert now <= until + 1.0, f"I21: {where} is {participant.phase} {now - until:.1f} s after its lease"

    def what_is_prepared_stands_still(self) -> None:
        """No session of a checkpoint moves from prepare to resume, and each is as many turns as its revision says.

        Covers: I24, I36, I35
        """
        for where, server in self.job.up.items():
            participant = server.participant
            if not isinstance(server, Resources) or participant is None:
                continue
            positions = {}
            for session in server._book:
                turns = turns_of(session.state.value)
                assert session.position.revision == turns, f"I36: {session.episode} {turns} {session.position}"
                if session.episode is not None and session.episode.key not in participant.control.left_out:
                    positions[session.episode.key] = session.position
            checkpoint_id = participant.control.checkpoint_id
            if participant.phase in (Phase.PREPARED, Phase.COMMITTED) and checkpoint_id is not None:
                before = self.seen.frozen.setdefault((where, checkpoint_id), positions)
                moved = [key for key in positions.keys() & before.keys() if positions[key] != before[key]]
                assert not moved, f"I24: {moved} moved while {where} was {participant.phase}"

    # --- what can only be seen on the way

    def _watch(self, call: Call) -> None:
        """Results are acknowledged when a checkpoint has them that no later life goes without. Covers: I66, I67, I98"""
        if call.path != ACKNOWLEDGE:
            return
        receipts = parse(call.request.content)["receipts"]
        store = self.job.store()
        saved: set[str] = set()
        for each in store.published():
            saved |= {row.rollout_id for row in store.read(each).ledger if row.receipt is not None}
        claims = store.claims()
        newest = max(claims)
        base = claims[newest].base
        for receipt in receipts:
            rollout = receipt["rollout_id"]
            if rollout not in saved:
                self.problems.append(f"I67: the result of {rollout} is acknowledged and nowhere saved")
            elif base is not None and int(call.request.headers.get("x-statecore-epoch", newest)) < newest:
                start = base.start
                rows = () if start is None else store.read(start).ledger
                if rollout not in {row.rollout_id for row in rows if row.receipt is not None}:
                    self.problems.append(f"S62: {rollout} is acknowledged, and the base of epoch {newest} lacks it")

    async def teardown(self) -> None:  # type: ignore[override]
        if hasattr(self, "job") and not self.failed:
            await self._end()
            await self.promises_are_kept()


PROMISES = (
    "nothing_raised",
    "what_is_published_stays",
    "no_two_starts_share_an_epoch",
    "held_turns_are_not_played_again",
    "results_come_once",
    "servers_keep_their_phases",
    "what_is_prepared_stands_still",
)
