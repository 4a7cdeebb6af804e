"""What every kind of server shares: settings, the gate, the control plane, and the way it wraps an application.

A server is made with a name and settings, and wraps the application that serves its routes. With checkpointing off,
`wrap` returns that very application: off means unchanged behaviour (I76). docs/reference/protocol.md sections 2 and 14.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import anyio.abc
import httpx

from statecore import DefinitionError, Refused
from statecore.seams import on_disk

from ..identity import EpisodeId
from ..journals.recorder import StepRecorder
from ..net.http import ASGIApp, Incoming, Send, until_gone
from ..net.posts import Posts
from ..settings import Seams, Settings
from ..signals import HOLD_SECONDS, HOLDS, SERVER
from .admission import Activity, Admission, Check
from .asgi import Shell
from .fences import Fences
from .part import Json, Report
from .participant import Participant

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
LEAVE_OUT: Final = "leave_out"
SCHEMA_VERSIONS: Final = (1,)
FEATURES: Final = ("positions", "receipts", "epochs", "incarnations", "results", LEAVE_OUT)


class Server(ABC):
    """One server of any kind. `role` is what a coordinator takes it for (S1); `kind` its name on the wire."""

    kind: ClassVar[str]
    role: ClassVar[str]
    checkpoint_mode: str = "export_restore"
    concurrency: ClassVar[str] = "one operation per session"

    def __init__(
        self,
        name: str,
        settings: Settings,
        *,
        seams: Seams | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not NAME.match(name):
            raise DefinitionError(
                f"server name {name!r}: use letters, digits, '.', '_' and '-', starting with one of the first two"
            )
        self.name = name
        self.settings = settings.checked()
        self.seams = seams or Seams()
        self.group: anyio.abc.TaskGroup | None = None
        self.fences = Fences()
        self.incarnation = self.seams.entropy.token_hex(16)  # this process, in every reply
        self.participant: Participant | None = None
        self._files = settings.journal_of(f"{name}-{self.incarnation}", self.seams) if settings.enabled else None
        given = self.seams.journal if settings.enabled else None
        self.steps = StepRecorder(self._files or given, self._journal_ids)
        self.admission = Admission(
            settings.max_held,
            closed=settings.enabled and settings.epoch_required,
            on_change=self._on_change,
            on_hold=self._on_hold,
            steps=self.steps,
        )
        self._transport = transport
        self._posts: Posts | None = None
        if settings.enabled and self._takes_part():
            self.participant = Participant(
                name, self.settings, self.seams, self, self.admission, self.fences, self.incarnation, self.steps
            )

    def _takes_part(self) -> bool:
        return True

    def _journal_ids(self) -> Json:
        """What every line of this process carries: who it is, and which checkpoint is open here."""
        participant = self.participant
        return {
            "process": self.name,
            "kind": self.kind,
            "incarnation": self.incarnation,
            "epoch": self.epoch if participant is not None else self.settings.epoch,
            "checkpoint_id": None if participant is None else participant.control.checkpoint_id,
        }

    def _on_change(self) -> None:
        if self.participant is not None:
            self.participant.changed()

    @contextmanager
    def _on_hold(self) -> Iterator[None]:
        """A request waits for the gate: it is counted, and how long it waits."""
        telemetry, began = self.seams.telemetry, self.seams.clock.monotonic()
        telemetry.add(HOLDS, 1, {SERVER: self.name})
        try:
            yield
        finally:
            telemetry.record(HOLD_SECONDS, self.seams.clock.monotonic() - began, {SERVER: self.name})

    async def stopped(self) -> None:
        """Nothing is served any more: its journal, if it keeps one in files, is whole."""
        if self._files is not None:
            await on_disk(self.seams.disk, self._files.close)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """`app` behind the control plane; `app` itself when checkpointing is off."""
        return Shell(self, app) if self.settings.enabled else app

    @property
    def posts(self) -> Posts:
        """What sends calls to other servers: data only, never shared with control traffic."""
        if self._posts is None:
            self._posts = Posts(self._transport)
        return self._posts

    @property
    def epoch(self) -> int | None:
        return None if self.participant is None else self.participant.control.epoch

    def stamp(self, reply: Json) -> Json:
        """A control reply with the fields that every one carries."""
        return reply | {
            "server_ts": self.seams.clock.time(),
            "incarnation": self.incarnation,
            "epoch": self.settings.epoch if self.participant is None else self.participant.control.epoch,
        }

    def capabilities(self) -> Json:
        """What a coordinator learns of this server: protocol.md section 14."""
        participant = self.participant
        return {
            "kind": self.kind,
            "instance": self.name,
            "instance_role": self.role,
            "checkpoint_mode": self.checkpoint_mode,
            "schema_versions": list(SCHEMA_VERSIONS),
            "admission_states": ["open", "draining", "quiet"],
            "workers": {"mode": "single", "count": 1},
            "concurrency": self.concurrency,
            "phase": "idle" if participant is None else participant.phase.wire,
            "checkpoint_id": None if participant is None else participant.control.checkpoint_id,
            "features": list(FEATURES),
        }

    # --- admission of data requests

    def check(self, episode: EpisodeId | None) -> Callable[[], None]:
        """What is asked of a request each time before it may move: its attempt is not over."""

        def checked() -> None:
            if episode is not None:
                self.fences.check(episode)

        return checked

    async def admitted(
        self,
        request: Incoming,
        owner: EpisodeId | None = None,
        *,
        fenced: bool = True,
        also: Check | None = None,
    ) -> Activity:
        """The request has entered, now or after the gate opened; ClientGone when its caller left meanwhile.

        `owner` is the execution that it belongs to where the request itself names none. Refused `stale_attempt` when
        that is over, unless `fenced` is False: cleaning up is never refused. `also` is asked each time before it may
        enter, and may raise Refused.
        """

        async def gone() -> None:
            await until_gone(request.receive)

        episode = request.episode or owner
        rollout_id = None if episode is None else episode.rollout_id
        check = self.check(episode if fenced else None)

        def may_enter() -> None:
            check()
            if also is not None:
                also()

        await self.admission.enter(rollout_id, may_enter, gone)
        if fenced and request.episode is not None:
            self.fences.accept(request.episode)
        return Activity(self.admission, rollout_id, check)

    def turned_away(self, request: Incoming, refused: Refused) -> Refused:
        """The refusal of a request that was not admitted, and is to be sent again."""
        return refused

    # --- defaults of a Part

    @abstractmethod
    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        """A data request that names its execution, if any, and is not a probe: admit, hold or refuse it, and serve
        it.
        """

    @abstractmethod
    def report(self) -> Report:
        """What moves here, and whose rollouts start over."""

    def receipts(self) -> list[Json] | None:
        """The retained results' receipts; None for a kind that answers no `/run`."""
        return None

    def acknowledge(self, value: Any) -> Json:
        raise Refused("unknown_route", "", "acknowledge")

    def status(self) -> Json:
        return {}

    def export(self, scope: frozenset[EpisodeId] | None) -> Iterable[Json]:
        return ()

    def check_scope(self, scope: frozenset[EpisodeId] | None) -> None:
        return

    def committed(self, records: Sequence[Json]) -> Json:
        return {}

    def check_fresh(self, count: int) -> None:
        return

    def stage(self, records: Sequence[Any], scope: frozenset[EpisodeId]) -> Any:
        return list(records)

    def install(self, staged: Any, scope: frozenset[EpisodeId]) -> Sequence[str]:
        return []

    def activities(self) -> Iterable[tuple[EpisodeId | None, Activity]]:
        """What is admitted here now, and whose it is."""
        return ()

    def leave_out(self, keys: frozenset[str]) -> None:
        for episode, activity in list(self.activities()):
            if episode is not None and episode.key in keys:
                activity.excuse()

    def prepared(self, left_out: frozenset[str]) -> None:
        return

    def opened(self) -> None:
        return

    async def retire(self, episodes: Sequence[EpisodeId]) -> None:
        return

    def forget(self, rollout_ids: Sequence[str]) -> None:
        return
