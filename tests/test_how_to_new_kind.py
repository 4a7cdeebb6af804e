"""The how-to on writing a new kind does what it says, from an empty directory; and names that will not do."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from participants.commands import new
from statecore.cli import UsageError

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/how-to/write-a-new-kind.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- diff: (?P<file>[\w./-]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)\n```", re.DOTALL)
COMMAND = """
import sys
from statecore import cli
from importlib.metadata import EntryPoint
cli.entry_points = lambda group: [EntryPoint("new", "participants.commands.new:register", group)]
sys.exit(cli.main())
"""


def run(line: str, directory: Path) -> str:
    """What a command of the page prints; `statecore` and `python` are those of this project and this Python."""
    program, *arguments = shlex.split(line)
    command = {
        "statecore": [sys.executable, "-c", COMMAND, *arguments],
        "python": [sys.executable, *arguments, "-p", "no:cacheprovider"],
    }[program]
    env = {"PYTHONPATH": f"{ROOT}:{directory}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def steady(text: str) -> str:
    """An output without times, without the spaces that align it, and without how many tests there are that pass."""
    text = re.sub(r"[.s]+ +\[100%\]\n\d+ passed(, \d+ skipped)?", "# passed", text)
    text = re.sub(r"\d+\.\d+ ?s(, [\d,]+ states/s)?(, \d+ bytes a state)?", "# s", text)
    return re.sub(r" +", " ", text).strip()


def changed(text: str, diff: str) -> str:
    """The file with one diff applied: what it takes away, with what stands around it, is there once."""
    lines = diff.splitlines()
    before = "\n".join(line[1:] for line in lines if not line.startswith("+")) + "\n"
    after = "\n".join(line[1:] for line in lines if not line.startswith("-")) + "\n"
    assert text.count(before) == 1, f"not once in the file:\n{before}"
    return text.replace(before, after)


def test_the_page_is_done_from_begin_to_end(tmp_path: Path) -> None:
    """Each command prints what the page shows, each diff fits; in the end it holds, and its tests pass."""
    shown = 0
    for block in BLOCK.finditer(PAGE):
        if block["file"]:
            file = tmp_path / block["file"]
            file.write_text(changed(file.read_text(encoding="utf-8"), block["text"]), encoding="utf-8")
        elif block["language"] == "console":
            line, _, expected = block["text"].removeprefix("$ ").partition("\n")
            assert steady(run(line, tmp_path)) == steady(expected), line
            shown += 1
    assert shown == 7


def test_a_package_is_written_under_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No word of the skeleton is left, classes are spelled as classes, and every file is Python."""
    parser = argparse.ArgumentParser()
    new.register(parser.add_subparsers())
    args = parser.parse_args(["new", "kind", "vector_store", "--dir", str(tmp_path / "deep")])
    assert args.run(args) == 0
    assert f"cd {tmp_path / 'deep'} && statecore check vector_store/world.py" in capsys.readouterr().out
    package = tmp_path / "deep" / "vector_store"
    assert sorted(each.name for each in package.iterdir()) == sorted(
        file.replace("shelf", "vector_store") for file in new.FILES
    )
    assert [each.name for each in package.parent.iterdir()] == ["vector_store"], "nothing is left beside it"
    for path in package.iterdir():
        text = path.read_text(encoding="utf-8")
        compile(text, str(path), "exec")
        assert not re.search("shelf|skeleton", text, re.IGNORECASE), path
    assert "class VectorStoreWorld(World):" in (package / "world.py").read_text(encoding="utf-8")
    assert "VECTOR_STORE: Final" in (package / "machine.py").read_text(encoding="utf-8")


def test_a_name_may_have_the_skeletons_word_in_it(tmp_path: Path) -> None:
    """It is put in once: a package that imports itself by another name would not begin."""
    new.write_kind("bookshelf", tmp_path)
    for path in (tmp_path / "bookshelf").iterdir():
        assert "bookbook" not in path.read_text(encoding="utf-8").lower(), path
    assert "from bookshelf.machine import" in (tmp_path / "bookshelf/world.py").read_text(encoding="utf-8")


def test_what_is_to_be_typed_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory may have a space in its name."""
    parser = argparse.ArgumentParser()
    new.register(parser.add_subparsers())
    args = parser.parse_args(["new", "kind", "drawer", "--dir", str(tmp_path / "a b")])
    assert args.run(args) == 0
    assert f"cd '{tmp_path / 'a b'}' && python -m pytest drawer" in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A file or a directory of that name stays as it is."""
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UsageError, match="notes is there already; nothing is overwritten"):
        new.write_kind("notes", tmp_path)
    assert (tmp_path / "notes").read_text() == "mine"
    new.write_kind("drawer", tmp_path)
    with pytest.raises(UsageError, match="drawer is there already"):
        new.write_kind("drawer", tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Notes", "is no name for a kind"),
        ("", "is no name for a kind"),
        ("a-b", "is no name for a kind"),
        ("a__b", "is no name for a kind"),
        ("a_", "is no name for a kind"),
        ("1st", "is no name for a kind"),
        ("../up", "is no name for a kind"),
        ("n" * 25, "is no name for a kind"),
        ("class", "is Python's own"),
        ("match", "is Python's own"),
        ("json", "is Python's own"),
        ("machine", "the skeleton uses the word 'machine'"),
        ("put", "the skeleton uses the word 'Put'"),
        ("participants", "the skeleton uses the word 'participants'"),
        ("hypothesis", "the skeleton uses the word 'hypothesis'"),
        ("cattrs", "can be imported already"),
    ],
)
def test_a_name_that_will_not_do_is_refused(name: str, says: str, tmp_path: Path) -> None:
    """And nothing is written."""
    with pytest.raises(UsageError, match=re.escape(says)):
        new.write_kind(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A file stands where the directory should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        new.write_kind("drawer", tmp_path / "file")
