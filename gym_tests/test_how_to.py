"""The how-to for an environment of one's own does what it says, on a real server."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from .fleet import TOKEN
from .in_process import Served, gym_client, served

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


async def deal(server: Served) -> list[int]:
    """The hand after one more card."""
    return list((await server.post("/deal", {}))["cards"])


def cards_server(root: Path) -> Any:
    """The application of the page's server, as a fresh start would have it."""
    module: Any = importlib.import_module("continuing_cards")
    cards: Any = importlib.import_module("cards")
    named = {"name": "cards", "domain": "agent", "entrypoint": "app.py"}
    config = cards.BaseResourcesServerConfig(host="127.0.0.1", port=1, **named)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ENABLED": "true", "ROOT": str(root), "CONTROL_AUTH_TOKEN": TOKEN}.items():
            patch.setenv(f"STATECORE_{name}", value)
        return module.Server(config=config, server_client=gym_client()).setup_webserver()


def test_the_server_of_the_page_goes_on_with_the_same_cards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand is dealt half, its part is written, and a fresh server that restored it deals the rest: the cards are
    those of a hand that was never interrupted.

    Covers: I35, I61
    """
    monkeypatch.syspath_prepend(str(folder))
    part = {"checkpoint_dir": str(tmp_path / "ck"), "episode_ids": [EPISODE]}

    async def main() -> None:
        async with served(cards_server(tmp_path)) as undisturbed:
            await undisturbed.post("/ng-rollout/r1/seed_session", {"seed": 7})
            whole = [await deal(undisturbed) for _ in range(CARDS)]
        async with served(cards_server(tmp_path)) as first:
            await first.post("/ng-rollout/r1/seed_session", {"seed": 7})
            half = [await deal(first) for _ in range(CARDS // 2)]
            await first.control("prepare", "ck")
            assert (await first.control("commit", "ck", **part))["episode_ids"] == ["r1"]
        async with served(cards_server(tmp_path)) as second:
            assert (await second.control("restore", "rs", **part))["restored"] == ["r1-a1"]
            await second.control("resume", "rs")
            second.client.cookies.update(first.client.cookies)
            rest = [await deal(second) for _ in range(CARDS - CARDS // 2)]
        assert half + rest == whole and len(whole[-1]) == CARDS

    trio.run(main)
