"""A job on real Gym servers: a trainer that keeps results, a task of each environment, and what runs must share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from participants import Coordinator, CoordinatorSettings, Disposition, Result

from .fleet import TOKEN, Fleet, row


class Keeper:
    """A trainer whose state is its results."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self.attempts: dict[str, int] = {}

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        (directory / "results.json").write_text(json.dumps(self.results))

    async def load(self, directory: Path) -> None:
        self.results = json.loads((directory / "results.json").read_text())

    async def accept(self, result: Result) -> None:
        assert result.rollout_id not in self.results
        self.results[result.rollout_id] = result.body
        self.attempts[result.rollout_id] = result.receipt.attempt

    async def consumed(self) -> Set[str]:
        return set(self.results)


def coordinator(fleet: Fleet, keeper: Keeper, settings: CoordinatorSettings | None = None) -> Coordinator:
    return Coordinator(fleet.root, fleet, keeper, token=TOKEN, settings=settings)


@contextmanager
def fleet_of(names: list[str], folder: Path, **options: Any) -> Iterator[Fleet]:
    """A fleet that is stopped at the end, with its upstream."""
    fleet = Fleet(names, folder, **options)
    try:
        yield fleet
    finally:
        fleet.close()


@asynccontextmanager
async def life(fleet: Fleet, keeper: Keeper, settings: CoordinatorSettings | None = None) -> AsyncIterator[Coordinator]:
    """A coordinator's life whose servers are killed at its end, as a crash would."""
    async with coordinator(fleet, keeper, settings) as job:
        try:
            yield job
        finally:
            await trio.to_thread.run_sync(fleet.kill)


async def until(condition: Callable[[], bool], within_s: float = 300.0) -> None:
    """The condition holds."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110 - it is in another process
            await trio.sleep(0.02)


def counter_task(index: int = 0) -> dict[str, Any]:
    return row("example_session_state_mgmt", index)


def blackjack_task(index: int = 0) -> dict[str, Any]:
    task = row("blackjack")
    task["responses_create_params"]["input"][1]["content"] = f"Deal me in, table {index}."
    return task


def asked_of(task: Mapping[str, Any]) -> str:
    """What the user asks in a task: the scripted upstream notes it of each call."""
    items = task.get("task_input", task)["responses_create_params"]["input"]
    return next(str(each["content"]) for each in items if each["role"] == "user")


WORK: list[dict[str, Any]] = [
    {"name": "email_delete_email", "arguments": {"email_id": "00000057"}},
    {
        "name": "calendar_create_event",
        "arguments": {
            "event_name": "a review",
            "participant_email": "nina@atlas.com",
            "event_start": "2023-12-01 10:00:00",
            "duration": "30",
        },
    },
    {
        "name": "customer_relationship_manager_add_customer",
        "arguments": {"customer_name": "A B", "assigned_to_email": "nina@atlas.com", "status": "Lead"},
    },
    {"name": "calendar_search_events", "arguments": {"query": "a review"}},
    {"name": "email_search_emails", "arguments": {"query": "update"}},
]


def workplace_task() -> dict[str, Any]:
    """A task whose calls change three data frames and look at two; its solution is to make these very calls."""
    task = row("workplace_assistant")
    calls = [{"name": each["name"], "arguments": json.dumps(each["arguments"])} for each in WORK]
    task["ground_truth"] = calls
    task["responses_create_params"]["input"] = [{"role": "user", "content": json.dumps(WORK)}]
    return task


def weather_task(index: int = 0) -> dict[str, Any]:
    """A task as an environment server takes it."""
    flat = row("example_single_tool_call", index)
    inputs = {"responses_create_params": flat.pop("responses_create_params"), "task_data": flat}
    return {"task_id": {"taskset": "weather", "task_id": str(index)}, "task_input": inputs}


def compared(result: Mapping[str, Any]) -> Any:
    """What must be equal of two runs of one rollout: everything but the fields that name the execution."""
    return {name: value for name, value in result.items() if not name.startswith("_ng_") and name != "episode_id"}
