"""`statecore inspect`: a checkpoint and a root in plain words, whole or damaged."""

from __future__ import annotations

import argparse
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from participants.commands.console import Grid, count, moment, show, size
from participants.commands.inspect import register
from participants.files.draft import Committed
from participants.files.snapshots import write_part
from participants.files.store import Store
from participants.identity import EpisodeId
from participants.records.manifests import CheckpointId
from participants.records.records import AgentBoundary, AgentRecord, record_json, task_digest
from statecore.cli import UsageError
from statecore.seams import FixedClock, SeededEntropy, SystemDisk
from tests.checkpoints import finished, ledger, publish, registry, started

DISK = SystemDisk()


def inspect(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["inspect", *arguments])
    return int(args.run(args))


def inspected(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[int, str, dict[str, Any]]:
    """Exit code, text and JSON of one inspection; both forms have the same exit code."""
    code = inspect(str(path))
    text = capsys.readouterr().out
    assert inspect(str(path), "--json") == code
    return code, text, json.loads(capsys.readouterr().out)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with two lives: the second starts from the second checkpoint of the first and publishes one."""
    path = tmp_path / "root"
    store, epoch = started(DISK, path)
    publish(DISK, store, epoch, 1)
    publish(DISK, store, epoch, 2)
    successor, second = started(DISK, path)
    publish(DISK, store, epoch, 3)  # overtaken
    publish(DISK, successor, second, 1)
    return path


def with_a_boundary(root: Path) -> Path:
    """A checkpoint with one agent whose session stands at boundary 3."""
    store, epoch = started(DISK, root)
    draft = store.begin(CheckpointId(epoch, 1))
    episode = EpisodeId("c0", 1)
    boundary = AgentBoundary(
        boundary_index=3,
        previous=None,
        task_digest=task_digest({}),
        data_position=None,
        last_model_call_id=None,
        lineage_head=None,
        parts=(),
        items=[],
        usage={},
        cookies={},
        steps_used=3,
        elapsed_s=0.0,
        state=None,
    )
    record = AgentRecord(episode_id=episode, session_key="k", boundary=boundary.to_json(), episode={"task": 1})
    write_part(
        DISK,
        draft.directory,
        kind="agent",
        instance="agent",
        checkpoint_id=str(draft.checkpoint_id),
        records=[record_json(record)],
        entropy=SeededEntropy(1),
    )
    draft.write_gym([Committed(kind="agent", name="agent", mode="export_restore")])
    rows = [evolve(row, reason="all parts agree", group="g1") if row.rollout_id == "c0" else row for row in registry()]
    draft.write_coordinator(rows, ledger())
    draft.seal_framework()
    draft.finish()
    return store.publish(draft).directory


def test_a_whole_checkpoint_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Id, epoch, when, servers, sizes, digests; per rollout the disposition, why, and the turns held."""
    code, text, value = inspected(capsys, with_a_boundary(tmp_path))
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "ck-000001-000001: valid"
    assert "written 2026-09-21 14:13:20 UTC in epoch 1" in lines[1]
    assert "4 rollouts: 1 completed, 1 continue, 1 fresh, 1 queued; 3 turns held" in text
    (row,) = (line.split() for line in lines if line.strip().startswith("c0 "))
    assert row[:6] == ["c0", "1", "g1", "continues", "it", "3"]
    assert " ".join(row).endswith("all parts agree")
    assert value["type"] == "checkpoint"
    assert value["valid"] is True
    (rollout,) = (each for each in value["rollouts"] if each["rollout_id"] == "c0")
    assert rollout["turns"] == 3
    assert rollout["size_bytes"] > 100
    (done,) = (each for each in value["rollouts"] if each["rollout_id"] == "done")
    assert done["size_bytes"] == len(json.dumps(ledger()[1].to_json())) + 1
    assert [each["problem"] for each in value["parts"] + value["files"]] == [None] * 5


def test_what_is_damaged_is_named_and_the_rest_still_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One changed byte in one part: that part is named, the others are ok, the exit code says so. Covers: I44"""
    (records,) = (root / "ck-000001-000002/gym/resources/tools").glob("records-*.jsonl")
    records.write_bytes(records.read_bytes().replace(b"7", b"8"))
    code, text, value = inspected(capsys, root / "ck-000001-000002")
    assert code == 1
    assert text.startswith("ck-000001-000002: DAMAGED, and never restored\n")
    assert f"{records.name} does not match its manifest digest" in text
    assert {each["kind"] for each in value["parts"] if each["problem"]} == {"resources"}
    assert value["valid"] is False
    assert len(value["rollouts"]) == 4


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint.json",
        "gym/manifest.json",
        "coordinator/registry.jsonl",
        "coordinator/ledger.jsonl",
        "tokens/receipt.json",
        "framework/shards/0.bin",
        "gym/agent/agent/manifest.json",
    ],
)
@pytest.mark.parametrize("spoil", [b"", b"{}", b"\xff\xfe", None])
def test_no_damage_breaks_the_report(
    root: Path, capsys: pytest.CaptureFixture[str], name: str, spoil: bytes | None
) -> None:
    """Empty, another object, no text, gone: always a report with the file's name and exit code 1. Covers: I44"""
    path = root / "ck-000002-000001" / name
    path.unlink()
    if spoil is not None:
        path.write_bytes(spoil)
    code, text, value = inspected(capsys, path.parents[name.count("/")])
    assert code == 1
    assert path.name in value["problem"]
    assert value["problem"] in text


def test_a_root_says_what_a_start_would_restore(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lives, the checkpoints in the chain and those that were overtaken. Covers: I79, I91"""
    code, text, value = inspected(capsys, root)
    assert code == 0
    assert text.splitlines()[0] == f"{root}: a start made now would restore ck-000002-000001"
    assert value["restored"] == "ck-000002-000001"
    assert [(each["epoch"], each["start"], each["void"]) for each in value["claims"]] == [
        (1, None, False),
        (2, "ck-000001-000002", False),
    ]
    assert {each["checkpoint_id"]: each["standing"] for each in value["published"]} == {
        "ck-000001-000001": "candidate",
        "ck-000001-000002": "candidate",
        "ck-000001-000003": "overtaken",
        "ck-000002-000001": "candidate",
    }


def test_a_damaged_newest_checkpoint_is_passed_over(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one before is restored in its place, as a coordinator would do; the exit code is not 0. Covers: I42"""
    (root / "ck-000002-000001/checkpoint.json").unlink()
    code, text, value = inspected(capsys, root)
    assert code == 1
    assert (value["newest"], value["restored"], value["refused"]) == ("ck-000002-000001", "ck-000001-000002", None)
    assert "a start made now would restore ck-000001-000002, since ck-000002-000001 is DAMAGED" in text
    assert "damaged: passed over" in text
    assert "missing manifest" in text


def test_a_newer_schema_refuses_a_start(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no damage, so nothing older is taken in its place (S43); behind a damaged one it is the same."""
    for name in ("ck-000001-000002", "ck-000002-000001"):
        path = root / name / "checkpoint.json"
        path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
        code, text, value = inspected(capsys, root)
        assert code == 1
        if name == "ck-000001-000002":
            assert value["restored"] == "ck-000002-000001"
            assert "older, of no use" in text
            continue
        assert (value["restored"], value["refused"]) == (None, name)
        assert f"a start made now is refused: {name} CANNOT BE READ, which is no damage" in text
        assert "refuses a start" in text
        assert "start a newer version" in text
        (root / name / "checkpoint.json").unlink()
        _, text, value = inspected(capsys, root)
        assert (value["restored"], value["refused"]) == (None, "ck-000001-000002")
        assert "is refused: ck-000001-000002 CANNOT BE READ" in text
        assert "damaged: passed over" in text
    assert inspected(capsys, root / "ck-000001-000002")[1].startswith("ck-000001-000002: CANNOT BE READ")


def test_damage_of_an_overtaken_checkpoint_is_told_and_harms_nobody(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No restart would have tried it."""
    (root / "ck-000001-000003/checkpoint.json").unlink()
    code, text, _ = inspected(capsys, root)
    assert code == 0
    assert "ck-000001-000003/checkpoint.json" in text


def test_a_root_without_a_whole_checkpoint_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fresh start because nothing was published is one thing, because all is damaged another."""
    path = tmp_path / "root"
    store, epoch = started(DISK, path)
    code, text, _ = inspected(capsys, path)
    assert (code, text.splitlines()[0]) == (0, f"{path}: a start made now would begin from nothing")
    name = publish(DISK, store, epoch, 1)
    (path / str(name) / "checkpoint.json").write_bytes(b"{")
    code, text, _ = inspected(capsys, path)
    assert code == 1
    assert f"a start made now is refused: every checkpoint of the chain is DAMAGED ({name})" in text


def test_a_broken_chain_is_not_guessed_at(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The base file that is damaged is named; nothing is said of what would be restored."""
    (root / "epoch-000002.base.json").write_bytes(b"{}")
    code, text, value = inspected(capsys, root)
    assert code == 1
    assert "epoch-000002.base.json is damaged" in text
    assert value["restored"] is None
    assert {each["standing"] for each in value["published"]} == {"unknown"}


def test_drafts_void_claims_and_a_lagging_latest_are_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a crash leaves is shown for what it is."""
    store = Store(root, DISK, SeededEntropy(1), FixedClock(0.0))
    store.claim()
    store.begin(CheckpointId(2, 9))
    (root / "LATEST").write_text("ck-000001-000001\n")
    code, text, value = inspected(capsys, root)
    assert code == 0
    assert ".ck-000002-000009.partial was never published" in text
    assert "LATEST says ck-000001-000001; it lags, ck-000002-000001 is newer" in text
    assert "void: it never said" in text
    assert value["partial"] == [".ck-000002-000009.partial"]


def test_a_draft_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unfinished, or finished and not published: both are said."""
    store, epoch = started(DISK, tmp_path)
    unfinished = store.begin(CheckpointId(epoch, 1))
    code, text, _ = inspected(capsys, unfinished.directory)
    assert code == 1
    assert text.startswith(f"{unfinished.directory.name}: unfinished\n")
    code, text, _ = inspected(capsys, finished(DISK, store, epoch, 2).directory)
    assert code == 0
    assert "it was not published" in text


def test_a_checkpoint_under_anothers_name_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory renamed by hand does not become another checkpoint; a copy with a name of its own is fine."""
    (root / "ck-000001-000001").rename(root / "ck-000001-000009")
    code, text, _ = inspected(capsys, root / "ck-000001-000009")
    assert code == 1
    assert "is of ck-000001-000001, not of ck-000001-000009" in text
    (root / "ck-000001-000009").rename(root / "copy")
    assert inspected(capsys, root / "copy")[0] == 0


def test_a_link_is_not_followed(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A symbolic link inside a checkpoint is named as what is wrong with it. Covers: I44"""
    part = root / "ck-000001-000001/gym/agent"
    (part / "agent").rename(tmp_path / "agent")
    (part / "agent").symlink_to(tmp_path / "agent")
    code, text, _ = inspected(capsys, root / "ck-000001-000001")
    assert code == 1
    assert "symbolic link" in text


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"")])
def test_what_is_neither_a_checkpoint_nor_a_root_is_a_usage_error(tmp_path: Path, make: Any) -> None:
    """Missing, empty, a file: exit code 2, and the reason."""
    make(tmp_path / "x")
    with pytest.raises(UsageError, match=r"x (is no directory|holds neither)"):
        inspect(str(tmp_path / "x"))


def test_the_directory_of_a_whole_run_leads_to_its_root(root: Path, tmp_path: Path) -> None:
    """Who gives the directory above a root, or above that, is told where the root is; it is not taken silently."""
    (tmp_path / "job").mkdir()
    moved = root.rename(tmp_path / "job" / "checkpoints")
    for above in (moved.parent, tmp_path):
        with pytest.raises(UsageError, match=f"holds neither .*; there is a root at {re.escape(str(moved))}$"):
            inspect(str(above))


def test_a_grid_is_aligned_text_or_a_table() -> None:
    """Numbers to the right; the same words in both forms."""
    grid = Grid("sizes", ("name", "n"), (("a", "1"), ("long", "100")), right=frozenset({1}))
    plain = io.StringIO()
    show(["first", grid], plain)
    assert plain.getvalue() == "first\n\nsizes\n  name    n\n  ----  ---\n  a       1\n  long  100\n"
    rich = io.StringIO()
    show(["[b]first[/b]", grid], rich, plain=False)
    assert "[b]first[/b]" in rich.getvalue()
    assert all(word in rich.getvalue() for word in ("sizes", "name", "long", "100"))


def test_without_rich_the_text_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich is an extra; a terminal without it gets the aligned text."""
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    out = io.StringIO()
    show([Grid("t", ("a",), (("1",),))], out, plain=False)
    assert out.getvalue() == "\nt\n  a\n  -\n  1\n"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (5_000_000, "5.0 MB"), (10**16, "10000.0 TB")],
)
def test_sizes_are_for_people(size_bytes: int, text: str) -> None:
    """One decimal from kB on."""
    assert size(size_bytes) == text


def test_moments_and_counts_are_for_people() -> None:
    """In UTC; what is no moment is a question mark."""
    assert moment(1_790_000_000.5) == "2026-09-21 14:13:20 UTC"
    assert [moment(None), moment(1e300), moment(-1e18)] == ["?", "?", "?"]
    assert [count(1, "file"), count(0, "file")] == ["1 file", "0 files"]
