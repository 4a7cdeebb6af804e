"""What a coordinator answers: a checkpoint that fails is a value, not an exception. Values only.

docs/reference/protocol.md section 6: a failed checkpoint aborts, the run goes on; the story is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import field, frozen

from statecore.errors import StatecoreError

from ..identity import EpisodeId
from ..records.records import Disposition
from .recovery import Verdict
from .trainer import Dispatch

BLOCKERS_TOLD = 5
RESULTS_TOLD = 10


class CoordinatorError(StatecoreError):
    """The coordinator cannot go on; the message says what was tried and what the mend is."""


class Overtaken(CoordinatorError):
    """Another coordinator has claimed the root: this one has stopped, and acknowledged and resumed nothing (I98)."""


class RestartFailed(CoordinatorError):
    """A server died and the servers could not be started anew: all are stopped, and this coordinator is over.

    What is published is whole; a new coordinator goes on from it.
    """


@frozen(kw_only=True)
class Blocker:
    """Who keeps a server from being ready (S10). `waited_s` is None where the server does not say.

    `unnamed`: this one stands for so many that the server counts and does not name; 0 for who is named.
    """

    server: str
    rollout_id: str = ""
    attempt: int = 0
    reason: str = ""
    waited_s: float | None = None
    unnamed: int = 0

    def __str__(self) -> str:
        if self.unnamed:
            return f"{self.unnamed} that {self.server} does not name"
        who = f"{self.rollout_id} attempt {self.attempt}" if self.rollout_id else "a call without a rollout"
        waited = "" if self.waited_s is None else f" for {self.waited_s:.1f} s"
        return f"{who} at {self.server}: {self.reason}{waited}"


def shown(what: Iterable[object]) -> str:
    """The first of these, and how many more there are."""
    told = list(what)
    more = sum((each.unnamed if isinstance(each, Blocker) else 0) or 1 for each in told[BLOCKERS_TOLD:])
    return "; ".join(map(str, told[:BLOCKERS_TOLD])) + (f"; and {more} more" if more > 0 else "")


def _gone(left_out: Mapping[str, str], retired: Mapping[str, str]) -> str:
    """The end of a story: who is not in it, and why."""
    told = ""
    for what, who in (("left out", left_out), ("retired", retired)):
        if who:
            told += f"; {what}: {shown(f'{rollout_id} ({why})' for rollout_id, why in who.items())}"
    return told


@frozen
class Phase:
    """How long one phase of a checkpoint took, in seconds."""

    name: str
    seconds: float


@frozen(kw_only=True)
class Published:
    """A checkpoint that is in force.

    `counts` are rollouts by disposition; `weak` positions compared by revision only, `untracked` boundaries that name
    no parts; `unresumed` are servers that could not be reached and reopen by their lease; `notes` what else is worth
    saying. `left_out` are the rollouts that it goes without, `retired` those that start over as they would not stand,
    each with the reason; neither has one whose result came all the same. `turns` are the finished turns that it holds
    of rollouts that it continues, as far as their agents count them.
    """

    checkpoint_id: str
    counts: Mapping[Disposition, int]
    phases: tuple[Phase, ...]
    seconds: float
    weak: int = 0
    untracked: int = 0
    unresumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(factory=dict)
    retired: Mapping[str, str] = field(factory=dict)
    turns: int = 0

    @property
    def published(self) -> bool:
        return True

    def story(self) -> str:
        """One line: ``ck-000001-000007: 12 continue, 4 completed, 0 fresh, 0.8 s``."""
        shown = [Disposition.CONTINUE, Disposition.COMPLETED, Disposition.FRESH]
        told = [f"{self.counts.get(each, 0)} {each}" for each in shown]
        if queued := self.counts.get(Disposition.QUEUED, 0):
            told.append(f"{queued} queued")
        told.append(f"{self.seconds:.1f} s")
        if self.unresumed:
            told.append(f"not resumed: {', '.join(self.unresumed)}")
        return f"{self.checkpoint_id}: {', '.join(told)}{_gone(self.left_out, self.retired)}"


@frozen(kw_only=True)
class Aborted:
    """A checkpoint that failed in `phase`; the one before it is in force and the run goes on.

    `in_a_row` counts the failures since the last success, this one included; `broken`: an invariant did not hold, which
    trying again does not mend. `retired` are the rollouts that start over all the same, each with the reason.
    """

    checkpoint_id: str
    reason: str
    phase: str
    blockers: tuple[Blocker, ...] = ()
    phases: tuple[Phase, ...] = ()
    seconds: float = 0.0
    in_a_row: int = 1
    broken: bool = False
    unresumed: tuple[str, ...] = ()
    retired: Mapping[str, str] = field(factory=dict)

    @property
    def published(self) -> bool:
        return False

    def story(self) -> str:
        """One line: ``ck-000001-000007: aborted while preparing: ..., 60.0 s``."""
        blockers = f" ({shown(self.blockers)})" if self.blockers else ""
        again = f", {self.in_a_row} in a row" if self.in_a_row > 1 else ""
        why = f"{self.reason}{blockers}, {self.seconds:.1f} s{again}{_gone({}, self.retired)}"
        return f"{self.checkpoint_id}: aborted while {self.phase}: {why}"


@frozen
class Batch:
    """Executions that are registered and may run; each execution is in one batch only."""

    episodes: tuple[EpisodeId, ...] = ()

    def __len__(self) -> int:
        return len(self.episodes)


@frozen(kw_only=True)
class BatchReport:
    """What came of a batch: how many results were delivered, and why others have none (by rollout id; S42)."""

    delivered: int
    lost: Mapping[str, str] = field(factory=dict)


@frozen
class Damaged:
    """A published checkpoint of the chain that is damaged and was passed over; nothing of it is used.

    `results` are the rollouts whose result it holds and the checkpoint that was taken does not: they run again, and
    whoever heard of their end hears of it once more. None where even that cannot be read.
    """

    checkpoint_id: str
    problem: str
    results: tuple[str, ...] | None = None

    def story(self) -> str:
        """One line."""
        if self.results is None:
            lost = "which results it alone holds cannot be told"
        elif not self.results:
            lost = "it alone holds no result"
        else:
            more = len(self.results) - RESULTS_TOLD
            told = ", ".join(self.results[:RESULTS_TOLD]) + (f" and {more} more" if more > 0 else "")
            lost = f"it alone holds the results of {told}, which run again"
        return f"{self.checkpoint_id} is damaged and nothing of it is used: {self.problem}; {lost}"


@frozen(kw_only=True)
class Restarted:
    """All servers were started anew, since one had died, and the coordinator and its trainer lived on.

    `reason` says who had died and how; `epoch` is the new one; `checkpoint_id` what was restored, None where there was
    no checkpoint; `verdicts` are about every rollout that the coordinator knows; `restore_failed` is why all of them
    start fresh, or ""; `tries` how many starts it took, `seconds` how long nothing ran.
    """

    reason: str
    epoch: int
    checkpoint_id: str | None
    verdicts: tuple[Verdict, ...] = ()
    restore_failed: str = ""
    tries: int = 1
    seconds: float = 0.0

    def count(self, disposition: Disposition) -> int:
        """How many rollouts have this verdict."""
        return sum(each.disposition is disposition for each in self.verdicts)

    def story(self) -> str:
        """One line."""
        shown = [Disposition.CONTINUE, Disposition.COMPLETED, Disposition.FRESH]
        told = ", ".join(f"{self.count(each)} {each}" for each in shown)
        base = "without a checkpoint" if self.checkpoint_id is None else f"from {self.checkpoint_id}"
        failed = f" (restore failed: {self.restore_failed})" if self.restore_failed else ""
        tries = f" at try {self.tries}" if self.tries > 1 else ""
        return f"epoch {self.epoch} {base}{tries}: {told}{failed}, {self.seconds:.1f} s ({self.reason})"


@frozen(kw_only=True)
class Recovered:
    """Where a coordinator stands after `recover`.

    `checkpoint_id` is the checkpoint that it went on from, None for a fresh start; `verdicts` say what became of each
    rollout in it; `restore_failed` why all of them start fresh, or ""; `damaged` are newer ones that it passed over.
    """

    checkpoint_id: str | None
    epoch: int
    verdicts: tuple[Verdict, ...] = ()
    restore_failed: str = ""
    overtaken: tuple[str, ...] = ()
    damaged: tuple[Damaged, ...] = ()
    runnable_: Callable[[Iterable[Dispatch]], Batch] = field(repr=False, eq=False)

    def runnable(self, new_dispatches: Iterable[Dispatch] = ()) -> Batch:
        """What runs now: recovered rollouts that are continued or fresh, and new ones that are not known (I12).

        All of them are registered when this returns, so the next checkpoint has them whole; completed ones never come
        back, and nothing is handed out twice.
        """
        return self.runnable_(new_dispatches)

    def count(self, disposition: Disposition) -> int:
        """How many rollouts have this verdict."""
        return sum(each.disposition is disposition for each in self.verdicts)

    def story(self) -> str:
        """One line."""
        if self.checkpoint_id is None:
            return f"epoch {self.epoch}: a fresh start"
        shown = [Disposition.CONTINUE, Disposition.COMPLETED, Disposition.FRESH]
        told = ", ".join(f"{self.count(each)} {each}" for each in shown)
        failed = f" (restore failed: {self.restore_failed})" if self.restore_failed else ""
        passed = "".join(f" ({each.checkpoint_id} is damaged)" for each in self.damaged)
        return f"epoch {self.epoch} from {self.checkpoint_id}{passed}: {told}{failed}"
