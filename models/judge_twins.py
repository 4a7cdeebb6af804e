"""Failing twins of the world of policy and judge: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from models.judge import MODEL, JudgeWorld, Says
from participants.coordination.introduction import Role, UnknownRole, role_of_kind
from participants.servers.peers import Heard
from statecore.properties import always


class RoleIsGuessed(JudgeWorld):
    """S1: who does not say its role has the one of its kind."""

    def _role(self, said: Says) -> Role | None:
        try:
            return super()._role(said)
        except UnknownRole:
            return role_of_kind(dict(said.status or ()))


class RoleIsGuessedSeenByItsHarm(RoleIsGuessed):
    """S1 once more, with nothing said about a closed judge: the verification waits for it, and prepare never ends."""

    @always
    def a_judge_is_never_closed(self) -> bool:
        return True


class JudgeOfAnotherMake(JudgeWorld):
    """S1, and a limit: a judge with inherited checkpoint routes that serves no capabilities has the role of its kind. A
    kind is all that it says, and an older policy says the same.
    """

    JUDGES: ClassVar[Mapping[str, Says]] = {"with routes of a policy": Says(None, MODEL)}


class RefusalIsAScore(RoleIsGuessedSeenByItsHarm):
    """S1, S9: a judge that was closed refuses the call, and that is the score. Either rule alone is enough."""

    def _heard(self, code: str) -> Heard:
        return Heard.REPLY


TWINS = (RoleIsGuessed, RoleIsGuessedSeenByItsHarm, JudgeOfAnotherMake, RefusalIsAScore)
