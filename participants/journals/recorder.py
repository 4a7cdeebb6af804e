"""The one door through which shells step their machines: the step, and its line in the journal, if there is one.

A line tells machine, state, event, next state, refused code and ids: of the process and of what the machine is about.
Without a journal a step is the table's own, and nothing is made for it. What cannot be written is said once and
counted; the step stands all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from attrs import define, field, frozen

from statecore import JournalError, Refused, Snapshot, Table, WireError
from statecore.journal import Journal

from ..identity import EpisodeId

log = logging.getLogger("statecore.journal")

S = TypeVar("S", bound=Enum)
D = TypeVar("D")


def _nobody() -> Mapping[str, Any]:
    return {}


@frozen
class Made:
    """A step that was made where nothing may be written: a pure value hands it to the shell that writes it."""

    table: Table[Any, Any]
    episode: EpisodeId
    before: Snapshot[Any, Any]
    event: object
    after: Snapshot[Any, Any]


@define(eq=False)
class StepRecorder:
    """Steps the machines of one process. `process` tells the ids that each of its lines carries, when one is written.

    `unwritten` counts the lines that could not be written.
    """

    journal: Journal | None = None
    process: Callable[[], Mapping[str, Any]] = _nobody
    unwritten: int = field(default=0, init=False)

    def step(
        self,
        table: Table[S, D],
        before: Snapshot[S, D],
        event: object,
        episode: EpisodeId | None = None,
        /,
        **ids: object,
    ) -> tuple[Snapshot[S, D], tuple[Any, ...]]:
        """What `table.step` returns or raises, on record; `episode` and `ids` tell what the machine is about."""
        if self.journal is None:
            return table.step(before, event)
        try:
            after, effects = table.step(before, event)
        except Refused as refused:
            self._write(table, before, event, before, episode, ids, refused.code)
            raise
        self._write(table, before, event, after, episode, ids)
        return after, effects

    def ask(
        self,
        table: Table[S, D],
        before: Snapshot[S, D],
        event: object,
        episode: EpisodeId | None = None,
        /,
        **ids: object,
    ) -> tuple[Any, ...]:
        """The effects that a step would owe, which is not made: on record only if it is refused."""
        try:
            return table.step(before, event)[1]
        except Refused as refused:
            if self.journal is not None:
                self._write(table, before, event, before, episode, ids, refused.code)
            raise

    def state(self) -> dict[str, Any]:
        """How its journal stands, as a status reply tells it; nothing without one."""
        if self.journal is None:
            return {}
        state = self.journal.state()
        return {"journal": {**state, "lost": state["lost"] + self.unwritten}}

    def write(self, made: Made) -> None:
        """A step that was made before is on record."""
        if self.journal is not None:
            self._write(made.table, made.before, made.event, made.after, made.episode, {})

    def _write(
        self,
        table: Table[Any, Any],
        before: Snapshot[Any, Any],
        event: object,
        after: Snapshot[Any, Any],
        episode: EpisodeId | None,
        ids: Mapping[str, Any],
        refused: str | None = None,
    ) -> None:
        assert self.journal is not None
        told = {**self.process(), **ids}
        if episode is not None:
            told |= {"rollout_id": episode.rollout_id, "attempt": episode.attempt}
        try:
            self.journal.record(table.name, before.state, event, after.state, told, refused=refused)
        except (JournalError, WireError) as error:
            self.unwritten += 1
            if self.unwritten == 1:
                log.warning("a step is missing in the journal, and later ones may be: %s", error)


UNRECORDED: Final = StepRecorder()
"""Steps without a journal."""
