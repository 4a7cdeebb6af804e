"""A checkpoint as its caller asked for it: one run, or several where stragglers are retired in between. trio.

Rules (docs/reference/protocol.md section 12): servers retire only while they are open, so the run ends first, as an
abort that leaves dispatch frozen; the stragglers are retired on every server, and what is left of the time goes into
another run, under an id of its own. The next attempts wait until dispatch goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio
from attrs import define, evolve, field

from ..identity import EpisodeId
from .life import Life, log
from .outcomes import Aborted, Published
from .outcomes import Phase as PhaseTime
from .preparing import told
from .stragglers import Stragglers
from .transaction_shell import CheckpointRun, Open

MOST_RUNS: Final = 3
RETIRE_SHARE: Final = 0.5  # of what is left of the time
ANSWER_SHARE: Final = 0.25


@define(eq=False)
class Checkpointing:
    """`timeout_s` bounds everything up to the publication, whatever the number of runs; `run` it once.

    `over` is set by whoever runs it, when it has come to its end in whatever way.
    """

    life: Life
    timeout_s: float
    stragglers: Stragglers
    current: CheckpointRun = field(init=False)
    retired: dict[EpisodeId, str] = field(factory=dict)
    over: trio.Event = field(init=False, factory=trio.Event)
    _ends: float = field(init=False)
    _interrupted: bool = field(init=False, default=False)
    _retiring: trio.CancelScope = field(init=False, factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        self._ends = trio.current_time() + self.timeout_s
        self.current = self._next(self.timeout_s, self.stragglers)

    def _next(self, timeout_s: float, stragglers: Stragglers) -> CheckpointRun:
        return CheckpointRun(self.life, self.life.next_checkpoint_id(), timeout_s, stragglers)

    @property
    def checkpoint_id(self) -> str:
        """The id of the run under way."""
        return str(self.current.checkpoint_id)

    @property
    def open(self) -> Open:
        """Whom to resume if `run` did not come to its end."""
        return self.current.open

    def interrupt(self, why: str) -> None:
        """The servers are gone or will be: what can be aborted is, nobody is waited for, and there is no other run."""
        self._interrupted = True
        self._retiring.cancel()
        self.current.interrupt(why)

    async def while_servers_are_there(self, work: Callable[[], Awaitable[Any]]) -> None:
        """`work` is done, or the servers are gone."""
        await self.current.while_servers_are_there(work)

    async def run(self) -> Published | Aborted:
        """The checkpoint is in force, or aborted. Overtaken when another coordinator has claimed the root."""
        began = trio.current_time()
        times: tuple[PhaseTime, ...] = ()
        for left in reversed(range(MOST_RUNS)):  # behind the last one nobody would be tried again: it retires nobody
            outcome = await self.current.run()
            times += outcome.phases
            gone = self.current.to_retire
            if not gone or not isinstance(outcome, Aborted):
                break
            problem = "not all were retired: the servers are gone"
            if outcome.unresumed:
                problem = f"not retired, since not resumed: {', '.join(outcome.unresumed)}"
            elif not self._interrupted:
                with trio.CancelScope() as self._retiring:
                    problem = await self._retire(gone)
            time_left = self._ends - trio.current_time()
            if problem or self._interrupted or time_left <= 0:
                outcome = evolve(outcome, reason=f"{outcome.reason}; {problem}" if problem else outcome.reason)
                break
            self.current = self._next(time_left, self.stragglers if left > 1 else Stragglers.ABORT)
        self.life.door.open()
        outcome = evolve(outcome, phases=times, seconds=trio.current_time() - began)
        started_over = {
            episode.rollout_id: why
            for episode, why in self.retired.items()
            if self.life.ledger[episode.rollout_id].attempt > episode.attempt
        }
        return evolve(outcome, retired=started_over)

    async def _retire(self, gone: Mapping[EpisodeId, str]) -> str:
        """The stragglers are over everywhere, and it is known what came of them; returns "", or what went wrong."""
        life = self.life
        now = trio.current_time()
        until = now + max(0.0, self._ends - now) * RETIRE_SHARE
        deadline_ts = life.seams.clock.time() + (until - now)
        log.warning("%s: retires %s", self.checkpoint_id, told(gone))
        problem = await life.retirements.retire(
            gone, life.deployment, self.checkpoint_id, deadline_ts, life.settings.retire_batch
        )
        if problem:
            return f"not all were retired: {problem}"
        self.retired |= gone
        for episode in gone:
            self._start_over(episode)
        now = trio.current_time()
        with trio.move_on_at(now + max(0.0, self._ends - now) * ANSWER_SHARE):
            while any(self._is_awaited(episode) for episode in gone):
                await life.change()
        return ""

    def _start_over(self, episode: EpisodeId) -> None:
        """One that was not sent, as a continuation that waits to be, has its next attempt: nobody hears of its end."""
        life = self.life
        rollout = life.ledger[episode.rollout_id]
        if rollout.episode == episode and not (rollout.sent or rollout.has_result):
            life.note(life.ledger.retried(episode.rollout_id))
            life.retirements.forget(episode)

    def _is_awaited(self, episode: EpisodeId) -> bool:
        """Its `/run` has not been answered yet, with the result that it had or with its end."""
        rollout = self.life.ledger[episode.rollout_id]
        return rollout.episode == episode and rollout.sent and not rollout.has_result and not rollout.ended
