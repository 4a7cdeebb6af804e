"""The write of a part: it outlives a caller that did not wait for it, and can be stopped until its manifest is linked.

One write per (checkpoint, directory, scope): a commit that is sent again waits for the same one, one that failed is
tried again (docs/reference/protocol.md sections 5 and 8; I15, I48). Runs in the server's own task group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
from attrs import define, field

from statecore import Refused
from statecore.seams import on_disk

from ..files.snapshots import StopFlag, WriteStopped, write_part
from ..identity import EpisodeId
from ..settings import Seams
from ..signals import EXPORT, PART_BYTES, PART_RECORDS, RECORDS, SERVER, SIZE, STEP, WRITE
from ..telemetry import Attributes, a_step
from .part import Json, Part


@define(eq=False)
class Write:
    """One write; `reply` or `error` is there once `done` is set."""

    checkpoint_id: str
    arguments: str
    directory: Path
    scope: frozenset[EpisodeId] | None
    stop: StopFlag = field(factory=StopFlag)
    done: anyio.Event = field(factory=anyio.Event)
    reply: Json | None = None
    error: Exception | None = None

    @property
    def failed(self) -> bool:
        return self.done.is_set() and self.error is not None


class PartWriter:
    """Writes the part of one server; `written(write)` is told before a write counts as done and may refuse it."""

    def __init__(self, name: str, part: Part, seams: Seams, extra: Callable[[], Json]) -> None:
        self._name = name
        self._part = part
        self._seams = seams
        self._extra = extra
        self._write: Write | None = None

    def begin(self, write: Write, written: Callable[[Write], None], group: anyio.abc.TaskGroup) -> Write:
        """The write under way with these arguments, else `write`, begun."""
        known = self._write
        asked = (write.checkpoint_id, write.arguments)
        if known is not None and (known.checkpoint_id, known.arguments) == asked and not known.failed:
            return known
        self._write = write
        group.start_soon(self._run, write, written)
        return write

    def stop(self, checkpoint_id: str) -> None:
        """No manifest of this checkpoint can appear any more; the write itself ends by itself."""
        if self._write is not None and self._write.checkpoint_id == checkpoint_id:
            self._write.stop.set()
            self._write = None

    async def _run(self, write: Write, written: Callable[[Write], None]) -> None:
        try:
            write.reply = await on_disk(self._seams.disk, self._files, write)
            written(write)
        except (WriteStopped, Refused):
            detail = f"checkpoint {write.checkpoint_id!r} ended while its part was written"
            write.error = Refused("stale_checkpoint", "ended", "CommitRequested", (), detail)
        except Exception as error:  # handed to whoever waits for this write
            write.error = error
        finally:
            write.done.set()

    def _files(self, write: Write) -> Json:
        """Synchronous, maybe in a thread: records are streamed, so memory does not grow with their number."""
        keys: set[str] = set()
        heads: list[Json] = []
        step = partial(a_step, self._seams.telemetry, self._seams.clock)
        named: Attributes = {SERVER: self._name}

        def watched() -> Iterable[Json]:
            with step(EXPORT, named) as span:
                for record in self._part.export(write.scope):
                    keys.add(EpisodeId(**record["episode_id"]).key)
                    heads.append(record if self._part.kind == "model" else {"episode_id": record["episode_id"]})
                    yield record
                span.set(RECORDS, len(heads))

        with step(WRITE, named) as span:

            def sized(size_bytes: int) -> None:
                span.set(SIZE, size_bytes)
                self._seams.telemetry.record(PART_BYTES, size_bytes, named)

            manifest = write_part(
                self._seams.disk,
                write.directory,
                kind=self._part.kind,
                instance=self._name,
                checkpoint_id=write.checkpoint_id,
                records=watched(),
                extra=self._extra(),
                stop=write.stop,
                sized=sized,
                entropy=self._seams.entropy,
            )
            span.set(RECORDS, len(heads))
        self._seams.telemetry.record(PART_RECORDS, len(heads), {STEP: "write", **named})
        reply = {"phase": "committed", "manifest": manifest.to_json(), "episode_ids": sorted(keys)}
        return reply | self._part.committed(heads)
