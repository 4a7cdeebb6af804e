"""An environment server: it drives each episode from its task to its reward, over agents and resources servers.

The application's `/run` handler calls `environment.episode(scope, task=...)` and takes steps; it runs once per attempt,
in the server's own task group, and outlives its callers. docs/reference/protocol.md sections 4, 6, 7 and 9.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

import httpx
from attrs import frozen

from statecore import WireError, WireErrors

from ..files.snapshots import InvalidCheckpointState
from ..identity import EpisodeId, highest_attempts
from ..net.http import ASGIApp, Incoming, Scope, Send, refuse_request, serve
from ..records.records import EnvironmentBoundary, EnvironmentRecord, record_json
from ..settings import Seams, Settings
from .admission import Activity
from .episode import Episode, EpisodeError, LiveEpisode
from .executions import Execution, Executions
from .part import Blocker, Json, Report
from .server import Server

RUN_PATH: Final = "/run"
EPISODE_KEY: Final = "statecore.episode"


@frozen
class Pending:
    """A restored episode that nobody has claimed yet; `boundary` None starts over from the input."""

    episode: EpisodeId
    task_digest: str
    boundary: EnvironmentBoundary | None


class Environment(Server):
    """An environment server: its episodes, running and restored."""

    kind: ClassVar[str] = "environment"
    role: ClassVar[str] = "environment"
    log: ClassVar[logging.Logger] = logging.getLogger("statecore.environment")

    def __init__(
        self,
        name: str,
        settings: Settings,
        *,
        seams: Seams | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(name, settings, seams=seams, transport=transport)
        self._episodes: dict[EpisodeId, LiveEpisode] = {}
        self._pending: dict[EpisodeId, Pending] = {}
        self.executions = Executions(
            self, self.seams, epoch=settings.epoch, max_retained_bytes=settings.max_retained_bytes
        )

    @asynccontextmanager
    async def episode(self, scope: Scope, *, task: Any = None) -> AsyncIterator[Episode]:
        """The episode of this `/run`. `task` is the request's JSON; a body with a `task` field gives that field.

        The sessions that it opened are closed when the block ends.
        """
        live: LiveEpisode | None = scope.get(EPISODE_KEY)
        if live is not None:
            task = live.task
        elif isinstance(task, dict) and "task" in task:
            task = task["task"]
        episode = Episode(self, live, task)
        try:
            yield episode
        except Exception:
            await episode.close()
            raise
        await episode.close()

    # --- requests

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        episode = request.episode
        if request.path != RUN_PATH:
            if episode is not None:
                self.fences.check(episode)
            await serve(app, request, send)
            return
        if episode is None:
            raise refuse_request("rollout_id_required", "/run needs an episode_id, or the /ng-rollout/<id> prefix")
        self.fences.check(episode)
        body = request.value
        if not isinstance(body, dict) or "task" not in body:
            raise refuse_request("checkpoint_error", "/run takes a JSON object with a task")
        await self.executions.run(episode, body["task"], request, app, send)

    def begin(self, execution: Execution) -> None:
        episode = execution.episode
        self.admission.enter_or_refuse()
        try:
            live = self._claimed(execution)
        except BaseException:
            self.admission.leave()
            raise
        self.fences.accept(episode)
        for other in list(self._episodes.values()):
            if other.episode.rollout_id == episode.rollout_id and other.episode.attempt < episode.attempt:
                self._stop(other)
        live.activity = Activity(self.admission, episode.rollout_id, self.check(episode))
        live.since = self.seams.clock.monotonic()
        self._episodes[episode] = live
        execution.extras[EPISODE_KEY] = live

    def _claimed(self, execution: Execution) -> LiveEpisode:
        """The episode to run: a restored one is claimed once, for the same task (I60); one it would hide is refused
        (S15).
        """
        episode = execution.episode
        live = LiveEpisode(episode, execution.task, execution.task_digest, steps=self.steps)
        for other in self._pending:
            if other.rollout_id == episode.rollout_id and other != episode:
                raise refuse_request("checkpoint_error", f"{other.key} continues a checkpoint and is not claimed yet")
        pending = self._pending.get(episode)
        if pending is None:
            return live
        if pending.task_digest != execution.task_digest:
            detail = f"episode {episode.key} continues a checkpoint recorded for a different task"
            raise refuse_request("checkpoint_error", detail)
        if pending.boundary is not None:
            live.results = list(pending.boundary.results)
            live.state = pending.boundary.state
            live.sessions = dict(pending.boundary.sessions)
            live.machine = live.machine.__class__(live.machine.state, pending.boundary.step_index)
            live.restart = False
        del self._pending[episode]
        return live

    def ended(self, execution: Execution) -> None:
        live = self._episodes.pop(execution.episode, None)
        if live is not None:
            live.end()

    # --- a Part

    def activities(self) -> Iterable[tuple[EpisodeId | None, Activity]]:
        return [(live.episode, live.activity) for live in self._episodes.values() if live.activity is not None]

    def report(self) -> Report:
        episodes = list(self._episodes.values())
        blockers = [Blocker(each.episode, each.reason, each.since) for each in episodes if each.blocks]
        restarts = sorted(each.episode.key for each in episodes if each.restart)
        return Report(blockers, {"episodes": len(episodes)}, restarts, self.receipts())

    def receipts(self) -> list[Json]:
        return [receipt.to_json() for receipt in self.executions.receipts()]

    def acknowledge(self, value: Any) -> Json:
        return self.executions.acknowledge(value)

    def status(self) -> Json:
        return {"restored_pending": sorted(episode.key for episode in self._pending)}

    def export(self, scope: frozenset[EpisodeId] | None) -> Iterable[Json]:
        for live in list(self._episodes.values()):
            if live.restart or (scope is not None and live.episode not in scope):
                continue
            boundary = EnvironmentBoundary(
                step_index=len(live.results), results=list(live.results), state=live.state, sessions=dict(live.sessions)
            )
            yield _record(live.episode, live.task_digest, boundary)
        for pending in list(self._pending.values()):
            if scope is None or pending.episode in scope:
                yield _record(pending.episode, pending.task_digest, pending.boundary)

    def check_fresh(self, count: int) -> None:
        if self._episodes or self._pending or self.executions.running():
            raise refuse_request("checkpoint_error", "environment restore requires a process without episodes")

    def stage(self, records: Sequence[EnvironmentRecord], scope: frozenset[EpisodeId]) -> list[Pending]:
        return [_pending(record) for record in records]

    def install(self, staged: Sequence[Pending], scope: frozenset[EpisodeId]) -> Sequence[str]:
        for each in staged:
            self._pending[each.episode] = each
        for episode in scope:
            self.fences.accept(episode.successor)
        return [each.episode.key for each in staged]

    async def retire(self, episodes: Sequence[EpisodeId]) -> None:
        highest = highest_attempts(episodes)
        for pending in [each for each in self._pending if each.attempt <= highest.get(each.rollout_id, -1)]:
            del self._pending[pending]
        for live in list(self._episodes.values()):
            if live.episode.attempt <= highest.get(live.episode.rollout_id, -1):
                self._stop(live)
        await self.executions.retire(episodes)

    def _stop(self, live: LiveEpisode) -> None:
        live.tombstone()
        self.executions.cancel(live.episode)

    def forget(self, rollout_ids: Sequence[str]) -> None:
        self.executions.forget(rollout_ids)


def _record(episode: EpisodeId, task_digest: str, boundary: EnvironmentBoundary | None) -> Json:
    value = None if boundary is None else boundary.to_json()
    return record_json(EnvironmentRecord(episode_id=episode, task_digest=task_digest, boundary=value))


def _pending(record: EnvironmentRecord) -> Pending:
    where = f"episode {record.episode_id.key}"
    try:
        boundary = None if record.boundary is None else EnvironmentBoundary.read(record.boundary)
    except (WireError, WireErrors) as error:
        raise InvalidCheckpointState(f"{where}: {error}") from error
    if record.boundary is not None and boundary is None:
        raise InvalidCheckpointState(f"{where}: its boundary was not written by this kind of environment")
    if boundary is not None and boundary.step_index != len(boundary.results):
        raise InvalidCheckpointState(f"{where}: step {boundary.step_index} with {len(boundary.results)} results")
    return Pending(record.episode_id.successor, record.task_digest, boundary)


__all__ = ["Environment", "Episode", "EpisodeError"]
