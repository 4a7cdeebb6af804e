"""Failing twins of the world of deployments: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from attrs import evolve

from models.deployment import OURS, ROLLOUT, DeploymentWorld
from models.twins import without_rule
from participants.coordination.ledger import Ledger, Rollout
from participants.machines import deployment as dp
from participants.machines.attempt import ATTEMPT
from participants.machines.heartbeat import HEARTBEAT, Answered, Heartbeat
from statecore import go, stay

_D = dp.DeploymentState


class StartsInTheEpochThatItHas(DeploymentWorld):
    """The servers are started again under the claim of the start before."""

    deployment_table = without_rule(dp.DEPLOYMENT, {(_D.CLAIMING, dp.EpochClaimed): go(_D.STARTING, do=dp.start)})

    def _claim(self, effect: dp.ClaimEpoch) -> None:
        self._step(dp.EpochClaimed(effect.after))


class ClaimsTheNextFreeOne(DeploymentWorld):
    """A coordinator that finds the claim of another after its own takes the one behind that."""

    def _claim(self, effect: dp.ClaimEpoch) -> None:
        self.claims = (*self.claims, OURS)
        self._step(dp.EpochClaimed(len(self.claims)))


class StartsBesideTheOthers(DeploymentWorld):
    """Servers that may still run are not stopped before the next ones are started."""

    def _stop(self) -> None:
        pass


class TakesAnyAnswerForItsOwn(DeploymentWorld):
    """Whoever answers in the name of a server is that server."""

    heartbeat_table = without_rule(
        HEARTBEAT,
        {(Heartbeat.ALIVE, Answered): stay(), (Heartbeat.LATE, Answered): go(Heartbeat.ALIVE)},
    )


class TriesForEver(DeploymentWorld):
    """A restart that fails is tried again, however often it has failed."""

    deployment_table = without_rule(
        dp.DEPLOYMENT,
        {
            (_D.STOPPING, dp.ServersStopped): go(_D.CLAIMING, do=dp.claim),
            (_D.STOPPING, dp.StepFailed): stay(do=dp.fail),
        },
    )


class StartsAnewForEver(DeploymentWorld):
    """Restarts one after the other with nothing done in between are not counted."""

    deployment_table = without_rule(dp.DEPLOYMENT, {(_D.SERVING, dp.ServerDied): go(_D.STOPPING, do=dp.begin)})


class RetiredOnceRetiredForEver(DeploymentWorld):
    """What was retired on the servers before counts as retired on the new ones."""

    def _meet(self) -> None:
        pass


class TriedAgainUnderItsNumber(DeploymentWorld):
    """The next attempt has the number of the one that was retired."""

    def _retried(self, ledger: Ledger) -> Rollout:
        return evolve(ledger[ROLLOUT], execution=ATTEMPT.start(), sent=False, restored=False)


TWINS = (
    ClaimsTheNextFreeOne,
    RetiredOnceRetiredForEver,
    StartsAnewForEver,
    StartsBesideTheOthers,
    StartsInTheEpochThatItHas,
    TakesAnyAnswerForItsOwn,
    TriedAgainUnderItsNumber,
    TriesForEver,
)
