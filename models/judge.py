"""A policy and a judge, the same kind of process, over a checkpoint, by the tables that run. Executable specification.

A rollout calls the policy and is verified at the tools server, whose verifier asks the judge, also while a checkpoint
is open. Who takes part is what the servers say of themselves; a judge may say that it is one, or have no control plane,
or say nothing of its role although it could be closed. Then nobody is closed, the deployment is refused.

Which role a server has and what an answer is to its caller are the production's own decisions (`declared_role`,
`role_of_kind`, `heard`). Nothing is lost here and no lease ends: that is in other worlds. docs/reference/protocol.md
sections 2 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import frozen

from models.server import DEADLINE_TS, Server, knock, server, tell
from participants.coordination.introduction import Role, UnknownRole, declared_role, role_of_kind
from participants.machines.control import (
    PARTICIPANT,
    CommitRequested,
    Control,
    PartWritten,
    Phase,
    PrepareRequested,
    ReadinessReached,
    ResumeRequested,
)
from participants.machines.fencing import own_id
from participants.machines.gate import GATE, Arrived, Ended, GateData, GateState, Settled, SettledEnded
from participants.servers.peers import Heard, heard
from statecore import Refused, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, param, slot

NAMES = ("policy", "tools", "judge")
CHECKPOINT = own_id("ck", 1, 1)


@frozen(cache_hash=True)
class Says:
    """What a server answers when it is asked who it is: capabilities and a status, each may be no route at all."""

    capabilities: tuple[tuple[str, str], ...] | None
    status: tuple[tuple[str, str], ...] | None


MODEL = (("kind", "model"),)
POLICIES = {
    "declared": Says((*MODEL, ("instance_role", "policy")), MODEL),
    "without capabilities": Says(None, MODEL),
}
JUDGES = {
    "declared": Says((*MODEL, ("instance_role", "auxiliary")), None),
    "without control": Says(None, None),
    "without a role": Says(MODEL, MODEL),
}
TOOLS = Says((("kind", "resources"), ("instance_role", "resources")), (("kind", "resources"),))


class JudgeWorld(World):
    """One rollout, a policy, a judge, a tools server, and as much of a coordinator as discovers and closes."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT
    GATE: ClassVar[Table[GateState, GateData]] = GATE

    JUDGES: ClassVar[Mapping[str, Says]] = JUDGES

    replay = param(False)  # the verification is declared replay: it passes while the tools server is closed
    max_held = param(1)

    started: tuple[str, str] = slot(("", ""))  # what policy and judge are like
    policy: Server = slot(make=lambda w: server("policy-1", max_held=w.max_held))
    judge: Server = slot(make=lambda w: server("judge-1", max_held=w.max_held))
    tools: Server = slot(server("tools-1"))
    coordinator: str = slot("new")  # idle, open, ending, done or refused
    members: frozenset[str] = slot(frozenset())
    resumed: frozenset[str] = slot(frozenset())
    rollout: str = slot("new")  # calling, answered, verifying, asking, judged or scored
    entered: bool = slot(False)  # what it waits for was admitted
    score: str | None = slot(None)

    # --- who is there

    @action(over=lambda world: [(policy, judge) for policy in POLICIES for judge in world.JUDGES])
    def start(self, which: tuple[str, str]) -> object:
        if self.started != ("", ""):
            return False
        self.started = which
        return None

    @action
    def discover(self) -> object:
        """Everybody is asked who it is; a server that does not say its role is refused by name (S1)."""
        if self.coordinator != "new" or self.started == ("", ""):
            return False
        policy, judge = self.started
        says = {"policy": POLICIES[policy], "judge": self.JUDGES[judge], "tools": TOOLS}
        try:
            roles = {name: self._role(said) for name, said in says.items()}
        except UnknownRole:
            self.coordinator = "refused"
            return None
        self.members = frozenset(name for name, role in roles.items() if role not in (None, Role.AUXILIARY))
        self.coordinator = "idle"
        return None

    # --- the rollout

    @action
    def call_policy(self) -> object:
        """Its call is admitted, or held at the door."""
        if self.rollout != "new" or self.coordinator == "new":
            return False
        self.rollout = "calling"
        self._knock_at("policy")
        return None

    @action
    def policy_answers(self) -> object:
        """The generation ends, and its response leaves while the policy is open."""
        if self.rollout != "calling" or not self.entered or not self.policy.is_open:
            return False
        self.policy = knock(self.policy, SettledEnded(), self.GATE)
        self.rollout, self.entered = "answered", False
        return None

    @action
    def verify(self) -> object:
        """The verification is admitted, or held; one that is declared replay passes."""
        if self.rollout != "answered":
            return False
        self.rollout = "verifying"
        if self.replay:
            self.entered = True
            return None
        self._knock_at("tools")
        return None

    @action
    def ask_judge(self) -> object:
        """The verifier asks the judge."""
        if self.rollout != "verifying" or not self.entered:
            return False
        self.rollout = "asking"
        try:
            self._knock_at("judge")
        except Refused as refused:
            if self._heard(refused.code) is Heard.CLOSED:
                return False  # it is asked again
            self.rollout, self.score = "judged", refused.code
        return None

    @action
    def judge_answers(self) -> object:
        if self.rollout != "asking" or not self.entered or not self.judge.is_open:
            return False
        self.judge = knock(self.judge, SettledEnded(), self.GATE)
        self.rollout, self.score = "judged", "good"
        return None

    @action
    def end_verification(self) -> object:
        if self.rollout != "judged":
            return False
        if not self.replay:
            self.tools = knock(self.tools, Ended(), self.GATE)
        self.rollout, self.entered = "scored", False
        return None

    # --- a checkpoint

    @action
    def begin(self) -> object:
        if self.coordinator != "idle":
            return False
        self.coordinator = "open"
        return None

    @action(over=NAMES)
    def prepare(self, name: str) -> object:
        """Everybody who takes part, in any order."""
        if self.coordinator != "open" or name not in self.members or self._server(name).phase is not Phase.IDLE:
            return False
        self._tell(name, PrepareRequested(CHECKPOINT, **self._address(name)))
        return None

    @action(over=NAMES)
    def reach_readiness(self, name: str) -> object:
        where = self._server(name)
        if where.phase is not Phase.PREPARING or not where.is_quiet:
            return False
        self._tell(name, ReadinessReached(CHECKPOINT))
        return None

    @action(over=NAMES)
    def commit(self, name: str) -> object:
        if self.coordinator != "open" or not self._all(Phase.PREPARED, Phase.COMMITTED):
            return False
        if self._server(name).phase is not Phase.PREPARED:
            return False
        self._tell(name, CommitRequested(CHECKPOINT, arguments="all", **self._address(name)))
        self._tell(name, PartWritten(CHECKPOINT, "all"))
        return None

    @action
    def publish(self) -> object:
        if self.coordinator != "open" or not self._all(Phase.COMMITTED):
            return False
        self.coordinator = "ending"
        return None

    @action
    def give_up(self) -> object:
        """Its deadline has passed."""
        if self.coordinator != "open":
            return False
        self.coordinator = "ending"
        return None

    @action(over=NAMES)
    def resume(self, name: str) -> object:
        if self.coordinator != "ending" or name not in self.members - self.resumed:
            return False
        self._tell(name, ResumeRequested(CHECKPOINT, **self._address(name)))
        self.resumed |= {name}
        if self.resumed == self.members:
            self.coordinator = "done"
        return None

    # --- decisions that failing twins take out

    def _role(self, said: Says) -> Role | None:
        """What a server is to the coordinator; None if it has no control plane."""
        if said.capabilities is not None:
            return declared_role(dict(said.capabilities))
        return None if said.status is None else role_of_kind(dict(said.status))

    def _heard(self, code: str) -> Heard:
        """What a refusal of the judge is to the verifier."""
        return heard(503, code)

    # --- helpers

    def _server(self, name: str) -> Server:
        where: Server = getattr(self, name)
        return where

    def _all(self, *phases: Phase) -> bool:
        return all(self._server(name).phase in phases for name in self.members)

    def _address(self, name: str) -> dict[str, Any]:
        return {"deadline_ts": DEADLINE_TS, "epoch": 1, "incarnation": self._server(name).incarnation}

    def _knock_at(self, name: str) -> None:
        """A call arrives there; a model call is quiet while it generates. Raises Refused where no more are held."""
        held = self._server(name).gate.data.held
        setattr(self, name, knock(self._server(name), Arrived(), self.GATE))
        self.entered = self._server(name).gate.data.held == held
        if self.entered and name != "tools":
            setattr(self, name, knock(self._server(name), Settled(), self.GATE))

    def _tell(self, name: str, event: object) -> None:
        """The server takes the event; whoever waits at its door enters when it opens."""
        before = self._server(name)
        after, _ = tell(before, event, self.PARTICIPANT, self.GATE)
        if before.gate.data.held > after.gate.data.held:
            self.entered = True
            if name != "tools":
                after = knock(after, Settled(), self.GATE)
        setattr(self, name, after)

    # --- what must be true

    @always(covers=("I73", "S1"))
    def a_judge_is_never_closed(self) -> bool:
        return self.judge.is_open

    @always(covers=("I74", "S1", "S9"))
    def a_score_is_what_the_judge_says(self) -> bool:
        return self.score in (None, "good")

    @always
    def policy_and_tools_take_part(self) -> bool:
        return self.coordinator in ("new", "refused") or {"policy", "tools"} <= self.members

    @recoverable(
        covers=("I20", "S1"),
        by=(
            "policy_answers",
            "ask_judge",
            "judge_answers",
            "end_verification",
            "prepare",
            "reach_readiness",
            "commit",
            "publish",
        ),
    )
    def a_checkpoint_that_is_open_can_be_published(self) -> bool:
        """Without giving up, and without anything that begins anew."""
        return self.coordinator != "open"

    @recoverable(covers="I73")
    def the_rollout_is_scored(self) -> bool:
        return self.rollout == "scored"

    @final
    def nothing_is_left_to_do(self) -> bool:
        return self.rollout == "scored" and self.coordinator in ("done", "refused")

    # --- what must be possible

    @sometimes(covers="S1")
    def a_server_without_a_role_is_refused(self) -> bool:
        return self.coordinator == "refused" and self.started[1] == "without a role"

    @sometimes(covers="I73")
    def the_judge_is_asked_while_a_checkpoint_is_open(self) -> bool:
        return self.rollout == "asking" and self.policy.phase is Phase.PREPARED

    @sometimes
    def a_checkpoint_waits_for_the_judge(self) -> bool:
        """Or, if the verification is declared replay, does not."""
        waiting = Phase.COMMITTED if self.replay else Phase.PREPARING
        return self.rollout == "asking" and self.tools.phase is waiting

    @sometimes
    def a_policy_without_capabilities_is_closed(self) -> bool:
        return self.started[0] == "without capabilities" and self.policy.phase is Phase.COMMITTED

    @sometimes
    def the_policy_holds_a_call(self) -> bool:
        return self.policy.gate.data.held > 0
