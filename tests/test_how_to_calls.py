"""The how-to on calls and crashes does what it says: its world, its output, and the mutation that it names."""

from __future__ import annotations

from pathlib import Path

from tests.test_how_to_check import BLOCK, ROOT, run, steady

PAGE = (ROOT / "docs/how-to/model-calls-and-crashes.md").read_text(encoding="utf-8")
BLOCKS = list(BLOCK.finditer(PAGE))
(WORLD,) = (found for found in BLOCKS if found["file"])
COMMANDS = [found["text"].removeprefix("$ ").split("\n", 1) for found in BLOCKS if found["language"] == "console"]


def check(directory: Path, text: str) -> tuple[int, str]:
    """The exit code and the output of the page's command on this world."""
    file = directory / WORLD["file"]
    file.parent.mkdir(exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")
    done = run(COMMANDS[0][0], directory)
    assert not done.stderr
    return done.returncode, done.stdout


def test_its_world_holds_as_shown(tmp_path: Path) -> None:
    """The command of the page prints what the page shows."""
    code, said = check(tmp_path, WORLD["text"])
    assert (code, steady(said)) == (0, steady(COMMANDS[0][1]))


def test_memory_for_a_disk_breaks_it(tmp_path: Path) -> None:
    """The mutation that the page names is one, and the story is the page's."""
    code, said = check(tmp_path, WORLD["text"].replace("durable(0)", 'volatile(0, of="server")'))
    assert (code, steady(said)) == (1, steady(COMMANDS[1][1]))
