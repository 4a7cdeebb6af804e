"""Checkpoints of every schema that was ever written, kept in tests/data/checkpoints/ and read by the code of today."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from participants.files.files import UnknownSchema
from participants.files.store import InvalidCheckpointState, Store
from participants.records.payloads import AgentBoundary, EnvironmentBoundary, ModelRow, ResourcesState
from participants.records.records import AgentRecord, EnvironmentRecord, ModelRecord, ResourcesRecord
from statecore.seams import FixedClock, SeededEntropy, SystemDisk
from tests import schema_1

STORED = Path(__file__).parent / "data/checkpoints"
DISK = SystemDisk()


def store_at(root: Path) -> Store:
    return Store(root, DISK, SeededEntropy(1), FixedClock(0.0))


def test_s43_the_stored_checkpoint_of_schema_1_is_read_whole() -> None:
    """S43: what an older version wrote is found in its chain, validates, and has every field. Covers: I44, I49"""
    store = store_at(STORED / "schema-1")
    assert store.survey().candidates == (schema_1.NAME,)
    found = store.read(schema_1.NAME)
    parts = {(part.manifest.kind, part.manifest.instance): list(part.typed) for part in found.parts}
    assert parts == schema_1.RECORDS
    assert (found.registry, found.ledger) == (schema_1.REGISTRY, schema_1.LEDGER)
    assert {path.name: path.read_bytes() for path in found.framework.iterdir()} == schema_1.FRAMEWORK
    assert found.manifest.policy_version == (1, 40)
    assert found.tokens["snapshot"] == "rows-1"


def test_s43_the_payloads_of_schema_1_are_read() -> None:
    """S43: boundaries, session states and ledger rows, not only the records around them. Covers: I35"""
    found = store_at(STORED / "schema-1").read(schema_1.NAME)
    records = [record for part in found.parts for record in part.typed]
    for record in records:
        if isinstance(record, AgentRecord):
            assert AgentBoundary.read(record.boundary) == schema_1.SECOND
            assert json.dumps(record.boundary["state"]) == '{"b": 2, "a": -0.0}'
        elif isinstance(record, EnvironmentRecord):
            assert EnvironmentBoundary.read(record.boundary) is not None
        elif isinstance(record, ResourcesRecord):
            state = ResourcesState.read(record.state)
            assert state is not None
            assert state.position == schema_1.AT_TWO
            assert state.data["random"] == 2**127 + 1
        else:
            assert isinstance(record, ModelRecord)
            assert [ModelRow.read(row).parent_call_id for row in record.rows] == [None, "call-1"]


def test_s43_todays_code_writes_schema_1_byte_for_byte(tmp_path: Path) -> None:
    """S43: a change of any byte is another schema version, with a stored checkpoint of its own."""
    schema_1.write(DISK, tmp_path)
    stored = STORED / "schema-1"

    def files(root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    assert files(tmp_path) == files(stored)


@pytest.mark.parametrize("name", ["checkpoint.json", "gym/manifest.json", "gym/agent/agent/manifest.json"])
def test_s43_a_schema_of_the_future_is_refused_by_its_number(tmp_path: Path, name: str) -> None:
    """S43: a clear refusal that names file and version, before anything else of it is looked at. Covers: I44"""
    root = tmp_path / "root"
    shutil.copytree(STORED / "schema-1", root)
    path = root / str(schema_1.NAME) / name
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(InvalidCheckpointState) as error:
        store_at(root).read(schema_1.NAME)
    if name == "checkpoint.json":
        told = f"{path} has schema version 2, only 1 can be read here: start a newer version, which reads it"
        assert str(error.value) == told
    else:
        assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0", "has schema version 0, only 1 can be read here: start the version that wrote it"),
        ("17", "has schema version 17, only 1 can be read here: start a newer version, which reads it"),
    ],
)
def test_s43_another_schema_says_what_to_do(tmp_path: Path, version: str, told: str) -> None:
    """S43: it is whole, and it is not for this version; that is another refusal than damage."""
    path = rewritten(tmp_path, version)
    with pytest.raises(UnknownSchema) as error:
        store_at(tmp_path / "root").read(schema_1.NAME)
    assert str(error.value) == f"{path} {told}"


@pytest.mark.parametrize("version", ['"1"', "1.0", "true", "null", "[1]"])
def test_s43_what_is_no_version_is_damage(tmp_path: Path, version: str) -> None:
    """S43: no version of ours has ever written it."""
    rewritten(tmp_path, version)
    with pytest.raises(InvalidCheckpointState, match=r"has schema version .*, which is none") as error:
        store_at(tmp_path / "root").read(schema_1.NAME)
    assert not isinstance(error.value, UnknownSchema)


def rewritten(tmp_path: Path, version: str) -> Path:
    """The stored checkpoint, which says that it is of another version."""
    shutil.copytree(STORED / "schema-1", tmp_path / "root")
    path = tmp_path / "root" / str(schema_1.NAME) / "checkpoint.json"
    path.write_text(path.read_text().replace('"schema_version": 1', f'"schema_version": {version}'))
    return path


def test_a_checkpoint_is_read_without_this_library(tmp_path: Path) -> None:
    """The script of the how-to, run by a Python that sees no other package: what each rollout has, and a damaged file
    by name.
    """
    page = Path(__file__).parent.parent / "docs/how-to/read-a-checkpoint.md"
    (text,) = re.findall(r"<!-- file: read_checkpoint.py -->\n```python\n(.*?)\n```", page.read_text(), re.DOTALL)
    script, copy = tmp_path / "read_checkpoint.py", tmp_path / "ck"
    script.write_text(text, encoding="utf-8")
    shutil.copytree(STORED / "schema-1" / str(schema_1.NAME), copy)

    def read() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(script), str(copy)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert read().stdout.splitlines() == [
        "run-0007 attempt 1: continue (all parts agree)",
        "  boundaries 2",
        '  tools after 2 changes {"value": 5, "random": 170141183460469231731687303715884105729}',
        "run-0008 attempt 0: completed (its result is in the ledger)",
        '  result {"reward": 1.0, "output": "4"}',
        "run-0009 attempt 2: fresh (restart: tools cannot export it)",
        "run-0010 attempt 0: queued (never started)",
    ]
    (records,) = (copy / "gym/resources/tools").glob("records-*.jsonl")
    records.write_bytes(records.read_bytes().replace(b"5", b"6", 1))
    done = read()
    assert (done.returncode, done.stderr) == (1, f"{records} is damaged\n")
