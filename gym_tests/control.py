"""Control calls and rollouts by hand, for tests that look at one server at a time. Synchronous: servers are real."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from .fleet import TOKEN, Fleet

CONTROL = "/ng-control/v1/checkpoint"


class Hands:
    """Calls to the servers of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.client = httpx.Client(timeout=600, trust_env=False)
        self._clients = [self.client]
        self._threads = ThreadPoolExecutor(16)
        self._checkpoints = 0

    def post(self, name: str, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.client.post(self.fleet.urls[name] + path, json=body, headers=headers)

    def later(self, name: str, path: str, body: Any, **headers: str) -> Future[httpx.Response]:
        """The same, in a thread."""
        return self._threads.submit(self.post, name, path, body, **headers)

    def at(self, name: str) -> httpx.Client:
        """A client of one server with a cookie jar of its own, closed with these hands."""
        client = httpx.Client(base_url=self.fleet.urls[name], timeout=600, trust_env=False)
        self._clients.append(client)
        return client

    def status(self, name: str) -> dict[str, Any]:
        reply = self.client.get(f"{self.fleet.urls[name]}{CONTROL}/status", headers=self._auth())
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def control(self, name: str, verb: str, checkpoint_id: str, **body: Any) -> dict[str, Any]:
        body = {"checkpoint_id": checkpoint_id, "deadline_ts": time.time() + 60} | body
        reply = self.client.post(f"{self.fleet.urls[name]}{CONTROL}/{verb}", json=body, headers=self._auth())
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    @contextmanager
    def held(self, *names: str) -> Iterator[None]:
        """These servers are closed for a checkpoint, one after the other, and open at the end."""
        self._checkpoints += 1
        checkpoint_id = f"by-hand-{self._checkpoints}"
        try:
            for name in names:
                reply = self.control(name, "prepare", checkpoint_id)
                assert reply["phase"] == "prepared", reply
            yield
        finally:
            for name in names:
                self.control(name, "resume", checkpoint_id)

    def leaving(self, name: str, path: str, body: Any, key: str) -> socket.socket:
        """A request that was sent; closing the socket is its caller leaving."""
        host, port = self.fleet.urls[name].removeprefix("http://").split(":")
        content = json.dumps(body).encode()
        head = f"POST /ng-rollout/{key}{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        sent = socket.create_connection((host, int(port)))
        sent.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        return sent

    def __enter__(self) -> Hands:
        return self

    def __exit__(self, *_error: object) -> None:
        self._threads.shutdown()
        for client in self._clients:
            client.close()

    def _auth(self) -> dict[str, str]:
        return {"authorization": f"Bearer {TOKEN}"}


def soon(condition: Callable[[], bool], within_s: float = 300.0) -> None:
    """The condition holds."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def named(task: dict[str, Any], rollout_id: str, attempt: int = 0) -> dict[str, Any]:
    """A `/run` body as Gym's own collector sends it."""
    return {**task, "_ng_rollout_id": rollout_id, "_ng_attempt_index": attempt}
