"""The how-to on driving checkpoints does what it says: undisturbed, killed in the middle, and on asyncio."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import DOCS, ROOT, blocks, shape
from tests.threaded_job import ThreadedJob

PAGE = DOCS / "how-to/drive-checkpoints-from-a-trainer.md"
FILES = {name: text for page in (PAGE, DOCS / "tutorial.md") for name, text in blocks(page, "python") if name}
THINKS = "await anyio.sleep(0.4)"
WITHIN_S = 120.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The page's file and the tutorial's servers, whose model thinks faster here."""
    assert FILES["servers.py"].count(THINKS) == 1
    (tmp_path / "servers.py").write_text(FILES["servers.py"].replace(THINKS, "await anyio.sleep(0.02)") + "\n")
    (tmp_path / "train.py").write_text(FILES["train.py"] + "\n")
    return tmp_path


@contextmanager
def training(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """`python train.py`, its output line by line."""
    with subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def steps(lines: list[str]) -> dict[str, str]:
    return dict(re.findall(r"^(step \d+): (\S+)$", "\n".join(lines), re.MULTILINE))


def shown() -> list[str]:
    (text,) = (text for _, text in blocks(PAGE, "console"))
    return text.splitlines()[1:]


def test_its_job_does_as_shown_and_goes_on_after_a_kill(directory: Path) -> None:
    """`kill -9` after the second checkpoint: the second start goes on from it, and ends with the weight of the page.

    Covers: S40, S53.
    """
    with training(directory) as first:
        assert first.stdout is not None
        lines: list[str] = []
        while len([line for line in lines if line.startswith("ck-")]) < 2:
            lines.append(first.stdout.readline())
            assert lines[-1], "it ended too early: " + "".join(lines)
        first.send_signal(signal.SIGKILL)
    said_so_far = shape(re.sub(r", \d+ queued", "", "".join(lines)))  # a rollout may not have left yet
    assert said_so_far == shape("\n".join(shown()[: len(lines)]))
    with training(directory) as second:
        said = second.communicate(timeout=WITHIN_S)[0].splitlines()
        assert second.returncode == 0, said
    assert re.match(r"epoch 2 from ck-000001-\d+: ", said[0])
    assert steps(lines) | steps(said) == steps(shown())
    assert [line.partition(":")[0] for line in said if line.startswith("step")][-1] == "step 4"


def test_its_part_on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch ends, a checkpoint is taken meanwhile, and the hook ran in the loop."""
    names: dict[str, Any] = {"__name__": "how_to"}
    for _, text in blocks(PAGE, "python"):
        exec(text, names)
    life = ThreadedJob()

    class Job:
        """The page's coordinator, over servers in memory."""

        def __init__(self, root: Path, launcher: Any, trainer: Any, *, token: str) -> None:
            self.job = life.coordinator(trainer=trainer)

        def __enter__(self) -> Any:
            return self.job.__enter__()

        def __exit__(self, *exc: Any) -> None:
            self.job.__exit__(*exc)

    def save(self: Any, directory: Path, dispositions: Any) -> None:
        with life.disk.create(directory / "trainer.json") as file:
            file.write(b"[]")

    def accept(self: Any, result: Any) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.buffer[result.rollout_id] = result.body["reward"]

    names["BlockingCoordinator"] = Job
    monkeypatch.setattr(names["Trainer"], "save", save)
    monkeypatch.setattr(names["Trainer"], "accept", accept)
    assert asyncio.run(names["collect"](None, life.dispatches(2, "r1", "r2"))) == {"r1": 3, "r2": 3}
