"""The how-to on tracing does what it says, over real processes: its job runs, and its tree is one trace of them all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.test_docs import DOCS, blocks, run_line, shape

PAGE = DOCS / "how-to/see-a-checkpoint-in-your-tracing.md"
FILES = {name: text for page in (PAGE, DOCS / "tutorial.md") for name, text in blocks(page, "python") if name}
SERVERS = {"tools", "agent", "model"}


def spans(path: Path) -> Iterator[dict[str, Any]]:
    """The spans in a file, each with its attributes by name."""
    for line in path.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                assert scope["scope"]["name"] == "statecore"
                yield from scope["spans"]


def metrics(path: Path) -> set[str]:
    """The names of the metrics in a file."""
    return {
        metric["name"]
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceMetrics"]
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
    }


def test_its_job_is_one_trace_over_four_processes(tmp_path: Path) -> None:
    """Every line that the page shows of the tree is there; each server's file has its own spans of the one trace."""
    for name in ("servers.py", "watched.py", "tree.py"):
        (tmp_path / name).write_text(FILES[name] + "\n", encoding="utf-8")
    (text,) = (text for _, text in blocks(PAGE, "console"))
    _, job, shown = text.split("$ ")
    line, story = job.splitlines()
    told = run_line(line, tmp_path)
    assert told.split(": ")[0] == story.split(": ")[0], told
    line, *tree = shown.splitlines()
    assert set(shape("\n".join(tree))) - {"..."} <= set(shape(run_line(line, tmp_path)))
    files = tmp_path / "telemetry"
    (root,) = (each for each in spans(files / "coordinator-traces.jsonl") if each["name"] == "statecore.checkpoint")
    for server in SERVERS:
        mine = [each for each in spans(files / f"{server}-traces.jsonl") if each["traceId"] == root["traceId"]]
        assert {each["name"] for each in mine} >= {
            "statecore.control.prepare",
            "statecore.participant.wait",
            "statecore.control.commit",
            "statecore.participant.write",
            "statecore.control.resume",
        }
        assert "statecore.participant.duration" in metrics(files / f"{server}-metrics.jsonl")
    assert "statecore.checkpoint.duration" in metrics(files / "coordinator-metrics.jsonl")
