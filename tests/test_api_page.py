"""The page that shows the whole interface at once runs as it is written, on real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from participants import ProcessLauncher, ServerSpec
from statecore.cli import main
from tests.api_page import Counting, train

ROOT = Path(__file__).parent.parent
NAMES = ("env", "simple_agent", "tools", "policy_model", "judge")


@pytest.mark.trio
async def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five servers, configured by the environment alone, and two lives of one job: each result comes once."""
    for name, value in {"ENABLED": "true", "ROOT": str(tmp_path)}.items():
        monkeypatch.setenv(f"STATECORE_{name}", value)
    monkeypatch.setenv("NEMO_GYM_CHECKPOINT_CONTROL_TOKEN", "not-a-secret")
    lives = []
    for life in (1, 2):
        specs = [ServerSpec(name, f"tests.api_page:{name}") for name in NAMES]
        lives.append(Counting())
        await train(lives[-1], ProcessLauncher(specs, tmp_path / f"logs-{life}", cwd=ROOT), tmp_path)
        assert lives[-1].rewards == {"r0": 6, "r1": 6}
    stories = [re.sub(r"\d+\.\d s$", "# s", story) for each in lives for story in each.stories]
    assert stories == [
        "epoch 1: a fresh start",
        "ck-000001-000002: 0 continue, 2 completed, 0 fresh, # s",
        "epoch 2 from ck-000001-000002: 0 continue, 2 completed, 0 fresh",
        "ck-000002-000002: 0 continue, 2 completed, 0 fresh, # s",
    ]


def test_its_world_holds_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`statecore check handoff.py:HandoffWorld` explores the page's world and says that it holds."""
    assert main(["check", f"{ROOT / 'tests' / 'test_handoff_example.py'}:HandoffWorld"]) == 0
    assert "holds; 7 distinct states" in capsys.readouterr().out
