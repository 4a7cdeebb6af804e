"""`statecore demo` with real processes: it ends well, and whatever ends it, no process is left running."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define

from participants.demo import command
from participants.demo.command import register
from statecore.cli import UsageError
from tests.test_demo import LINE

PROJECT = Path(__file__).parents[1]
SMALL = ("--plain", "--rollouts", "2", "--turns", "3")
PATIENCE_S = 120.0


@define(eq=False)
class Demo:
    """A process of the demo, and the directory of its files."""

    process: subprocess.Popen[str]
    directory: Path

    def wait_for(self, text: str) -> None:
        """A line with that text was printed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(f"it ended with {self.process.wait()} before it said {text!r}")

    def ended(self) -> tuple[int, str, str]:
        """Exit code, the rest of its output, its errors."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err

    def left(self) -> list[str]:
        """The command lines of processes that belong to this run."""
        found = []
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and int(each.name) != os.getpid():
                try:
                    environ, said = (each / "environ").read_bytes(), (each / "cmdline").read_bytes()
                except OSError:
                    continue
                if str(self.directory).encode() in environ:
                    found.append(said.replace(b"\0", b" ").decode())
        return found

    def until_none_is_left(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while self.left():
            assert time.monotonic() < end, self.left()
            time.sleep(0.05)


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Any]:
    """Starts the demo; at the end of the test it is not running, nor is anything that it started."""
    started: list[Demo] = []

    def start(*arguments: str, **environment: str) -> Demo:
        directory = tmp_path / "files"
        code = [sys.executable, "-m", "participants.demo", "--dir", str(directory), *arguments]
        process = subprocess.Popen(
            code,
            cwd=PROJECT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(Demo(process, directory))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()
        each.until_none_is_left()


def test_a_small_job_on_real_processes(starts: Any) -> None:
    """Five processes are killed with SIGKILL, five fresh ones go on; the last line says that nothing was redone."""
    demo = starts(*SMALL)
    code, out, err = demo.ended()
    assert (code, err) == (0, "")
    match = LINE.match(out.rstrip("\n").split("\n")[-1])
    assert match is not None, out
    assert match.group(1, 2, 4, 5) == ("0", "0", "0", "0")
    assert int(match[3]) > 0
    assert match[6] == "equal to the undisturbed run"
    assert "SIGKILL to all servers" in out
    assert demo.left() == []
    kept = {str(path.relative_to(demo.directory)) for path in demo.directory.rglob("*") if path.is_file()}
    for wanted in (
        "job/demo.json",
        "job/logs/game.log",
        "job/journals/000001-agent.jsonl",
        "job/journals/000002-agent.jsonl",
        "job/checkpoints/ck-000001-000002/checkpoint.json",
        "undisturbed/journals/000001-game.jsonl",
        "coordinator.log",
    ):
        assert wanted in kept


def test_one_server_alone_on_real_processes(starts: Any) -> None:
    """The agent is killed while it writes its part: its coordinator starts all anew, and nothing held runs again."""
    demo = starts(*SMALL, "--kill", "agent", "--when", "commit")
    code, out, err = demo.ended()
    assert (code, err) == (0, "")
    match = LINE.match(out.rstrip("\n").split("\n")[-1])
    assert match is not None, out
    assert match.group(1, 4, 5, 6) == ("0", "0", "0", "equal to the undisturbed run")
    assert "SIGKILL to agent alone" in out and "agent is dead" in out
    assert demo.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(starts: Any, number: signal.Signals) -> None:
    """Ctrl-C in the middle of a life: exit code 130, a word about the files, and no server is left."""
    demo = starts("--plain", "--turns", "60", "--rollouts", "4")
    demo.wait_for("life 1: 5 processes")
    assert len(demo.left()) >= 5
    demo.process.send_signal(number)
    code, _out, err = demo.ended()
    assert code == 130
    assert err == f"interrupted; nothing is left running; its files are in {demo.directory}\n"
    assert demo.left() == []


def test_servers_end_with_the_demo_that_was_killed(starts: Any) -> None:
    """After SIGKILL to the demo itself its servers see their lifeline break, and end."""
    demo = starts("--plain", "--turns", "60", "--rollouts", "2")
    demo.wait_for("life 1: 5 processes")
    demo.process.kill()
    assert demo.ended()[0] == -signal.SIGKILL
    demo.until_none_is_left()


def test_servers_that_do_not_start_are_said(starts: Any) -> None:
    """A setting that no server accepts: exit code 1, the reason on standard error, and no server is left."""
    demo = starts(*SMALL, STATECORE_MAX_HELD="0")
    code, _out, err = demo.ended()
    assert code == 1
    assert "did not start" in err and "max_held must be greater than 0" in err
    assert f"its files are in {demo.directory}" in err
    assert demo.left() == []


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="statecore")
    register(parser.add_subparsers())
    return parser.parse_args(["demo", *arguments])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--rollouts", "0"), "--rollouts 0: between 1 and 400"),
        (("--turns", "1"), "--turns 1: between 2 and 60"),
    ],
)
def test_numbers_that_cannot_be_are_a_usage_error(arguments: tuple[str, ...], told: str) -> None:
    """The message names the option and its bounds; nothing is started."""
    args = parsed(*arguments)
    with pytest.raises(UsageError, match=re.escape(told)):
        args.run(args)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--kill", "one"),
        ("--when", "never"),
        ("--env", "chess"),
        ("--rollouts", "x"),
        ("--seed", "1.5"),
        ("--no-such",),
    ],
)
def test_words_that_are_unknown_are_a_usage_error(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the choices are named."""
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """Files of two runs are not mixed; a directory that cannot be made is said too."""
    (tmp_path / "there").write_text("something")
    for chosen in (tmp_path, tmp_path / "there", tmp_path / "there" / "below"):
        args = parsed("--dir", str(chosen))
        with pytest.raises(UsageError, match="--dir"):
            args.run(args)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the demo's extra it says what to install, before anything is started."""
    monkeypatch.setattr(command, "NEEDED", ("no_such_module_of_anybody",))
    args = parsed()
    with pytest.raises(UsageError, match=r"no_such_module_of_anybody: pip install 'statecore\[demo\]'"):
        args.run(args)


def test_a_temporary_directory_is_removed_after_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files in a temporary directory stay only for whoever looks for a failure."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    codes = iter((0, 1))
    monkeypatch.setattr(command, "_told", lambda *_args, **_options: next(codes))
    for left in (0, 1):
        args = parsed()
        assert args.run(args) == left
        assert len(list(tmp_path.iterdir())) == left


def test_a_story_without_an_end_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whatever waits for ever is given up after a while: exit code 1, and where the files are."""

    async def never(*_arguments: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(command, "tell", never)
    monkeypatch.setattr(command, "LONGEST_S", 0.01)
    args = parsed("--plain", "--dir", str(tmp_path / "files"))
    assert args.run(args) == 1
    said = capsys.readouterr().err
    assert "it has not come to its end within 0.01 s" in said and f"its files are in {tmp_path / 'files'}" in said
