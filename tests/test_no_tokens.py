"""Tokens belong to the token store: whatever a policy's reply holds, no file of a checkpoint has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio

from participants.coordination.coordinator import Published
from statecore.seams import MemoryDisk
from tests.small_job import answer
from tests.whole_job import ROOT, WholeJob, run, settle

TOKEN = 987_654_321


def files(disk: MemoryDisk, directory: str) -> Iterator[tuple[str, bytes]]:
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        if disk.kind(path) == "dir":
            yield from files(disk, path)
        else:
            yield path, disk.read(path)


def test_no_file_of_a_checkpoint_holds_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy answers with token ids and log-probabilities beside its message; rows have none. Covers: I47."""

    def with_tokens(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return answer(path, body) | {"prompt_token_ids": [TOKEN], "generation_log_probs": [-0.987654321]}

    monkeypatch.setattr("tests.whole_job.answer", with_tokens)

    async def test(job: WholeJob) -> None:
        job.turnstile.allow("p1", 2)
        async with job.coordinator() as coordinator:
            recovered = await coordinator.recover()
            with trio.CancelScope() as abandoned:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(coordinator.run_batch, recovered.runnable(job.dispatches(3, "p1")))
                    await settle()
                    assert isinstance(await coordinator.checkpoint(), Published)
                    abandoned.cancel()
        written = dict(files(job.disk, str(ROOT)))
        assert any("/gym/model/" in path and b"call-" in content for path, content in written.items())
        assert [path for path, content in written.items() if b"987654321" in content] == []

    run(test)
