"""With checkpointing off an embedded server answers byte for byte as Gym made it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx

from .control import named
from .fleet import Fleet
from .job import counter_task, fleet_of, weather_task

SERVERS = ["policy_model", "counter", "counter_agent", "weather", "weather_agent", "weather_env"]
DRAWN = re.compile(
    rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}"  # ids that Gym draws
    rb"|eyJ[A-Za-z0-9+/=]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"  # a signed session, with its time
    rb"|127\.0\.0\.1:[0-9]+"
)

CALLS: list[tuple[str, str, str, Any]] = [
    ("counter_agent", "POST", "/run", named(counter_task(), "off")),
    ("counter_agent", "POST", "/run", {}),
    ("counter_agent", "GET", "/livez", None),
    ("counter", "POST", "/seed_session", {"initial_count": 3}),
    ("counter", "POST", "/increment_counter", {"count": 1}),
    ("counter", "POST", "/increment_counter", {"count": "many"}),
    ("counter", "POST", "/nothing", {}),
    ("counter", "POST", "/ng-rollout/r1/get_counter_value", {}),
    ("counter", "GET", "/ng-control/v1/capabilities", None),
    ("counter", "POST", "/ng-control/v1/checkpoint/prepare", {}),
    ("policy_model", "POST", "/ng-rollout/r1/v1/responses", {"input": "hello"}),
    ("policy_model", "POST", "/v1/responses", {"input": 5}),
    ("weather_env", "POST", "/run", {"episode_id": {"rollout_id": "off"}, "task": weather_task()}),
    ("weather_env", "POST", "/run", {"task": 1}),
    ("weather_agent", "POST", "/v1/agent_sessions/close", {"agent_session_id": "s", "episode_id": {"rollout_id": "r"}}),
]


def answers(fleet: Fleet) -> list[tuple[int, list[tuple[bytes, bytes]], bytes]]:
    """Status, headers and body of each call, with everything that is drawn or told by a clock left out."""
    found = []
    with httpx.Client(timeout=600, trust_env=False) as client:
        for server, method, path, body in CALLS:
            reply = client.request(method, fleet.urls[server] + path, json=body)
            headers = [(name.lower(), DRAWN.sub(b"*", value)) for name, value in reply.headers.raw]
            kept = [(name, value) for name, value in headers if name != b"date"]
            found.append((reply.status_code, kept, DRAWN.sub(b"*", reply.content)))
    return found


def test_off_means_unchanged_on_the_wire(tmp_path: Path) -> None:
    """Good calls, bad ones and control calls get the same status, headers and body from a plain server and from an
    embedded one that is switched off.

    Covers: I76
    """
    made = []
    for name, plain in (("plain", SERVERS), ("embedded", [])):
        folder = tmp_path / name
        folder.mkdir()
        with fleet_of(SERVERS, folder, plain=plain, enabled=False) as fleet:
            fleet.up()
            made.append(answers(fleet))
    for (server, _, path, _), plain_answer, embedded_answer in zip(CALLS, *made, strict=True):
        assert plain_answer == embedded_answer, (server, path)
    assert {status for status, _, _ in made[0]} >= {200, 404, 422}
