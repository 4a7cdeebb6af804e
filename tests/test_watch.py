"""`statecore watch`: what a person on call sees of a root, and what they are told when it changes."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest

from participants.commands.console import show
from participants.commands.watch import picture, register, said
from participants.commands.watching import Look, happened, look
from participants.files.retention import sweep
from participants.files.store import set_aside_name
from participants.records.manifests import CheckpointId
from statecore.cli import UsageError
from statecore.seams import FixedClock, MemoryDisk, SeededEntropy, SystemDisk
from tests.checkpoints import ROOT, finished, publish, started, write_parts


class Watched:
    """A root in memory, looked at by a clock that is set by hand."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.clock = FixedClock(1_700_000_100.0)
        self.before: Look | None = None

    def look(self) -> tuple[Look, list[str]]:
        """The root now, and what has happened since the last look."""
        now = look(ROOT, self.disk, self.clock, SeededEntropy(1), self.before)
        told = [f"{'! ' if each.alarm else ''}{each.what}" for each in happened(self.before, now)]
        self.before = now
        return now, told


def shown(now: Look) -> str:
    out = io.StringIO()
    show(picture(now), out, plain=True)
    return out.getvalue()


def test_the_life_of_a_checkpoint_is_told() -> None:
    """Claimed, under way with the parts that are written, in force; each is said once."""
    watched = Watched()
    store, epoch = started(watched.disk)
    publish(watched.disk, store, epoch, 1)
    now, told = watched.look()
    assert told == []
    assert now.in_force is not None
    assert (now.in_force.checkpoint_id, now.in_force.problem) == ("ck-000001-000001", None)
    draft = store.begin(CheckpointId(epoch, 2))
    _, told = watched.look()
    assert told == ["ck-000001-000002 is under way"]
    watched.clock.advance(5)
    committed = write_parts(watched.disk, draft)
    now, told = watched.look()
    assert told == []
    assert now.under_way is not None
    assert (len(now.under_way.parts), now.under_way.missing, now.under_way.step) == (
        len(committed),
        (),
        "servers write their parts",
    )
    assert "ck-000001-000002 for at least 5 s: servers write their parts" in shown(now)
    draft.write_gym(committed)
    draft.write_coordinator([], [])
    assert watched.look()[0].under_way.step == "registry and ledger are written"  # type: ignore[union-attr]
    draft.seal_framework()
    draft.finish()
    assert watched.look()[0].under_way.step == "validated and published next"  # type: ignore[union-attr]
    store.publish(draft)
    now, told = watched.look()
    assert told == ["ck-000001-000002 is in force"]
    assert now.under_way is None
    assert "no checkpoint is being written" in shown(now)


def test_servers_that_have_not_written_yet_are_named() -> None:
    """By the servers of the checkpoint before: on call one wants to know whom it waits for."""
    watched = Watched()
    store, epoch = started(watched.disk)
    publish(watched.disk, store, epoch, 1)
    store.begin(CheckpointId(epoch, 2))
    now, _ = watched.look()
    assert now.under_way is not None
    assert now.in_force is not None
    assert now.under_way.missing == now.in_force.servers
    assert f"waits for {now.in_force.servers[0]}" in shown(now)


def test_a_checkpoint_that_is_given_up_is_an_alarm() -> None:
    """Its draft is gone and nothing was published; the one before is in force."""
    watched = Watched()
    store, epoch = started(watched.disk)
    publish(watched.disk, store, epoch, 1)
    draft = store.begin(CheckpointId(epoch, 2))
    watched.look()
    store.discard(draft)
    now, told = watched.look()
    assert told == ["! ck-000001-000002 was given up"]
    assert now.in_force is not None
    assert now.in_force.checkpoint_id == "ck-000001-000001"


def test_a_new_life_and_what_was_overtaken_are_told() -> None:
    """A claim; a draft of the life before is left over; what the zombie publishes is an alarm."""
    watched = Watched()
    store, epoch = started(watched.disk)
    publish(watched.disk, store, epoch, 1)
    draft = finished(watched.disk, store, epoch, 2)
    watched.look()
    started(watched.disk)
    now, told = watched.look()
    assert told == ["epoch 2 has claimed the root", "! ck-000001-000002 was given up"]
    assert (now.left_over, now.start) == (("ck-000001-000002",), "ck-000001-000001")
    store.publish(draft)
    now, told = watched.look()
    assert told == ["! ck-000001-000002 was published by a coordinator that was overtaken; no start takes it"]
    assert "overtaken  ck-000001-000002" in shown(now)


def test_what_retention_deletes_is_shown_as_that() -> None:
    """It is out of the chain when its name is, and its directory is there until it is removed, maybe after a crash."""
    watched = Watched()
    store, epoch = started(watched.disk)
    for sequence in (1, 2, 3):
        publish(watched.disk, store, epoch, sequence)
    watched.look()
    oldest = CheckpointId(epoch, 1)
    watched.disk.rename(store.path(oldest), ROOT / set_aside_name(oldest))
    now, told = watched.look()
    assert told == ["ck-000001-000001 is deleted by retention"]
    assert (now.set_aside, now.left_over) == (("ck-000001-000001",), ())
    assert "deleted    ck-000001-000001: set aside by retention, and not removed yet" in shown(now)
    sweep(store, watched.disk, CheckpointId(epoch, 3), None)
    now, told = watched.look()
    assert (now.set_aside, told) == ((), [])
    assert "set aside" not in shown(now)


def test_a_published_checkpoint_is_read_once() -> None:
    """It cannot change any more, so a root with many costs nothing to watch."""
    watched = Watched()
    store, epoch = started(watched.disk)
    publish(watched.disk, store, epoch, 1)
    first, _ = watched.look()
    second, _ = watched.look()
    assert second.published[0] is first.published[0]


def test_what_cannot_be_read_is_named_once() -> None:
    """A damaged checkpoint, and a broken chain: an alarm each, and word when it is well again."""
    watched = Watched()
    store, epoch = started(watched.disk)
    publish(watched.disk, store, epoch, 1)
    path = store.path(CheckpointId(epoch, 1)) / "checkpoint.json"
    good = watched.disk.read(path)
    watched.disk.unlink(path)
    now, told = watched.look()
    assert len(told) == 1
    assert told[0].startswith("! ck-000001-000001 cannot be read: missing manifest")
    assert "ck-000001-000001 cannot be read" in shown(now)
    assert watched.look()[1] == []
    base = ROOT / "epoch-000001.base.json"
    kept = watched.disk.read(base)
    watched.disk.unlink(base)
    with watched.disk.create(base) as file:
        file.write(b"{")
    now, told = watched.look()
    assert told[0].startswith("! the root is BROKEN")
    assert "BROKEN" in shown(now)
    assert watched.look()[1] == []
    for place, content in ((base, kept), (path, good)):
        if watched.disk.kind(place) is not None:
            watched.disk.unlink(place)
        with watched.disk.create(place) as file:
            file.write(content)
    now, told = watched.look()
    assert told == ["the root can be read again"]
    assert now.in_force is not None
    assert now.in_force.problem is None


def test_a_root_that_nobody_has_claimed() -> None:
    """It is there and says nothing yet."""
    watched = Watched()
    watched.disk.mkdir(ROOT, parents=True)
    now, told = watched.look()
    assert (told, now.epoch) == ([], None)
    assert "nobody has claimed it yet" in shown(now)


# --- the command


def watch(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["watch", *arguments])
    return int(args.run(args))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    disk = SystemDisk()
    path = tmp_path / "root"
    store, epoch = started(disk, path)
    publish(disk, store, epoch, 1)
    return path


def test_once_is_a_picture_and_its_exit_code(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 when all is well, 1 when somebody should look at it, which is said."""
    assert watch(str(root), "--once") == 0
    assert "in force   ck-000001-000001" in capsys.readouterr().out
    (root / "ck-000001-000001" / "checkpoint.json").unlink()
    assert watch(str(root), "--once") == 1
    assert "wrong: ck-000001-000001 cannot be read" in capsys.readouterr().out


def test_once_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with everything."""
    assert watch(str(root), "--once", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    value: dict[str, Any] = json.loads(line)
    assert (value["type"], value["epoch"], value["published"][0]["checkpoint_id"]) == ("watch", 1, "ck-000001-000001")
    assert value["news"] == []


def test_a_server_that_does_not_answer_is_wrong(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, with why; the root is shown all the same."""
    url = "http://127.0.0.1:9"
    assert watch(str(root), "--once", "--server", url, "--token", "t") == 1
    out = capsys.readouterr().out
    assert "in force   ck-000001-000001" in out
    assert f"wrong: {url} does not answer" in out


@pytest.mark.parametrize("what", ["nothing", "checkpoint", "empty"])
def test_what_is_no_root_is_a_usage_error(root: Path, what: str) -> None:
    """A directory that is not there, a checkpoint, and with --once one that nobody has claimed."""
    (root.parent / "empty").mkdir()
    path = {"nothing": root / "no", "checkpoint": root / "ck-000001-000001", "empty": root.parent / "empty"}[what]
    with pytest.raises(UsageError):
        watch(str(path), "--once")


def test_an_alarm_is_marked() -> None:
    """In the lines that are kept, what asks for attention can be found."""
    watched = Watched()
    store, epoch = started(watched.disk)
    draft = store.begin(CheckpointId(epoch, 1))
    watched.look()
    store.discard(draft)
    before = watched.before
    now = look(ROOT, watched.disk, watched.clock, SeededEntropy(1), before)
    (given_up,) = happened(before, now)
    assert said(given_up) == "2023-11-14 22:15:00 UTC  ! ck-000001-000001 was given up"
