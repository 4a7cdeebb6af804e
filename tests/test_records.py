"""What is written down: records, payloads, positions, manifests, rows."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.identity import EpisodeId
from participants.records.manifests import CheckpointId
from participants.records.positions import SEED_HISTORY
from participants.records.records import (
    RECORD_TYPES,
    AgentBoundary,
    AgentRecord,
    AgentSessions,
    Agreement,
    Disposition,
    EnvironmentBoundary,
    EnvironmentRecord,
    FileRef,
    LedgerRow,
    LedgerStatus,
    Manifest,
    ModelRecord,
    ModelRow,
    PartRef,
    Position,
    Receipt,
    Record,
    RegistryRow,
    ResourcesRecord,
    ResourcesState,
    advance,
    boundary_digest,
    encode_line,
    next_history,
    read_record,
    record_json,
    seed_position,
    task_digest,
)
from statecore.errors import StatecoreError, WireError
from statecore.seams import SeededEntropy
from statecore.wire import parse, structure

EPISODE = EpisodeId("p7_g2", 1)
EPISODE_JSON = {"rollout_id": "p7_g2", "attempt": 1}
SHA = "ab" * 32
AT_TWO = Position(2, "0f" * 16, "e1" * 16)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def boundary(**changes: Any) -> AgentBoundary:
    given: dict[str, Any] = {
        "boundary_index": 3,
        "previous": SHA,
        "task_digest": SHA,
        "data_position": 17,
        "last_model_call_id": "call-3",
        "lineage_head": "0f" * 16,
        "parts": (PartRef(kind="resources", instance="tools", key="s1", position=AT_TWO),),
        "items": [{"role": "user", "content": "hi"}],
        "usage": {"total_tokens": 7},
        "cookies": {"tools": {"session": "abc"}},
        "steps_used": 3,
        "elapsed_s": 1.5,
        "state": {"b": 1, "a": 2},
    }
    return AgentBoundary(**(given | changes))


def receipt(**changes: Any) -> Receipt:
    given: dict[str, Any] = {
        "rollout_id": "p7_g2",
        "attempt": 1,
        "epoch": 2,
        "execution_generation": 1,
        "result_identity": "11" * 16,
        "result_sha256": SHA,
    }
    return Receipt(**(given | changes))


WRITTEN: list[tuple[Record, list[str]]] = [
    (EnvironmentRecord(episode_id=EPISODE, task_digest=SHA), ["episode_id", "task_digest", "boundary"]),
    (
        AgentRecord(episode_id=EPISODE, session_key="k", boundary={"n": 1}, session={"s": 1}),
        ["episode_id", "session_key", "boundary", "episode", "session"],
    ),
    (
        ResourcesRecord(episode_id=EPISODE, session_id="s", state={"z": 1, "a": 2}),
        ["episode_id", "session_id", "state"],
    ),
    (ModelRecord(episode_id=EPISODE, rows=({"model_call_id": "m1"},)), ["episode_id", "generation_cuts", "rows"]),
]


@pytest.mark.parametrize(("record", "names"), WRITTEN, ids=[record.kind for record, _ in WRITTEN])
def test_a_record_is_written_with_its_fields_in_the_wires_order_and_reads_back_equal(
    record: Record, names: list[str]
) -> None:
    """The opaque payload comes last, the identity always has both halves. Covers: I1, I49"""
    written = record_json(record)
    assert list(written) == names
    assert written["episode_id"] == EPISODE_JSON
    assert read_record(record.kind, parse(encode_line(written))) == record


def test_a_line_has_the_bytes_that_other_writers_make() -> None:
    """Default separators, ASCII escapes, keys as they come, a newline: two writers agree on the digest."""
    record = ResourcesRecord(episode_id=EPISODE, session_id="s", state={"z": "é", "a": [1, 2.0]})
    line = encode_line(record_json(record))
    assert line == (
        b'{"episode_id": {"rollout_id": "p7_g2", "attempt": 1}, "session_id": "s", '
        b'"state": {"z": "\\u00e9", "a": [1, 2.0]}}\n'
    )


@given(state=JSON_VALUES)
def test_any_payload_reads_back_equal_with_the_order_of_its_keys(state: Any) -> None:
    """Big integers, floats and strange strings included. Covers: I49"""
    record = ResourcesRecord(episode_id=EPISODE, session_id="s", state=state)
    back = read_record("resources", parse(encode_line(record_json(record))))
    assert back == record
    assert json.dumps(back.state) == json.dumps(state)


@pytest.mark.parametrize("value", [float("nan"), {"a": (1, 2)}, {1: 2}, b"x", "\ud800", {"s": {1}}])
def test_what_would_not_read_back_equal_is_refused_before_it_is_written(value: Any) -> None:
    """NaN, tuples, other keys, bytes, lone surrogates, sets: an error with the path. Covers: I49"""
    with pytest.raises(WireError):
        encode_line({"episode_id": EPISODE_JSON, "session_id": "s", "state": value})


def test_records_of_older_peers_are_read_and_their_fields_are_not_written_again() -> None:
    """`owner` and `session_id` are accepted; a newer single-process server would refuse them."""
    old = {
        "episode_id": EPISODE_JSON,
        "session_key": "k",
        "session_id": "id",
        "owner": "w1",
        "session": {},
        "boundary": None,
        "episode": None,
    }
    agent = read_record("agent", old)
    assert isinstance(agent, AgentRecord)
    assert (agent.owner, agent.session_id) == ("w1", "id")
    resources = read_record("resources", {"episode_id": EPISODE_JSON, "session_id": "s", "state": None, "owner": None})
    assert "owner" not in record_json(resources)


BAD_RECORDS: list[tuple[str, dict[str, Any], tuple[str | int, ...]]] = [
    ("environment", {"episode_id": EPISODE_JSON}, ("task_digest",)),
    ("environment", {"episode_id": {"rollout_id": "a/b"}, "task_digest": SHA}, ("episode_id",)),
    ("environment", {"episode_id": {"rollout_id": "a-a3"}, "task_digest": SHA}, ("episode_id",)),
    (
        "environment",
        {"episode_id": {"rollout_id": "a", "attempt": True}, "task_digest": SHA},
        ("episode_id", "attempt"),
    ),
    ("environment", {"episode_id": EPISODE_JSON, "task_digest": SHA, "more": 1}, ("more",)),
    ("agent", {"episode_id": EPISODE_JSON, "session_key": 7, "session": {}}, ("session_key",)),
    ("resources", {"episode_id": EPISODE_JSON, "session_id": "s"}, ("state",)),
    ("model", {"episode_id": EPISODE_JSON, "rows": {}, "generation_cuts": []}, ("rows",)),
    ("model", {"episode_id": EPISODE_JSON, "rows": [], "generation_cuts": [{}, {}]}, ()),
]


@pytest.mark.parametrize(("kind", "value", "loc"), BAD_RECORDS)
def test_a_record_that_is_not_of_its_form_is_refused_by_path(
    kind: str, value: dict[str, Any], loc: tuple[str | int, ...]
) -> None:
    """Missing, unknown and mistyped fields, and identities that are none. Covers: I49"""
    with pytest.raises(WireError) as error:
        read_record(kind, value)
    assert error.value.loc[: len(loc)] == loc


def test_there_are_four_kinds_and_no_other() -> None:
    """A record of an unknown kind is refused by name."""
    assert set(RECORD_TYPES) == {"environment", "model", "agent", "resources"}
    with pytest.raises(WireError, match="verifier"):
        read_record("verifier", {})


# --- positions


def test_the_history_is_the_documented_chain() -> None:
    """sha256 over the previous 16 bytes, the revision as 8 bytes big-endian and the operation id. Covers: I81"""
    seeded = seed_position(SeededEntropy(1))
    assert (seeded.revision, seeded.history) == (0, SEED_HISTORY)
    moved = advance(seeded, "op-é")
    expected = hashlib.sha256(bytes(16) + b"\0\0\0\0\0\0\0\1" + "op-é".encode()).hexdigest()[:32]
    assert moved == Position(1, expected, seeded.incarnation)
    assert next_history(SEED_HISTORY, "op-é", 1) == expected


def test_s46_the_same_revision_of_another_history_is_not_equal() -> None:
    """S46: after a crash revision 1 of the new history equals the lost one's only as a number. Covers: I81, I35"""
    seeded = seed_position(SeededEntropy(1))
    lost, new = advance(seeded, "op-a"), advance(seeded, "op-b")
    assert lost.revision == new.revision  # all that a bare revision would compare: the fault
    assert lost.compared(new) is Agreement.DIFFERENT
    assert lost.compared(advance(seeded, "op-a")) is Agreement.EQUAL


def test_a_session_that_was_seeded_again_is_another_one() -> None:
    """Counts and operation ids agree and the contents may not: the incarnation differs. Covers: I81"""
    entropy = SeededEntropy(3)
    first, second = seed_position(entropy), seed_position(entropy)
    assert first.compared(second) is Agreement.DIFFERENT
    assert advance(first, "op").compared(advance(second, "op")) is Agreement.DIFFERENT


def test_a_wire_peers_integer_compares_as_weak() -> None:
    """Equal revisions are weak agreement, to be counted; other revisions are none."""
    assert AT_TWO.compared(Position(2)) is Agreement.WEAK
    assert Position(2).compared(AT_TWO) is Agreement.WEAK
    assert AT_TWO.compared(Position(3)) is Agreement.DIFFERENT
    assert Position(3).weak
    with pytest.raises(ValueError, match="weak"):
        advance(Position(3), "op")


def test_a_position_travels_in_its_header() -> None:
    """`<revision>.<history>.<incarnation>`, and back."""
    assert AT_TWO.header == "2." + "0f" * 16 + "." + "e1" * 16
    assert Position.from_header(AT_TWO.header) == AT_TWO
    assert Position(5).header == "5"


@pytest.mark.parametrize(
    "text", ["", "2", "2.0f.e1", "-1." + "0f" * 16 + "." + "e1" * 16, "02." + "0f" * 16 + "." + "e1" * 16]
)
def test_a_header_that_is_no_position_is_refused(text: str) -> None:
    """Bad input: no revision, short digests, a sign, a leading zero."""
    with pytest.raises(ValueError, match="is no <revision>"):
        Position.from_header(text)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ((-1,), "revision"),
        ((1, "0f" * 16), "both"),
        ((1, "", "e1" * 16), "both"),
        ((1, "xyz", "e1" * 16), "history"),
        ((1, "0f" * 16, "E1" * 16), "incarnation"),
    ],
)
def test_a_malformed_position_cannot_be_made(values: tuple[Any, ...], problem: str) -> None:
    """Bad input: negative, half a position, wrong digits."""
    with pytest.raises(ValueError, match=problem):
        Position(*values)


# --- payloads


def test_a_boundary_reads_back_equal_and_has_the_documented_fields() -> None:
    """The payload of protocol.md section 14, in its order."""
    written = boundary().to_json()
    assert " ".join(written) == (
        "schema_version boundary_index previous task_digest data_position last_model_call_id lineage_head parts items "
        "usage cookies steps_used elapsed_s state"
    )
    assert written["parts"] == [
        {
            "kind": "resources",
            "instance": "tools",
            "key": "s1",
            "position": {"revision": 2, "history": "0f" * 16, "incarnation": "e1" * 16},
            "digest": None,
        }
    ]
    assert AgentBoundary.read(parse(encode_line(written))) == boundary()


def test_parts_null_and_parts_empty_are_two_things() -> None:
    """Null: not tracked. Empty: none used. Both survive the way to the disk and back."""
    for parts in (None, ()):
        back = AgentBoundary.read(parse(encode_line(boundary(parts=parts).to_json())))
        assert back is not None
        assert back.parts == parts


def test_boundaries_are_chained_by_the_digest_of_their_bytes() -> None:
    """The next boundary names the one before; another order of keys is another boundary."""
    first = boundary(previous=None).to_json()
    second = boundary(previous=boundary_digest(first), boundary_index=4).to_json()
    assert second["previous"] == hashlib.sha256(json.dumps(first).encode()).hexdigest()
    turned = first | {"state": {"a": 2, "b": 1}}
    assert turned == first
    assert boundary_digest(turned) != boundary_digest(first)


@pytest.mark.parametrize("value", [None, 3, [], {}, {"turn": 2}, {"schema_version": 9, "turn": 1}])
def test_a_boundary_of_another_make_is_not_looked_into(value: Any) -> None:
    """Its parts are not tracked; that is no error."""
    assert AgentBoundary.read(value) is None
    assert EnvironmentBoundary.read(value) is None
    assert ResourcesState.read(value) is None


@pytest.mark.parametrize(
    "change", [{"schema_version": 2}, {"boundary_index": -1}, {"boundary_index": "3"}, {"parts": {}}, {"more": 1}]
)
def test_a_boundary_that_says_it_is_ours_and_is_malformed_is_refused(change: dict[str, Any]) -> None:
    """Bad input: another schema version, a negative or mistyped index, unknown fields. Covers: I34"""
    with pytest.raises(StatecoreError):
        AgentBoundary.read(boundary().to_json() | change)


def test_the_other_payloads_read_back_equal() -> None:
    """Environment boundaries and resources states, with their documented fields."""
    step = EnvironmentBoundary(
        step_index=2, results=[{"r": 1}], state=None, sessions={"a": AgentSessions(session_key="k", activations=1)}
    )
    assert list(step.to_json()) == ["schema_version", "step_index", "results", "state", "sessions"]
    assert EnvironmentBoundary.read(parse(encode_line(step.to_json()))) == step
    state = ResourcesState(codec="counter/1", position=AT_TWO, operations=[], data={"value": 2**70})
    assert list(state.to_json()) == ["schema_version", "codec", "position", "operations", "data"]
    assert ResourcesState.read(parse(encode_line(state.to_json()))) == state


def test_a_ledger_row_keeps_what_only_its_writer_knows() -> None:
    """Known fields are typed, the others come back as they were; a policy version is a pair."""
    row = ModelRow(model_call_id="m1", capture_key="p7_g2-a1", request_digest=SHA, policy_version=(2, 40), epoch=2)
    written = row.to_json() | {"prev_len": 12}
    assert written["policy_version"] == [2, 40]
    assert "staging_key" not in written
    assert written["parent_call_id"] is None
    back = ModelRow.read(parse(encode_line(written)))
    assert back.extra == {"prev_len": 12}
    assert back.to_json() == written
    assert ModelRow.read({"model_call_id": "m2", "failure_reason": "gone"}).staging_key is None


@pytest.mark.parametrize(
    "row",
    [[], {}, {"model_call_id": 1}, {"model_call_id": "m", "policy_version": 7}, {"model_call_id": "m", "epoch": "1"}],
)
def test_a_malformed_ledger_row_is_refused(row: Any) -> None:
    """Bad input: no object, no id, a bare step for a policy version. Covers: I89"""
    with pytest.raises(StatecoreError):
        ModelRow.read(row)


def test_the_task_digest_does_not_depend_on_the_order_of_keys() -> None:
    """Sorted keys, compact, ASCII escapes: the form that existing servers write."""
    assert task_digest({"b": "é", "a": 1}) == hashlib.sha256(b'{"a":1,"b":"\\u00e9"}').hexdigest()
    assert task_digest({"a": 1, "b": "é"}) == task_digest({"b": "é", "a": 1})


# --- receipts and rows


def test_a_receipt_travels_whole_in_its_header() -> None:
    """One named object end to end: no two fields can be swapped unnoticed (S6). Covers: I66"""
    text = receipt().header
    assert text == json.dumps(json.loads(text), separators=(",", ":"))
    assert list(json.loads(text)) == [
        "rollout_id",
        "attempt",
        "epoch",
        "execution_generation",
        "result_identity",
        "result_sha256",
    ]
    assert Receipt.from_header(text) == receipt()
    assert Receipt.from_header(receipt(epoch=None).header).epoch is None
    assert receipt().episode == EPISODE


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", receipt().header.replace(SHA, "abc"), receipt().header.replace('"attempt":1', '"attempt":-1')],
)
def test_a_malformed_receipt_is_refused(text: str) -> None:
    """Bad input: not JSON, no object, fields missing, a digest that is none, a negative attempt."""
    with pytest.raises(StatecoreError):
        Receipt.from_header(text)


def registry_row(**changes: Any) -> RegistryRow:
    given: dict[str, Any] = {
        "rollout_id": "p7_g2",
        "attempt": 1,
        "group": "p7",
        "task": {"q": 1},
        "task_digest": task_digest({"q": 1}),
        "data_position": [3, 7],
        "target": "env",
        "disposition": Disposition.CONTINUE,
        "reason": "parts agree",
    }
    return RegistryRow(**(given | changes))


def test_registry_and_ledger_rows_read_back_equal() -> None:
    """Dispositions and statuses are words in the file."""
    row = registry_row()
    assert parse(encode_line(row.to_json()))["disposition"] == "continue"
    assert structure(parse(encode_line(row.to_json())), RegistryRow) == row
    saved = LedgerRow(rollout_id="p7_g2", attempt=1, status=LedgerStatus.SAVED, receipt=receipt(), body={"reward": 1.0})
    assert structure(parse(encode_line(saved.to_json())), LedgerRow) == saved


@pytest.mark.parametrize(
    ("status", "has_receipt", "body"),
    [(LedgerStatus.LIVE, True, None), (LedgerStatus.LIVE, False, {}), (LedgerStatus.SAVED, False, {"reward": 1})],
)
def test_a_ledger_row_that_contradicts_itself_cannot_be_made(
    status: LedgerStatus, has_receipt: bool, body: Any
) -> None:
    """Live with a result, or a result without its receipt. Covers: I65"""
    with pytest.raises(ValueError, match="receipt"):
        LedgerRow(rollout_id="p7_g2", attempt=1, status=status, receipt=receipt() if has_receipt else None, body=body)


def test_a_receipt_belongs_to_its_row() -> None:
    """Another attempt's receipt is refused."""
    with pytest.raises(ValueError, match="p7_g2"):
        LedgerRow(rollout_id="p7_g2", attempt=2, status=LedgerStatus.SAVED, receipt=receipt(), body={})


# --- manifests


def test_a_manifest_is_written_as_other_servers_write_it() -> None:
    """Sorted keys, one space of indent, no newline at the end; extra fields beside the others."""
    manifest = Manifest(
        kind="agent",
        instance="a",
        checkpoint_id="ck-1",
        records_file=f"records-{SHA}.jsonl",
        records_sha256=SHA,
        record_count=2,
        extra={"epoch": 4, "incarnation": "x"},
    )
    text = manifest.encode().decode()
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=1)
    assert Manifest.read(json.loads(text)) == manifest
    assert (manifest.epoch, manifest.incarnation) == (4, "x")


def test_extra_fields_of_a_manifest_are_kept_and_not_trusted() -> None:
    """A multi-worker peer's fields survive; a mistyped epoch is no epoch."""
    value = {
        "schema_version": 1,
        "kind": "agent",
        "instance": "a",
        "checkpoint_id": "c",
        "records_file": "records.jsonl",
        "records_sha256": SHA,
        "record_count": 0,
        "session_owners": ["w1"],
        "epoch": "4",
    }
    manifest = Manifest.read(value)
    assert manifest.to_json() == value
    assert manifest.epoch is None
    assert manifest.incarnation is None


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a/../b", "..", "a//b", "./a", "a\\b"])
def test_a_path_in_a_manifest_is_relative_and_has_one_spelling(path: str) -> None:
    """Bad input: absolute, `..`, doubled separators. Covers: I44"""
    with pytest.raises(ValueError, match="relative path"):
        FileRef(path=path, sha256=SHA, size_bytes=0)


@pytest.mark.parametrize(
    "text", ["", "ck-1-1", "ck-000001-000001x", "ck-0000001-000001", "rs-000001-000001", "CK-000001-000001"]
)
def test_only_our_ids_in_their_one_spelling_are_ours(text: str) -> None:
    """Two spellings would be two directories for one checkpoint."""
    assert CheckpointId.parse(text) is None


def test_checkpoint_ids_are_ordered_by_life_and_then_by_number() -> None:
    """Also beyond six digits."""
    ids = [CheckpointId(1, 9), CheckpointId(1, 10), CheckpointId(2, 1), CheckpointId(1_000_000, 1)]
    assert ids == sorted(ids)
    assert [CheckpointId.parse(str(each)) for each in ids] == ids
