"""The how-to for an environment of one's own does what it says, on a real server."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from participants import Settings
from participants.serving.serve import serve

from .control import CONTROL
from .fleet import TOKEN
from .gym_client import gym_client

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "make-a-gym-environment-continue.md"
FILES = re.compile(r"<!-- file: ([\w.]+) -->\n```py\n(.*?)\n```", re.DOTALL)
EPISODE = {"rollout_id": "r1", "attempt": 0}
CARDS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page."""
    found = tmp_path_factory.mktemp("cards")
    for name, text in FILES.findall(PAGE.read_text()):
        (found / name).write_text(text + "\n")
    return found


def test_the_proof_of_the_page_passes(folder: Path) -> None:
    """As a user would run it."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:asyncio", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


class Served:
    """The server of the page in this process, as a fresh start would have it."""

    def __init__(self, root: Path, client: httpx.AsyncClient) -> None:
        self.root = root
        self.client = client

    async def control(self, verb: str, checkpoint_id: str, **fields: Any) -> dict[str, Any]:
        body = {"checkpoint_id": checkpoint_id, "deadline_ts": time.time() + 60} | fields
        reply = await self.client.post(
            f"{CONTROL}/{verb}", json=body, headers={"authorization": f"Bearer {TOKEN}"}
        )
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def deal(self) -> list[int]:
        reply = await self.client.post("/deal", json={})
        assert reply.status_code == 200, reply.text
        return list(reply.json()["cards"])


async def one_life(root: Path, play: Any) -> None:
    """A fresh server of the page is served, played with, and gone."""
    module: Any = importlib.import_module("continuing_cards")
    cards: Any = importlib.import_module("cards")
    named = {"name": "cards", "domain": "agent", "entrypoint": "app.py"}
    config = cards.BaseResourcesServerConfig(host="127.0.0.1", port=1, **named)
    with pytest.MonkeyPatch.context() as patch:
        settings = {"ENABLED": "true", "ROOT": str(root), "CONTROL_AUTH_TOKEN": TOKEN}
        for name, value in settings.items():
            patch.setenv(f"STATECORE_{name}", value)
        assert Settings.from_env().enabled
        app = module.Server(config=config, server_client=gym_client()).setup_webserver()
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        url = await nursery.start(lambda **told: serve(app, shutdown=ended, **told))
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            await play(Served(root, client))
        ended.set()


def test_the_server_of_the_page_goes_on_with_the_same_cards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand is dealt half, its part is written, and a fresh server that restored it deals the rest: the cards are
    those of a hand that was never interrupted.

    Covers: I35, I61
    """
    monkeypatch.syspath_prepend(str(folder))
    hands: list[list[int]] = []

    async def whole(server: Served) -> None:
        await server.client.post("/ng-rollout/r1/seed_session", json={"seed": 7})
        hands.append([await server.deal() for _ in range(CARDS)][-1])

    async def first(server: Served) -> None:
        await server.client.post("/ng-rollout/r1/seed_session", json={"seed": 7})
        for _ in range(CARDS // 2):
            await server.deal()
        await server.control("prepare", "ck")
        where = str(server.root / "ck")
        committed = await server.control("commit", "ck", checkpoint_dir=where, episode_ids=[EPISODE])
        assert committed["episode_ids"] == ["r1"]
        cookies.update(server.client.cookies)

    async def second(server: Served) -> None:
        where = str(server.root / "ck")
        restored = await server.control("restore", "rs", checkpoint_dir=where, episode_ids=[EPISODE])
        assert restored["restored"] == ["r1-a1"]
        await server.control("resume", "rs")
        server.client.cookies.update(cookies)
        hands.append([await server.deal() for _ in range(CARDS - CARDS // 2)][-1])

    async def main() -> None:
        await one_life(tmp_path, whole)
        await one_life(tmp_path, first)
        await one_life(tmp_path, second)

    cookies = httpx.Cookies()
    trio.run(main)
    assert hands[0] == hands[1] and len(hands[0]) == CARDS
