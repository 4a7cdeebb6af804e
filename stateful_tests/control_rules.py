"""Random control calls to three servers, held against what a participant promises (protocol.md section 5).

The rules send every verb with ids that are open, ended, new or foreign, from this life and older ones, to this process
and its predecessor, in time and too late. `send` is the oracle: it knows from the calls alone what must be refused,
what must be answered again and when a server may open.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, field, frozen
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from models.server import GRACE_S, Server, server, tell
from participants.machines.attempt import ATTEMPT
from participants.machines.control import (
    PARTICIPANT,
    AnswerAgain,
    Call,
    CommitRequested,
    LeaseExpired,
    LeaveOut,
    PartInstalled,
    PartWritten,
    Phase,
    PrepareFailed,
    PrepareRequested,
    ReadinessReached,
    RenewRequested,
    RestoreFailed,
    RestoreRequested,
    ResumeRequested,
    RetireRequested,
)
from participants.machines.fencing import own_id
from participants.machines.gate import GATE
from participants.machines.handoff import HANDOFF, LEDGER_ENTRY
from participants.machines.resource_session import RESOURCE_SESSION
from participants.machines.transaction import TRANSACTION
from statecore import Refused, Table

NAMES = ("agent", "tools", "environment")
SCOPES = ("all of it", "a part of it")
VERBS = (PrepareRequested, CommitRequested, RestoreRequested, ResumeRequested, RenewRequested, RetireRequested)
NEWS = (ReadinessReached, PrepareFailed, PartWritten, LeaseExpired)
MAY_OPEN = (ResumeRequested, LeaseExpired, PrepareFailed, RestoreFailed)

Answers = dict[tuple[type, str, str], str]  # (verb, id, arguments) -> reply

names = st.sampled_from(NAMES)
scopes = st.sampled_from(SCOPES)


@frozen
class Tables:
    """The machines under test; a mutated one must be found out."""

    participant: Table[Any, Any] = PARTICIPANT
    gate: Table[Any, Any] = GATE
    attempt: Table[Any, Any] = ATTEMPT
    session: Table[Any, Any] = RESOURCE_SESSION
    transaction: Table[Any, Any] = TRANSACTION
    handoff: Table[Any, Any] = HANDOFF
    ledger_entry: Table[Any, Any] = LEDGER_ENTRY


@frozen
class Known:
    """What the calls alone say about one server.

    `holding` is the id it was closed for, `reading` the restore under way, `gone` what has ended here, `answers` the
    reply of each (verb, id, arguments), `epoch` the highest one that it took.
    """

    holding: str | None = None
    reading: str | None = None
    gone: frozenset[str] = frozenset()
    answers: Answers = field(factory=dict)
    epoch: int | None = None


class ControlRules(RuleBasedStateMachine):
    """Three servers and whoever calls them."""

    tables = Tables()
    may_be_calm = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.processes = dict.fromkeys(NAMES, 1)
        self.servers: dict[str, Server] = {name: server(f"{name}-1") for name in NAMES}
        self.known = {name: Known() for name in NAMES}
        self.life = 1
        self.numbered = 0
        self.replies = 0
        self.ids = ["foreign-1"]
        self.calm = False

    @initialize(calm=st.booleans())
    def choose_weather(self, calm: bool) -> None:
        """In half of the runs only the coordinator calls, and a checkpoint gets as far as it can."""
        self.calm = calm and self.may_be_calm

    # --- the oracle

    def send(self, name: str, event: Any) -> tuple[Any, ...] | None:
        """What the server owes after the event, or None: refused, and then nothing has changed."""
        before, known = self.servers[name], self.known[name]
        must = _must_be_refused(before, known, event)
        again = None if must else _recorded(known, event)
        try:
            after, effects = tell(before, event, self.tables.participant, self.tables.gate)
        except Refused as refused:
            assert must or again is None, f"I15: {event} was answered before, now: {refused}"
            assert not must or must.code in (None, refused.code), f"{must.broken}: {event} gave {refused}"
            return None
        assert not must, f"{must.broken}: {event} must be refused; it gave {effects}"
        if again is not None:
            assert effects == (AnswerAgain(again),), f"I15: {event} must be answered again, not {effects}"
        if after.is_open and not before.is_open:
            assert isinstance(event, MAY_OPEN), f"I17: {event} opened {name}"
        self.servers[name] = after
        self.known[name] = _now_known(known, before, after, event)
        self.on_change(name, before, after)
        for effect in effects:
            if isinstance(effect, LeaveOut):
                self.on_leave_out(name, effect.keys)
        return effects

    def on_change(self, name: str, before: Server, after: Server) -> None:
        """For those who have something at that server."""

    def on_leave_out(self, place: str, keys: frozenset[str]) -> None:
        """For those who have something at that server: it does not wait for these executions."""

    def new_id(self, kind: str = "ck") -> str:
        self.numbered += 1
        self.ids.append(own_id(kind, self.life, self.numbered))
        return self.ids[-1]

    def new_reply(self) -> str:
        self.replies += 1
        return f"reply {self.replies}"

    def call(self, kind: type[Call], name: str, checkpoint_id: str, **fields: Any) -> Any:
        """A call as our coordinator sends it, a minute ahead."""
        common: dict[str, Any] = {
            "deadline_ts": self.now + 60,
            "now": self.now,
            "epoch": self.life,
            "incarnation": self.servers[name].incarnation,
        }
        return kind(checkpoint_id, **(common | fields))

    # --- calls

    @precondition(lambda self: not self.calm)
    @rule(data=st.data(), name=names, kind=st.sampled_from(VERBS), scope=scopes)
    def call_anything(self, data: st.DataObject, name: str, kind: type[Call], scope: str) -> None:
        """Any verb, for any id that there ever was, or a new one."""
        known = [None, *self.ids[-6:], *([self.known[name].holding] * 3 if self.known[name].holding else [])]
        checkpoint_id = data.draw(st.sampled_from(known)) or self.new_id("rs" if kind is RestoreRequested else "ck")
        wrong: dict[str, Any] = data.draw(
            st.sampled_from(
                [{}, {}, {}, {}, {"incarnation": f"{name}-0"}, {"epoch": self.life - 1}, {"deadline_ts": self.now - 1}]
            )
        )
        arguments = {"arguments": scope} if kind in (CommitRequested, RestoreRequested) else {}
        self.send(name, self.call(kind, name, checkpoint_id, **arguments, **wrong))

    @precondition(lambda self: not self.calm)
    @rule(name=names, scope=scopes, foreign=st.booleans())
    def restore(self, name: str, scope: str, foreign: bool) -> None:
        """A restore begins; other calls may come before it is installed."""
        checkpoint_id = f"foreign-{self.numbered}" if foreign else self.new_id("rs")
        self.send(name, self.call(RestoreRequested, name, checkpoint_id, arguments=scope))

    @rule(name=names, scope=scopes, fails=st.booleans())
    def end_restore(self, name: str, scope: str, fails: bool) -> None:
        """What was being read is installed, or turns out to be damaged."""
        reading = self.known[name].reading
        if reading is None:
            assert self.send(name, PartInstalled("never asked for", scope, "x", self.now)) is None
        elif fails:
            self.send(name, RestoreFailed(reading))
        else:
            self.send(name, PartInstalled(reading, scope, self.new_reply(), self.now + 60))

    @precondition(lambda self: not self.calm)
    @rule(name=names, steps=st.integers(1, 4), scope=scopes)
    def go_on(self, name: str, steps: int, scope: str) -> None:
        """A checkpoint of this one server goes on by some steps, up to its written part."""
        for _ in range(steps):
            where = self.servers[name]
            if where.phase is Phase.IDLE:
                self.send(name, self.call(PrepareRequested, name, self.new_id()))
            elif where.phase is Phase.PREPARED and where.control.data.writing is None:
                self.send(name, self.call(CommitRequested, name, where.open_id or "", arguments=scope))
            self.reach_readiness(name)
            self.end_write(name)

    @rule(data=st.data(), name=names, scope=scopes)
    def call_again(self, data: st.DataObject, name: str, scope: str) -> None:
        """A call that was answered comes once more, perhaps with other arguments (I15, S26)."""
        answered = sorted(self.known[name].answers, key=str)
        if answered:
            kind, checkpoint_id, _ = data.draw(st.sampled_from(answered))
            arguments = {} if kind is PrepareRequested else {"arguments": scope}
            self.send(name, self.call(kind, name, checkpoint_id, **arguments))

    @rule(name=names)
    def expire(self, name: str) -> None:
        """A lease ends early, as if its clock ran fast."""
        holding = self.known[name].holding
        if holding is not None:
            self.send(name, LeaseExpired(holding))
            assert self.servers[name].is_open, f"I21: {name} stays closed after its lease"

    @rule(name=names)
    def reach_readiness(self, name: str) -> None:
        """Nothing moves any more at a server that prepares."""
        where = self.servers[name]
        if where.phase is Phase.PREPARING and where.is_quiet:
            self.send(name, ReadinessReached(where.open_id or "", self.new_reply()))

    @rule(name=names)
    def end_write(self, name: str) -> None:
        """The part of a commit under way is on the disk."""
        data = self.servers[name].control.data
        if data.writing is not None and data.checkpoint_id is not None:
            self.send(name, PartWritten(data.checkpoint_id, data.writing, self.new_reply()))

    @rule(data=st.data(), name=names, kind=st.sampled_from(NEWS))
    def late_news(self, data: st.DataObject, name: str, kind: Any) -> None:
        """Something inside the server ends that belonged to a checkpoint which is over."""
        gone = sorted(self.known[name].gone)
        if gone:
            before = self.servers[name]
            self.send(name, kind(data.draw(st.sampled_from(gone))))
            assert self.servers[name] == before, f"I14: {kind.__name__} of an ended checkpoint changed {name}"

    @rule(name=names, keys=st.frozensets(st.sampled_from(["a", "a-a1", "b", "c"]), min_size=1))
    def leave_out(self, name: str, keys: frozenset[str]) -> None:
        """A server that waits, or is to begin, is told to go on without some executions (section 12)."""
        if self.servers[name].phase is Phase.IDLE and not self.calm:
            self.send(name, self.call(PrepareRequested, name, self.new_id()))
        where = self.servers[name]
        if where.phase is Phase.PREPARING:
            self.send(name, self.call(PrepareRequested, name, where.open_id or "", leave_out=keys))
            left_out = self.servers[name].control.data.left_out
            assert left_out == where.control.data.left_out | keys, f"I15: told {keys}, {name} has {left_out}"

    @precondition(lambda self: not self.calm)
    @rule(name=names)
    def break_prepare(self, name: str) -> None:
        if self.servers[name].phase is Phase.PREPARING:
            self.send(name, PrepareFailed(self.servers[name].open_id or ""))

    @rule(seconds=st.sampled_from([1, 1, 30, 90]))
    def pass_time(self, seconds: int) -> None:
        """Time goes by; what has not heard anything until its lease ends reopens by itself (I21)."""
        self.now += seconds
        for name in NAMES:
            data = self.servers[name].control.data
            if data.lease_until is not None and data.lease_until <= self.now:
                self.send(name, LeaseExpired(data.checkpoint_id or ""))
                assert self.servers[name].is_open, f"I21: {name} stays closed after its lease"

    @precondition(lambda self: not self.calm)
    @rule()
    def restart_environment(self) -> None:
        """A process dies and its successor takes the name; it holds nothing and remembers nothing."""
        self.processes["environment"] += 1
        self.servers["environment"] = server(f"environment-{self.processes['environment']}")
        self.known["environment"] = Known()

    # --- what must be true

    @invariant()
    def phase_and_admission_agree(self) -> None:
        """I16: open when idle and not restoring, closed in every other phase."""
        for name, where in self.servers.items():
            expected = where.phase is Phase.IDLE and self.known[name].reading is None
            assert where.is_open == expected, f"I16: {name} is {where.phase}, its gate {where.gate.state}"

    @invariant()
    def the_open_id_is_the_one_that_closed_it(self) -> None:
        """I13: one id is open at a time, and it is the one whose prepare or restore was accepted."""
        for name, where in self.servers.items():
            assert where.open_id == self.known[name].holding, f"I13: {name} has {where.open_id} open"
            assert where.open_id is None or where.open_id not in where.control.data.ended

    @invariant()
    def nobody_is_left_out_of_nothing(self) -> None:
        """S18: with its checkpoint over, a server has nothing to do without anybody."""
        for name, where in self.servers.items():
            assert where.open_id or not where.control.data.left_out, f"S18: {name}: {where.control.data.left_out}"

    @invariant()
    def counts_are_counts(self) -> None:
        """The gate never counts below nothing, and is quiet exactly when closed with nothing active (I23)."""
        for name, where in self.servers.items():
            counts = where.gate.data
            assert min(counts.active, counts.settled, counts.held) >= 0, f"{name}: {counts}"
            assert where.is_open or where.is_quiet == (counts.active == 0), f"{name}: {where.gate}"
            assert not (where.is_open and counts.held)

    @invariant()
    def nothing_moves_once_it_is_prepared(self) -> None:
        """I24: a server that has answered prepared stays quiet until it is opened."""
        for name, where in self.servers.items():
            assert where.phase not in (Phase.PREPARED, Phase.COMMITTED) or where.is_quiet, f"I24: {name} moves"

    @invariant()
    def a_lease_is_held_exactly_while_one_is_open(self) -> None:
        for where in self.servers.values():
            data = where.control.data
            assert (data.lease_until is None) == (data.checkpoint_id is None)
            assert data.lease_until is None or data.lease_until > self.now - 1 - GRACE_S


@frozen
class Must:
    """The event must be refused, with this code if there is but one; else `broken` is broken."""

    broken: str
    code: str | None = None


def _must_be_refused(before: Server, known: Known, event: Any) -> Must | None:
    """Why the event must be refused, in the order in which a server looks; None if it need not be."""
    if not isinstance(event, Call):
        return Must("I51") if isinstance(event, PartInstalled) and event.checkpoint_id != known.reading else None
    if event.incarnation not in (None, before.incarnation):
        return Must("S59", "stale_incarnation")
    if known.epoch is not None and event.epoch is not None and event.epoch < known.epoch:
        return Must("S44", "stale_epoch")
    if isinstance(event, RetireRequested):
        return Must("I13") if known.holding not in (None, event.checkpoint_id) else None
    if _is_gone(known, event.checkpoint_id):
        return None if isinstance(event, ResumeRequested) else Must("I14", "stale_checkpoint")
    if known.holding not in (None, event.checkpoint_id):
        return Must("I13")  # a conflict, or stale because one of our own ids after it has ended
    if any(verb is type(event) and named == event.checkpoint_id for verb, named, _ in known.answers):
        return None if _recorded(known, event) is not None else Must("S26", "checkpoint_conflict")
    late = event.deadline_ts <= event.now
    return Must("I18") if late and isinstance(event, (CommitRequested, RestoreRequested)) else None


def _is_gone(known: Known, checkpoint_id: str) -> bool:
    """It has ended here, or a later one of our own has: `ck-` and `rs-` are counted apart, and padded, so they sort."""
    kind = checkpoint_id[:3]
    return checkpoint_id in known.gone or (
        kind in ("ck-", "rs-") and any(each[:3] == kind and checkpoint_id <= each for each in known.gone)
    )


def _recorded(known: Known, event: Any) -> str | None:
    """The reply that was given to this call before, while its checkpoint is open (I15)."""
    if not isinstance(event, Call):
        return None
    return known.answers.get((type(event), event.checkpoint_id, getattr(event, "arguments", "")))


def _now_known(known: Known, before: Server, after: Server, event: Any) -> Known:
    """What is known after an accepted event."""
    if isinstance(event, Call) and event.epoch is not None:
        changed = before.control.data.epoch != after.control.data.epoch
        known = evolve(known, epoch=event.epoch if changed else known.epoch)
    checkpoint_id = event.checkpoint_id
    if isinstance(event, PrepareRequested):
        return evolve(known, holding=checkpoint_id)
    if isinstance(event, RestoreRequested) and known.holding is None:
        return evolve(known, reading=checkpoint_id)
    if isinstance(event, PartInstalled):
        installed: Answers = {(RestoreRequested, checkpoint_id, event.arguments): event.reply}
        return evolve(known, holding=checkpoint_id, reading=None, answers=installed)
    if isinstance(event, RestoreFailed):
        return evolve(known, reading=None)
    if isinstance(event, ReadinessReached) and before.phase is Phase.PREPARING:
        ready: Answers = {(PrepareRequested, checkpoint_id, ""): event.reply}
        return evolve(known, answers=ready)
    if isinstance(event, PartWritten) and before.phase is Phase.PREPARED:
        written: Answers = {(CommitRequested, checkpoint_id, event.arguments): event.reply}
        return evolve(known, answers=known.answers | written)
    if isinstance(event, PrepareFailed):
        return evolve(known, holding=None)
    if isinstance(event, (ResumeRequested, LeaseExpired)):
        ends = checkpoint_id == known.holding
        fresh = evolve(known, gone=known.gone | {checkpoint_id})
        return evolve(fresh, holding=None, answers={}) if ends else fresh
    return known
