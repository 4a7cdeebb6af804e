"""Counterexamples whose texts are odd, or whose names are alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statecore.cli import main
from tests.test_counterexamples import run_pytest

TEXTS = ["🙂", "a\nb", "q\"'\\", "\x00", "\u2028", "\f", "%%{init: {}}%%", "end", "#;<b>", "\ud800"]
ODD = f"""
from statecore.properties import always
from statecore.world import World, action, slot

TEXTS = {TEXTS!a}


class Odd(World):
    number = slot(0)

    @action(over=TEXTS)
    def write(w, text):
        if w.number != TEXTS.index(text):
            return False
        w.number += 1

    @action
    def stop(w):
        if w.number < len(TEXTS):
            return False
        w.fail("I1:\\0\\n" + TEXTS[0])
"""
ALIKE = """
from statecore.properties import always
from statecore.world import World, action, slot


class A_b(World):
    number = slot(0)

    @action
    def add(w):
        w.number = min(w.number + 1, 3)

    @always
    def c(w):
        return w.number < 2


class A(A_b):
    c = None

    @always
    def b_c(w):
        return w.number < 3
"""


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def _written(tmp_path: Path, text: str, capfd: Any) -> Path:
    (tmp_path / "worlds.py").write_text(text)
    out = tmp_path / "test_out.py"
    assert main(["check", str(tmp_path / "worlds.py"), "--pytest", str(out)]) == 1
    capfd.readouterr()
    return out


def test_a_counterexample_of_odd_texts_is_written_and_fails_as_it_did(tmp_path: Path, capfd: Any) -> None:
    """Whatever is in a text, the test can be read by Python, finds the steps again, and breaks the same."""
    _written(tmp_path, ODD, capfd)
    done = run_pytest(tmp_path, "test_out.py")
    assert "1 failed" in done.stdout
    assert "I1:\\x00\\n🙂" in done.stdout
    assert "has no step" not in done.stdout


def test_odd_texts_are_told_in_one_line_each(tmp_path: Path) -> None:
    """As text, as JSON and as a diagram, on a terminal that takes UTF-8 alone."""
    (tmp_path / "worlds.py").write_text(ODD)
    forms: dict[str, str] = {}
    for form in ("--json", "--mermaid", ""):
        command = [sys.executable, "-m", "statecore.cli", "check", str(tmp_path / "worlds.py"), *filter(None, [form])]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.returncode == 1, done.stderr
        forms[form] = done.stdout.decode()
    lines = forms[""].rstrip("\n").split("\n")
    assert len(lines) == 3 + len(TEXTS) + 1
    assert [each.isprintable() for each in lines] == [True] * len(lines)
    assert json.loads(forms["--json"])["trace"][:2] == ["write(🙂)", "write(a\\nb)"]
    assert "%" not in forms["--mermaid"]
    assert "write(#37;#37;{init: {}}#37;#37;)" in forms["--mermaid"]
    assert all(each.isprintable() for each in forms["--mermaid"].rstrip("\n").split("\n"))


def test_two_counterexamples_of_one_name_are_two_tests(tmp_path: Path, capfd: Any) -> None:
    """World and property together may give a name that is there already; none is lost."""
    out = _written(tmp_path, ALIKE, capfd)
    text = out.read_text()
    assert "def test_A_b_c() -> None:" in text
    assert "def test_A_b_c_2() -> None:" in text
    assert "2 failed" in run_pytest(tmp_path, "test_out.py").stdout
