"""Three rollouts over the three servers, and their results on the way to a ledger: random, on the pure tables.

The control calls of `ControlRules` go on in between. A turn is a tool call and a boundary behind it; the revision of
the session counts the calls, so turn and revision agree whenever none is in flight. docs/reference/protocol.md sections
3, 4 and 9.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from models.server import Server, knock
from participants.identity import EpisodeId
from participants.machines import attempt as tries
from participants.machines import gate as gates
from participants.machines import handoff as results
from participants.machines import resource_session as sessions
from participants.machines.attempt import AttemptState
from participants.machines.control import Phase
from participants.machines.handoff import Entry, Handoff
from participants.machines.resource_session import SessionState
from statecore import Refused, Snapshot
from stateful_tests.control_rules import ControlRules

ROLLOUTS = ("a", "b", "c")
TURNS = 3
LIVE = (AttemptState.RUNNING, AttemptState.PARKED, AttemptState.COMMITTED)

rollouts = st.sampled_from(ROLLOUTS)


@define(eq=False)
class Execution:
    """One attempt: at the agent, its session at the tools server, its result at the server that answers `/run`."""

    number: int
    at: Snapshot[AttemptState, bool]
    session: Snapshot[SessionState, sessions.SessionData]
    result: Snapshot[Handoff, results.Kept]
    turn: int = 0
    calling: str = ""  # "" or "held" or "admitted"
    excused: set[str] = field(factory=set)  # the servers that do not wait for it

    @property
    def receipt(self) -> str:
        return self.result.data.receipt

    @property
    def revision(self) -> int:
        position = self.session.data.position
        return 0 if position is None else position.revision


@define(eq=False)
class Rollout:
    """What the coordinator, the trainer and the servers know of one rollout."""

    entry: Snapshot[Entry, str]
    executions: list[Execution] = field(factory=list)
    trained: list[str] = field(factory=list)
    acknowledged: set[str] = field(factory=set)

    @property
    def newest(self) -> Execution:
        return self.executions[-1]


class RolloutRules(ControlRules):
    """Rollouts and handoffs over the servers of `ControlRules`."""

    may_be_calm = True

    def __init__(self) -> None:
        super().__init__()
        self.rollouts = {name: Rollout(self.tables.ledger_entry.start()) for name in ROLLOUTS}
        for rollout in self.rollouts.values():
            rollout.executions.append(self.execution(0))
        self.operations = 0

    def execution(self, number: int) -> Execution:
        tables = self.tables
        kept = results.Kept("task")
        return Execution(number, tables.attempt.start(), tables.session.start(), tables.handoff.start(kept))

    def knock(self, name: str, event: Any) -> Server:
        """The server after an event of its gate; raises Refused."""
        self.servers[name] = knock(self.servers[name], event, self.tables.gate)
        return self.servers[name]

    def on_change(self, name: str, before: Server, after: Server) -> None:
        """Freezes and thaws sessions, admits what was held, and counts again what was left out."""
        opened = after.is_open and not before.is_open
        frozen_now = before.phase is Phase.PREPARING and after.phase is Phase.PREPARED
        left_out = after.control.data.left_out
        for rollout_id, each in self.everything():
            if opened and name in each.excused:
                each.excused.discard(name)
                for event in gates.counted_again(settled=name == "agent" and each.at.state in LIVE[1:]):
                    self.knock(name, event)
            if name != "tools":
                continue
            stays = EpisodeId(rollout_id, each.number).key not in left_out
            if frozen_now and stays and each.session.state is SessionState.LIVE:
                each.session, _ = self.tables.session.step(each.session, sessions.Froze())
            elif opened and each.session.state is SessionState.FROZEN:
                each.session, _ = self.tables.session.step(each.session, sessions.Thawed())
            if opened and each.calling == "held":
                each.calling = "admitted"

    def everything(self) -> list[tuple[str, Execution]]:
        """All executions, each with its rollout."""
        return [(name, each) for name, rollout in self.rollouts.items() for each in rollout.executions]

    def is_left_out(self, name: str, each: Execution) -> bool:
        """Some server was told to go on without it."""
        key = EpisodeId(name, each.number).key
        return any(key in where.control.data.left_out for where in self.servers.values())

    def step_aside(self, name: str, each: Execution, event: Any) -> None:
        """What `each` does at this server is an event of its gate, unless nobody waits for it there."""
        if name not in each.excused:
            self.knock(name, event)

    # --- rollouts

    def on_leave_out(self, place: str, keys: frozenset[str]) -> None:
        for name, each in self.everything():
            self._excuse(place, each, EpisodeId(name, each.number).key in keys)

    def _excuse(self, place: str, each: Execution, named: bool) -> None:
        moves = {"agent": each.at.state is AttemptState.RUNNING, "tools": each.calling == "admitted"}
        if named and moves.get(place) and place not in each.excused:
            self.step_aside(place, each, gates.Ended())
            each.excused.add(place)

    @initialize(turns=st.lists(st.integers(0, TURNS - 1), min_size=len(ROLLOUTS), max_size=len(ROLLOUTS)))
    def start_rollouts(self, turns: list[int]) -> None:
        """They stand at different stages, some have not started."""
        for name, played in zip(ROLLOUTS, turns, strict=True):
            if played:
                self.play(name, played, to_the_end=False)

    @rule(name=rollouts)
    def dispatch(self, name: str) -> None:
        """The request leaves; turned away it is what it was before (I3, I60)."""
        rollout = self.rollouts[name]
        each = rollout.newest
        ready = each.at.state in (AttemptState.QUEUED, AttemptState.RESTORED)
        if not ready or rollout.entry.state is not Entry.LIVE:
            return
        before = each.at
        each.at, _ = self.tables.attempt.step(each.at, tries.Dispatched())
        try:
            self.knock("agent", gates.ArrivedImpatient())
        except Refused as refused:
            assert refused.code == "admission_closed"
            each.at, _ = self.tables.attempt.step(each.at, tries.TurnedAway())
            assert each.at.state is before.state, "a request that was turned away changed the attempt"

    @rule(name=rollouts)
    def start_call(self, name: str) -> None:
        """A tool call; behind a boundary only while the agent is open."""
        each = self.rollouts[name].newest
        standing = each.turn > 0 and not self.servers["agent"].is_open
        if each.at.state is not AttemptState.RUNNING or each.calling or each.turn == TURNS or standing:
            return
        before = self.servers["tools"]
        try:
            after = self.knock("tools", gates.Arrived())
        except Refused:
            return
        each.calling = "held" if after.gate.data.held > before.gate.data.held else "admitted"
        assert (each.calling == "admitted") == before.is_open, f"I23: {each.calling}, gate {before.gate.state}"

    @rule(name=rollouts)
    def end_call(self, name: str) -> None:
        """The mutation is applied, exactly once (I36); a call of an attempt that is over changes nothing (I6)."""
        for each in self.rollouts[name].executions:
            if each.calling == "admitted":
                self.step_aside("tools", each, gates.Ended())
                each.excused.discard("tools")
                each.calling = ""
                if each.at.state is AttemptState.RUNNING:
                    self._mutate(each, new=True)
                    each.turn += 1

    @rule(name=rollouts)
    def repeat_call(self, name: str) -> None:
        """The last operation is sent again: whatever the answer, nothing changes (I36)."""
        for each in self.rollouts[name].executions:
            if each.session.data.operations and not each.calling:
                self._mutate(each, new=False)

    def _mutate(self, each: Execution, *, new: bool) -> None:
        table = self.tables.session
        if each.session.state is SessionState.ABSENT:
            each.session, _ = table.step(each.session, sessions.Seeded("ab" * 16, "seed"))
        elif new and each.session.state is SessionState.RESTORED:
            each.session, _ = table.step(each.session, sessions.Used())
        before = each.session.data
        self.operations += new
        operation = f"op-{self.operations}" if new else before.operations[-1].operation_id
        try:
            each.session, _ = table.step(each.session, sessions.Mutated(operation, "{}"))
        except Refused:
            assert not new, "a call that was admitted was refused"
        after = each.session.data
        if new:
            assert before.position and after.position and after.position.revision == before.position.revision + 1
            assert after.position.history != before.position.history
            assert after.position.incarnation == before.position.incarnation
        else:
            assert after == before, "I36: a repeated operation changed the session"

    @rule(name=rollouts)
    def park(self, name: str) -> None:
        """The agent stands at a boundary while it is closed."""
        each = self.rollouts[name].newest
        at_boundary = not each.calling and 0 < each.turn < TURNS
        if at_boundary and each.at.state is AttemptState.RUNNING and not self.servers["agent"].is_open:
            self.step_aside("agent", each, gates.Settled())
            each.at, _ = self.tables.attempt.step(each.at, tries.Parked())

    @rule(name=rollouts)
    def unpark(self, name: str) -> None:
        """What stands goes on, if its server lets it (I24)."""
        for each in self.rollouts[name].executions:
            if each.at.state in (AttemptState.PARKED, AttemptState.COMMITTED):
                try:
                    self.knock("agent", gates.Stirred())
                except Refused:
                    return
                each.at, _ = self.tables.attempt.step(each.at, tries.Released())

    @rule(name=rollouts)
    def complete(self, name: str) -> None:
        """The handler returns: the attempt has a result, kept until its receipt comes back."""
        each = self.rollouts[name].newest
        if each.calling or each.turn == 0:
            return
        before = each.at.state
        try:
            each.at, _ = self.tables.attempt.step(each.at, tries.Completed())
        except Refused:
            return
        if before in LIVE:
            self._left_the_agent(each, before)
            each.result, _ = self.tables.handoff.step(each.result, results.Finished(f"{name}-{each.number}"))

    @rule(name=rollouts)
    def try_again(self, name: str) -> None:
        """The coordinator takes the attempt for lost: it and all before it are over, the next one begins (I11)."""
        rollout = self.rollouts[name]
        if rollout.newest.at.state in (AttemptState.QUEUED, AttemptState.RESTORED) or len(rollout.executions) == 3:
            return
        if rollout.entry.state is Entry.LIVE and self.servers["agent"].is_open:
            for each in rollout.executions:
                self._tombstone(each)
            rollout.executions.append(self.execution(rollout.newest.number + 1))

    def _tombstone(self, each: Execution) -> None:
        before = each.at.state
        each.at, _ = self.tables.attempt.step(each.at, tries.Tombstoned())
        assert before is not AttemptState.COMPLETED or each.at.state is before, "I70: a result was destroyed"
        if before in LIVE and each.at.state is AttemptState.TOMBSTONED:
            self._left_the_agent(each, before)

    def _left_the_agent(self, each: Execution, before: AttemptState) -> None:
        self.step_aside("agent", each, gates.Ended() if before is AttemptState.RUNNING else gates.SettledEnded())
        each.excused.discard("agent")

    @rule(name=rollouts, turns=st.integers(1, TURNS), to_the_end=st.booleans())
    def play(self, name: str, turns: int, to_the_end: bool) -> None:
        """Several turns in a row, and perhaps the result."""
        self.dispatch(name)
        for _ in range(turns):
            self.start_call(name)
            self.end_call(name)
        if to_the_end:
            self.complete(name)

    # --- results

    @rule(name=rollouts)
    def ask_again(self, name: str) -> None:
        """`/run` again: the one result with its one receipt, for as long as it is retained (I10, I68)."""
        for each in self.rollouts[name].executions:
            before = each.result
            try:
                each.result, effects = self.tables.handoff.step(each.result, results.Asked("task"))
            except Refused as refused:
                assert refused.code == "result_released" and before.state is Handoff.RELEASED
                continue
            expected: Any = results.JoinExecution() if not before.data.receipt else results.SendResult(each.receipt)
            assert effects == (expected,) and each.result == before

    @rule(name=rollouts, oldest=st.booleans())
    def receive(self, name: str, oldest: bool) -> None:
        """A response reaches the coordinator; the first result of a rollout stands, and ends its other attempts."""
        retained = [each for each in self.rollouts[name].executions if each.result.state is Handoff.RETAINED]
        if retained:
            self._receive(self.rollouts[name], retained[0 if oldest else -1])

    def _receive(self, rollout: Rollout, each: Execution) -> None:
        rollout.entry, effects = self.tables.ledger_entry.step(rollout.entry, results.Received(each.receipt))
        for effect in effects:
            if isinstance(effect, results.AcceptResult):
                rollout.trained.append(effect.receipt)
                for other in rollout.executions:
                    self._tombstone(other)
            else:
                rollout.acknowledged.add(effect.receipt)
                self._acknowledge(each, effect.receipt)

    def _acknowledge(self, each: Execution, receipt: str) -> None:
        each.result, _ = self.tables.handoff.step(each.result, results.Acknowledged(receipt))

    @rule(name=rollouts)
    def acknowledge_from_the_list(self, name: str) -> None:
        """What is retained and whose rollout is saved is acknowledged, winner or not (S63)."""
        rollout = self.rollouts[name]
        if rollout.entry.state is Entry.SAVED:
            for each in rollout.executions:
                if each.result.state is Handoff.RETAINED:
                    self._receive(rollout, each)
                    assert _is_released(each), "I69: a result is retained for ever"

    @rule(name=rollouts)
    def acknowledge_with_another_receipt(self, name: str) -> None:
        """Only the exact receipt releases (I66)."""
        for each in self.rollouts[name].executions:
            before = each.result
            try:
                self._acknowledge(each, "another receipt")
            except Refused:
                continue
            assert each.result == before, "I66: another receipt released the result"

    # --- what must be true

    @invariant()
    def a_completed_rollout_is_not_resumable(self) -> None:
        """I65: a rollout whose result the ledger has is not resumable anywhere."""
        for name, rollout in self.rollouts.items():
            if rollout.entry.state is not Entry.LIVE:
                assert not any(each.at.state.resumable for each in rollout.executions), f"I65: {name}"

    @invariant()
    def at_most_one_attempt_lives(self) -> None:
        """I11: of a rollout's attempts at most the newest one is live."""
        for rollout in self.rollouts.values():
            assert not any(each.at.state in LIVE for each in rollout.executions[:-1])

    @invariant()
    def turns_and_revisions_agree(self) -> None:
        """I35: between calls the session is exactly where the conversation is."""
        for rollout in self.rollouts.values():
            for each in rollout.executions:
                assert each.calling or each.turn == each.revision, f"I35: turn {each.turn}, revision {each.revision}"

    @invariant()
    def gates_count_what_is_there(self) -> None:
        """I23, I24: what the gates count is what runs, stands and waits; so nothing runs at a quiet server."""
        agent, tools = self.servers["agent"].gate.data, self.servers["tools"].gate.data
        everything = [each for _, each in self.everything()]
        at_the_agent = [each.at.state for each in everything if "agent" not in each.excused]
        at_the_tools = [each.calling for each in everything if "tools" not in each.excused]
        assert agent.active == sum(state is AttemptState.RUNNING for state in at_the_agent)
        assert agent.settled == sum(state in LIVE[1:] for state in at_the_agent)
        assert tools.active == at_the_tools.count("admitted")
        assert tools.held == sum(each.calling == "held" for each in everything)

    @invariant()
    def nobody_is_excused_by_who_is_open(self) -> None:
        """S18: with its checkpoint over, a server counts everybody."""
        for name, each in self.everything():
            assert not any(self.servers[place].is_open for place in each.excused), f"S18: {name} is not counted"

    @invariant()
    def results_are_dropped_by_their_receipt_and_taken_once(self) -> None:
        """I66, I68: released only by the exact receipt; taken once."""
        for name, rollout in self.rollouts.items():
            assert len(rollout.trained) <= 1, f"I68: {name} was taken twice: {rollout.trained}"
            for each in rollout.executions:
                released = each.result.state is Handoff.RELEASED
                assert not released or each.receipt in rollout.acknowledged, f"I66: {each.receipt} was dropped"


def _is_released(each: Execution) -> bool:
    return each.result.state is Handoff.RELEASED
