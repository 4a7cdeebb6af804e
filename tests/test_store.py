"""The coordinator's side of the disk: claims and the chain, drafts, publication by one rename, validation."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from participants.files.chain import Base, Choice, Claim, candidates, choose, deletable, overtaken_by
from participants.files.draft import Committed, Draft, DraftIncomplete
from participants.files.files import InvalidCheckpointState
from participants.files.snapshots import write_part
from participants.files.store import ChainBroken, Checkpoint, PublicationInDoubt, Store, StoreError
from participants.records.manifests import CheckpointId
from participants.records.records import Disposition, LedgerRow, LedgerStatus, RegistryRow
from statecore.seams import MemoryDisk, SystemDisk
from tests.checkpoints import (
    ENTROPY,
    ROOT,
    SERVERS,
    finished,
    framework_writes,
    ledger,
    publish,
    records_of,
    registry,
    started,
    store_on,
    write_parts,
)
from tests.crash_disk import Crash, CrashDisk, Survives

# --- claims


def test_the_first_claim_is_one_and_each_later_one_is_more() -> None:
    """A claim says when it was made; its number is in its name. Covers: I96"""
    disk = MemoryDisk()
    assert [store_on(disk).claim() for _ in range(3)] == [1, 2, 3]
    assert disk.listdir(ROOT) == ["epoch-000001.json", "epoch-000002.json", "epoch-000003.json"]
    assert json.loads(disk.read(ROOT / "epoch-000002.json")) == {"epoch": 2, "claimed_ts": 1_790_000_000.0}


def test_the_loser_of_a_race_takes_the_next_number() -> None:
    """Two starts never share an epoch: a claim is a link, which never replaces. Covers: I96"""

    class Raced(MemoryDisk):
        rival: Store | None = None

        def link(self, src: Any, dst: Any) -> None:
            if self.rival is not None and str(dst).endswith("epoch-000001.json"):
                rival, self.rival = self.rival, None
                assert rival.claim() == 1
            super().link(src, dst)

    disk = Raced()
    disk.rival = store_on(disk)
    assert store_on(disk).claim() == 2
    assert store_on(disk).overtaken_by(1) == (2,)


def test_a_race_that_is_always_lost_ends_with_an_error() -> None:
    """The number of tries is bounded."""

    class AlwaysTaken(MemoryDisk):
        def link(self, src: Any, dst: Any) -> None:
            raise FileExistsError(dst)

    with pytest.raises(StoreError, match="lost the race"):
        store_on(AlwaysTaken()).claim()


def test_a_claim_is_durable_before_it_is_returned() -> None:
    """Temporary file, fsync, link, directory synced. Covers: I96"""
    disk = MemoryDisk()
    disk.mkdir(ROOT, parents=True)
    disk.log.clear()
    store_on(disk).claim()
    assert [operation for operation, _ in disk.log] == ["create", "write", "fsync", "link", "unlink", "fsync_dir"]
    assert disk.log[-1] == ("fsync_dir", str(ROOT))


def test_the_base_is_recorded_once_and_for_all() -> None:
    """Create-only: the same again is fine, another is refused, and only candidates can be recorded. Covers: I95, I96"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    first = publish(disk, store, epoch, 1)
    second = store.claim()
    with pytest.raises(StoreError, match="not in its chain"):
        store.record_base(second, CheckpointId(1, 9))
    store.record_base(second, first)
    store.record_base(second, first)
    with pytest.raises(StoreError, match="already says ck-000001-000001"):
        store.record_base(second, None)
    assert json.loads(disk.read(ROOT / "epoch-000002.base.json")) == {"start": "ck-000001-000001"}
    assert json.loads(disk.read(ROOT / "epoch-000001.base.json")) == {"start": None}


def test_choosing_before_claiming_is_refused() -> None:
    """S62's order: the claim is read by the one who publishes, so it must be there first. Covers: I98"""
    disk = MemoryDisk()
    store, _ = started(disk)
    with pytest.raises(ChainBroken, match="claim first"):
        store.candidates(2)


def test_an_unclaimed_epoch_writes_no_checkpoint() -> None:
    """Neither without a claim nor with one that has no base yet."""
    disk = MemoryDisk()
    store = store_on(disk)
    with pytest.raises(StoreError, match="no claim with a base"):
        store.begin(CheckpointId(1, 1))
    epoch = store.claim()
    with pytest.raises(StoreError, match="no claim with a base"):
        store.begin(CheckpointId(epoch, 1))


def test_a_later_claim_overtakes_also_while_it_is_void() -> None:
    """It may be choosing its base at this moment. Covers: I98"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    assert store.overtaken_by(epoch) == ()
    later = store_on(disk).claim()
    assert store.overtaken_by(epoch) == (later,)


# --- the chain


def test_candidates_are_those_of_the_documented_order() -> None:
    """Own ones newest first, then the start, then those that its epoch published before it, and so on. Covers: I91"""
    numbers = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (4, 1), (4, 2)]
    ids = {f"{epoch}-{seq}": CheckpointId(epoch, seq) for epoch, seq in numbers}
    claims = {
        1: Claim(1, None, Base(None)),
        2: Claim(2, None, Base(ids["1-2"])),
        3: Claim(3, None, None),
        4: Claim(4, None, Base(ids["2-2"])),
        5: Claim(5, None, None),
    }
    own = candidates(5, claims, ids.values())
    assert [f"{each.epoch}-{each.seq}" for each in own] == ["4-2", "4-1", "2-2", "2-1", "1-2", "1-1"]
    assert candidates(1, claims, ids.values()) == (ids["1-3"], ids["1-2"], ids["1-1"])
    assert candidates(3, claims, ids.values()) == (*(ids[f"2-{n}"] for n in (3, 2, 1)), ids["1-2"], ids["1-1"])


def test_a_start_that_is_gone_does_not_end_the_chain() -> None:
    """What was before it is still there to fall back to."""
    claims = {1: Claim(1, None, Base(None)), 2: Claim(2, None, Base(CheckpointId(1, 2)))}
    assert candidates(2, claims, [CheckpointId(1, 1), CheckpointId(1, 3)]) == (CheckpointId(1, 1),)


@pytest.mark.parametrize(
    "claims",
    [
        {2: Claim(2, None, Base(CheckpointId(1, 1)))},
        {1: Claim(1), 2: Claim(2, None, Base(CheckpointId(1, 1)))},
        {2: Claim(2, None, Base(CheckpointId(2, 1)))},
        {2: Claim(2, None, Base(CheckpointId(3, 1)))},
    ],
)
def test_a_broken_chain_is_an_error_and_no_fresh_start(claims: dict[int, Claim]) -> None:
    """A missing link, or a start of the same or a later life: nothing is guessed. Covers: I91"""
    with pytest.raises(ChainBroken):
        candidates(2, claims, [CheckpointId(1, 1), CheckpointId(2, 1), CheckpointId(3, 1)])


def test_the_base_is_the_newest_candidate_and_the_rest_is_told() -> None:
    """Nothing older in its place, nothing where there is none; what was overtaken is named. Covers: I79, I91"""
    ids = [CheckpointId(1, 1), CheckpointId(1, 2), CheckpointId(2, 1)]
    claims = {1: Claim(1, None, Base(None)), 2: Claim(2, None, Base(ids[0])), 3: Claim(3)}
    assert choose(3, claims, ids) == Choice(ids[2], overtaken=(ids[1],))
    assert choose(2, {1: Claim(1), 2: Claim(2)}, ids) == Choice(None, overtaken=tuple(ids))
    with pytest.raises(ChainBroken, match="claim first, then choose"):
        choose(4, claims, ids)


def test_own_later_claims_overtake_nobody() -> None:
    """A coordinator that starts its servers again claims again. Covers: I96, I98"""
    assert overtaken_by(2, [1, 2]) == ()
    assert overtaken_by(2, [4, 1, 3, 2]) == (3, 4)
    assert overtaken_by(2, [4, 1, 3, 2], own=[3]) == (4,)
    assert overtaken_by(2, [1, 2, 3], own=[3]) == ()


def test_retention_may_delete_what_its_own_chain_has_beyond_two() -> None:
    """The base counts as one of them; what was overtaken neither counts nor goes. Covers: I77, I79"""
    ids = {name: CheckpointId(*name) for name in [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]}
    claims = {1: Claim(1, None, Base(None)), 2: Claim(2, None, Base(ids[1, 2]))}
    assert deletable(1, claims, [ids[1, 1], ids[1, 2]]) == ()
    assert deletable(1, claims, [ids[1, 1], ids[1, 2], ids[1, 3]]) == (ids[1, 1],)
    assert deletable(2, claims, [ids[name] for name in [(1, 1), (1, 2), (1, 3), (2, 1)]]) == (ids[1, 1],)
    assert deletable(2, claims, ids.values()) == (ids[1, 2], ids[1, 1])
    assert deletable(2, claims, ids.values(), keep=3) == (ids[1, 1],)


@pytest.mark.parametrize("keep", [1, 0, -1])
def test_retention_keeps_one_to_fall_back_to(keep: int) -> None:
    """Fewer than two is an error, not an empty root. Covers: I77"""
    with pytest.raises(ValueError, match="at least 2"):
        deletable(1, {1: Claim(1, None, Base(None))}, [CheckpointId(1, 1)], keep=keep)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"start": 3}', b'{"start": "../x"}', b'{"start": null, "n": 1}'])
def test_a_damaged_base_file_is_an_error_that_names_it(content: bytes) -> None:
    """Bad input: empty, other fields, no checkpoint."""
    disk = MemoryDisk()
    store, _ = started(disk)
    disk.unlink(ROOT / "epoch-000001.base.json")
    with disk.create(ROOT / "epoch-000001.base.json") as file:
        file.write(content)
    with pytest.raises(ChainBroken, match=r"epoch-000001\.base\.json"):
        store.claims()


def test_a_claim_whose_content_is_damaged_still_claims() -> None:
    """The name is the claim."""
    disk = MemoryDisk()
    store, _ = started(disk)
    with disk.create(ROOT / "epoch-000007.json") as file:
        file.write(b"{")
    assert store.overtaken_by(1) == (7,)
    assert store.claims()[7] == Claim(7)
    assert store.claim() == 8


def test_s44_what_an_overtaken_coordinator_publishes_is_never_a_candidate() -> None:
    """S44: the newest directory is the zombie's, the chain's is the successor's; nothing is deleted. Covers: I79"""
    disk = MemoryDisk()
    zombie, first = started(disk)
    base = publish(disk, zombie, first, 1)
    asleep = finished(disk, zombie, first, 2)  # between its last check and the rename
    successor, second = started(disk)
    own = publish(disk, successor, second, 1)
    late = zombie.publish(asleep).checkpoint_id
    assert zombie.overtaken_by(first) == (second,)
    third = successor.claim()
    by_time = late  # what a reader takes that goes by the newest directory: the fault
    assert by_time in successor.published()
    assert successor.candidates(third) == (own, base)
    survey = successor.survey()
    assert survey.overtaken == (late,)
    assert survey.candidates == (own, base)
    assert disk.kind(ROOT / str(late)) == "dir"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_of_two_always_sees_the_other(data: st.DataObject) -> None:
    """Publishing then reading claims, against claiming then reading checkpoints, in any interleaving. Covers: I98"""
    disk = MemoryDisk()
    old, first = started(disk)
    draft = finished(disk, old, first, 1)
    seen: dict[str, Any] = {}

    def publisher() -> Iterator[None]:
        old.publish(draft)
        yield
        seen["overtaken"] = old.overtaken_by(first)
        yield

    def claimer() -> Iterator[None]:
        new = store_on(disk)
        epoch = new.claim()
        yield
        seen["base"] = new.candidates(epoch)
        yield

    running = [publisher(), claimer()]
    while running:
        each = data.draw(st.sampled_from(running)) if len(running) > 1 else running[0]
        if next(each, "ended") == "ended":
            running.remove(each)
    assert seen["overtaken"] or draft.checkpoint_id in seen["base"]


# --- writing a checkpoint


def test_every_file_is_in_its_place_and_in_its_order() -> None:
    """Parts, aggregate, registry and ledger, tokens, the global manifest last, then one rename. Covers: I41"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    disk.log.clear()
    publish(disk, store, epoch, 1)
    partial = f"{ROOT}/.ck-000001-000001.partial"
    made = [path.removeprefix(partial) for operation, path in disk.log if operation in ("link", "rename")]
    assert [path for path in made if "records-" not in path] == [
        *(f"/gym/{kind}/{name}/manifest.json" for kind, name in SERVERS),
        "/gym/manifest.json",
        "/coordinator/registry.jsonl",
        "/coordinator/ledger.jsonl",
        "/tokens/receipt.json",
        "/checkpoint.json",
        f"{ROOT}/ck-000001-000001",
        f"{ROOT}/LATEST",
    ]
    end = disk.log.index(("link", f"{partial}/checkpoint.json"))
    names = [(operation, path.removeprefix(partial)) for operation, path in disk.log]
    for each in ("/framework/trainer.json", "/framework/shards/0.bin"):
        assert names.index(("fsync", each)) < end
    tail = [(operation, path.removeprefix(str(ROOT))) for operation, path in disk.log[end:]]
    assert [each for each in tail if ".partial/." not in each[1] and "/.LATEST" not in each[1]] == [
        ("link", "/.ck-000001-000001.partial/checkpoint.json"),
        ("fsync_dir", "/.ck-000001-000001.partial"),
        ("rename", "/ck-000001-000001"),
        ("fsync_dir", ""),
        ("rename", "/LATEST"),
        ("fsync_dir", ""),
    ]


def test_every_file_and_directory_is_synced_before_the_rename() -> None:
    """Whatever is reachable in the published checkpoint was durable before it got its name. Covers: I41, I44"""
    disk = CrashDisk()
    disk.mkdir(ROOT, parents=True)
    for each in (Path("/"), ROOT.parent):
        disk.fsync_dir(each)
    store, epoch = started(disk)
    draft = finished(disk, store, epoch, 1)
    disk.rename(draft.directory, ROOT / "ck-000001-000001")
    disk.fsync_dir(ROOT)
    left = disk.after_crash(Survives.NOTHING)
    assert store_on(left).read(CheckpointId(1, 1)).scope


def test_a_checkpoint_reads_back_whole() -> None:
    """Parts, rows, the framework's files, the token receipt, the policy version. Covers: I44, I49"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    name = publish(disk, store, epoch, 1)
    found = store.read(name)
    assert [(part.manifest.kind, part.manifest.instance) for part in found.parts] == sorted(SERVERS)
    assert [list(part.records) for part in found.of_kind("agent")] == [records_of("agent", 1)]
    assert found.registry == tuple(registry())
    assert found.ledger == tuple(ledger())
    assert found.tokens == {"checkpoint_id": str(name), "snapshot": "tq-1"}
    assert found.manifest.policy_version == (1, 40)
    assert found.manifest.created_ts == 1_790_000_000.0
    assert [each.key for each in found.scope] == ["c0-a1"]
    assert disk.read(found.framework / "trainer.json") == b"trainer.json of ck-000001-000001"
    assert all(part.typed for part in found.parts)
    assert store.latest() == str(name)


def test_s31_the_number_of_files_does_not_depend_on_the_number_of_rollouts() -> None:
    """S31: two files per server, and a fixed number beside them. Covers: I50"""

    def files(rollouts: int) -> int:
        disk = MemoryDisk()
        store, epoch = started(disk)
        draft = finished(disk, store, epoch, 1, rollouts=rollouts)
        store.publish(draft)
        return sum(path.startswith(f"{ROOT}/ck-") for path in disk._files)

    assert files(1) == files(40)


def test_no_server_and_no_tokens_are_a_checkpoint_too() -> None:
    """A run whose servers are all stateless elsewhere still has its registry and its trainer."""
    disk = MemoryDisk()
    store, epoch = started(disk)
    draft = store.begin(CheckpointId(epoch, 1))
    draft.write_gym([])
    draft.write_coordinator([], [])
    draft.seal_framework()
    draft.finish()
    store.validate(draft)
    found = store.read(store.publish(draft).checkpoint_id)
    assert (found.parts, found.tokens, found.registry, found.manifest.framework) == ((), None, (), ())


@pytest.mark.parametrize("missing", ["gym", "coordinator", "framework"])
def test_the_global_manifest_comes_last(missing: str) -> None:
    """With a step missing it is refused and not written. Covers: I41"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    draft = store.begin(CheckpointId(epoch, 1))
    if missing != "gym":
        draft.write_gym(write_parts(disk, draft))
    if missing != "coordinator":
        draft.write_coordinator([], [])
    if missing != "framework":
        draft.seal_framework()
    with pytest.raises(DraftIncomplete):
        draft.finish()
    with pytest.raises(StoreError, match="finish it first"):
        store.publish(draft)
    assert disk.kind(draft.directory / "checkpoint.json") is None
    assert store.published() == ()


def test_the_aggregate_is_not_written_over_a_part_that_does_not_validate() -> None:
    """Missing, changed, of another checkpoint, or not what the server answered. Covers: I41, I45"""
    disk = MemoryDisk()
    store, epoch = started(disk)

    def attempt(spoil: Callable[[Draft, list[Committed]], list[Committed]], seq: int) -> str:
        draft = store.begin(CheckpointId(epoch, seq))
        with pytest.raises(InvalidCheckpointState) as error:
            draft.write_gym(spoil(draft, write_parts(disk, draft)))
        assert disk.kind(draft.directory / "gym/manifest.json") is None
        return str(error.value)

    def absent(draft: Draft, committed: list[Committed]) -> list[Committed]:
        return [*committed, Committed(kind="agent", name="other", mode="stateless")]

    def changed(draft: Draft, committed: list[Committed]) -> list[Committed]:
        part = draft.directory / "gym/agent/agent"
        (name,) = (each for each in disk.listdir(part) if each.startswith("records-"))
        damage(disk, part / name, b"x")
        return committed

    def not_answered(draft: Draft, committed: list[Committed]) -> list[Committed]:
        return [evolve(each, manifest=dict(each.manifest or {}) | {"incarnation": "?"}) for each in committed]

    def twice(draft: Draft, committed: list[Committed]) -> list[Committed]:
        return [*committed, committed[0]]

    def of_another(draft: Draft, committed: list[Committed]) -> list[Committed]:
        write_part(
            disk,
            draft.directory,
            kind="agent",
            instance="b",
            checkpoint_id="ck-000001-000099",
            records=[],
            entropy=ENTROPY,
        )
        return [*committed, Committed(kind="agent", name="b", mode="stateless")]

    def of_another_life(draft: Draft, committed: list[Committed]) -> list[Committed]:
        write_part(
            disk,
            draft.directory,
            kind="agent",
            instance="b",
            checkpoint_id=str(draft.checkpoint_id),
            records=[],
            extra={"epoch": 9},
            entropy=ENTROPY,
        )
        return [*committed, Committed(kind="agent", name="b", mode="stateless")]

    assert "missing manifest" in attempt(absent, 1)
    assert "does not match its manifest digest" in attempt(changed, 2)
    assert "is not the manifest that env answered" in attempt(not_answered, 3)
    assert "environment/env is there twice" in attempt(twice, 4)
    assert "is for 'ck-000001-000099'" in attempt(of_another, 5)
    assert "is of epoch 9" in attempt(of_another_life, 6)


def test_a_token_receipt_of_another_checkpoint_is_refused() -> None:
    """Gym, framework and token store agree under one id. Covers: I41"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    draft = store.begin(CheckpointId(epoch, 1))
    with pytest.raises(InvalidCheckpointState, match="receipt is for 'ck-000001-000009'"):
        draft.write_tokens({"checkpoint_id": "ck-000001-000009"})


def test_a_row_that_would_not_read_back_equal_aborts_the_checkpoint() -> None:
    """NaN in a result is an error with its path, not a silent change. Covers: I49"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    draft = store.begin(CheckpointId(epoch, 1))
    bad = [evolve(ledger()[1], body={"reward": float("nan")})]
    with pytest.raises(InvalidCheckpointState, match="reward"):
        draft.write_coordinator(registry(), bad)


def test_a_framework_that_writes_a_link_is_refused(tmp_path: Path) -> None:
    """Only plain files below the directory belong to a checkpoint. Covers: I44"""
    disk = SystemDisk()
    store, epoch = started(disk, tmp_path / "root")
    draft = store.begin(CheckpointId(epoch, 1))
    (draft.framework_dir / "weights").symlink_to(tmp_path)
    with pytest.raises(InvalidCheckpointState, match="symbolic link"):
        draft.seal_framework()


# --- publication


def test_an_id_is_used_once() -> None:
    """Neither begun nor published twice; a discarded draft leaves its id free of files."""
    disk = MemoryDisk()
    store, epoch = started(disk)
    publish(disk, store, epoch, 1)
    with pytest.raises(StoreError, match="exists"):
        store.begin(CheckpointId(epoch, 1))
    draft = store.begin(CheckpointId(epoch, 2))
    with pytest.raises(StoreError):
        store.begin(CheckpointId(epoch, 2))
    write_parts(disk, draft)
    framework_writes(disk, draft)
    store.discard(draft)
    store.discard(draft)
    assert disk.kind(draft.directory) is None
    assert store.survey().partial == ()


@pytest.mark.parametrize("there", ["empty directory", "full directory", "file"])
def test_publication_replaces_nothing(there: str) -> None:
    """A rename would silently replace an empty directory: looked at first, and refused in each case. Covers: I43"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    draft = finished(disk, store, epoch, 1)
    final = ROOT / "ck-000001-000001"
    if there == "file":
        disk.create(final).close()
    else:
        disk.mkdir(final)
        if there == "full directory":
            disk.create(final / "x").close()
    with pytest.raises(StoreError, match="exists"):
        store.publish(draft)
    assert disk.kind(draft.directory / "checkpoint.json") == "file"


@pytest.mark.parametrize("code", [errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR])
def test_the_disks_own_refusals_mean_exists(code: int) -> None:
    """Another process made the name between the look and the rename. Covers: I43"""
    disk = CrashDisk()
    store, epoch = started(disk)
    draft = finished(disk, store, epoch, 1)

    def taken(operation: str, path: str) -> None:
        if operation == "rename":
            raise OSError(code, "taken")

    disk.fault = taken
    with pytest.raises(StoreError, match="ck-000001-000001 exists"):
        store.publish(draft)


def test_a_rename_that_fails_publishes_nothing() -> None:
    """The old checkpoint stays in force, and the next one can be tried."""
    disk = CrashDisk()
    store, epoch = started(disk)
    first = publish(disk, store, epoch, 1)
    draft = finished(disk, store, epoch, 2)
    disk.fault = failing("rename", errno.EIO)
    with pytest.raises(StoreError, match="cannot publish"):
        store.publish(draft)
    disk.fault = lambda operation, path: None
    assert store.published() == (first,)
    store.discard(draft)
    assert publish(disk, store, epoch, 3) == CheckpointId(1, 3)


def failing(operation: str, code: int, ending: str = "") -> Callable[[str, str], None]:
    def fault(asked: str, path: str) -> None:
        if asked == operation and path.endswith(ending):
            raise OSError(code, "broken")

    return fault


def test_a_root_that_cannot_be_synced_leaves_the_publication_in_doubt() -> None:
    """The name is there and may be lost with a crash: said so, and no ACK may rest on it. Covers: I67"""
    disk = CrashDisk()
    store, epoch = started(disk)
    draft = finished(disk, store, epoch, 1)
    disk.fault = failing("fsync_dir", errno.EIO, str(ROOT))
    with pytest.raises(PublicationInDoubt, match="could not be synced"):
        store.publish(draft)


def test_a_rename_that_was_made_and_answered_with_an_error_is_in_doubt() -> None:
    """As a network file system may do it: what is on the disk decides, not the error. Covers: I67"""

    class Retransmits(MemoryDisk):
        def rename(self, src: Any, dst: Any) -> None:
            super().rename(src, dst)
            if "ck-" in str(dst):
                raise FileNotFoundError(errno.ENOENT, "already renamed", src)

    disk = Retransmits()
    store, epoch = started(disk)
    with pytest.raises(PublicationInDoubt):
        store.publish(finished(disk, store, epoch, 1))


def test_latest_may_lag_and_that_is_no_error() -> None:
    """The checkpoint is in force; why the pointer lags is told. Covers: I42"""
    disk = CrashDisk()
    store, epoch = started(disk)
    first = publish(disk, store, epoch, 1)
    draft = finished(disk, store, epoch, 2)
    disk.fault = failing("rename", errno.ENOSPC, "LATEST")
    done = store.publish(draft)
    assert "broken" in (done.latest_problem or "")
    assert store.latest() == str(first)
    assert store.candidates(epoch) == (CheckpointId(1, 2), first)


def test_s57_a_root_whose_fsync_failed_publishes_no_more() -> None:
    """S57: the next fsync would succeed, and the lost entry be acknowledged on; here it fails for good. Covers: I67"""

    class FailsOnce(MemoryDisk):
        failing = False

        def sync(self, operation: str, name: str) -> None:
            if self.failing and name == str(ROOT):
                self.failing = False
                raise OSError(errno.EIO, "lost")
            super().sync(operation, name)

    disk = FailsOnce()
    store, epoch = started(disk)
    drafts = [finished(disk, store, epoch, seq) for seq in (1, 2)]
    disk.failing = True
    for draft in drafts:
        with pytest.raises(PublicationInDoubt):
            store.publish(draft)
    with pytest.raises(StoreError, match="earlier fsync of it failed"):
        store.claim()


def test_s41_a_directory_without_its_last_file_is_never_taken_for_complete() -> None:
    """S41: existence is no completeness; readers follow the marker that is written last. Covers: I42"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    first = publish(disk, store, epoch, 1)
    half = store.begin(CheckpointId(epoch, 2))
    half.write_gym(write_parts(disk, half))
    existing = [name for name in disk.listdir(ROOT) if "ck-" in name]
    assert len(existing) == 2  # what a reader sees that goes by existence: the fault
    assert store.candidates(epoch) == (first,)
    disk.rename(half.directory, ROOT / "ck-000001-000002")  # even with a final name: the marker is missing
    with pytest.raises(InvalidCheckpointState, match=r"missing manifest .*ck-000001-000002/checkpoint\.json"):
        store.read(CheckpointId(1, 2))


# --- crashes


def crash_points() -> int:
    disk = CrashDisk()
    store, epoch = started(disk)
    publish(disk, store, epoch, 1)
    before = len(disk.log)
    publish(disk, store, epoch, 2)
    return len(disk.log) - before


def crashed(at: int, forgets: Callable[[str, str], bool] = lambda operation, path: False) -> tuple[CrashDisk, bool]:
    """A disk with one checkpoint in force that crashed at operation `at` of the next; and whether that was answered."""
    disk = CrashDisk()
    disk.mkdir(ROOT, parents=True)
    for each in (Path("/"), ROOT.parent):
        disk.fsync_dir(each)
    store, epoch = started(disk)
    publish(disk, store, epoch, 1)
    disk.forgets = forgets
    disk.crash_at(at)
    try:
        publish(disk, store, epoch, 2)
    except Crash:
        return disk, False
    return disk, True


def check_after_crash(left: CrashDisk, answered: bool) -> None:
    """The old checkpoint or the new one is in force, whole; the new one if it was answered; and the run can go on."""
    store = store_on(left)
    epoch = store.claim()
    assert epoch == 2
    tried = store.candidates(epoch)
    assert tried in ((OLD,), (NEW, OLD))
    for name in tried:
        check_whole(store.read(name), name)
    assert not answered or tried[0] == NEW, "published, answered and lost"
    assert store.latest() in (str(OLD), str(NEW))
    store.record_base(epoch, tried[0])
    assert publish(left, store, epoch, 1) == CheckpointId(epoch, 1)


OLD, NEW = CheckpointId(1, 1), CheckpointId(1, 2)


@pytest.mark.parametrize("survives", Survives)
def test_s34_a_crash_at_any_operation_leaves_the_old_checkpoint_or_the_new_one(survives: Survives) -> None:
    """Every prefix of a publication, and all that a crash may leave of it: whole, and never less. Covers: I41, I42,
    S34
    """
    for at in range(crash_points() + 1):
        disk, answered = crashed(at)
        for seed in range(4 if survives is Survives.SOME else 1):
            check_after_crash(disk.after_crash(survives, seed), answered)
    assert answered


@pytest.mark.parametrize(
    "forgets",
    [
        lambda operation, path: operation == "fsync" and ".records.jsonl." in path,
        lambda operation, path: operation == "fsync" and ".manifest.json." in path,
        lambda operation, path: operation == "fsync" and ".registry.jsonl." in path,
        lambda operation, path: operation == "fsync" and ".checkpoint.json." in path,
        lambda operation, path: operation == "fsync" and "/framework/shards/" in path,
        lambda operation, path: operation == "fsync_dir" and path.endswith("/gym/agent/agent"),
        lambda operation, path: operation == "fsync_dir" and path.endswith("/gym"),
        lambda operation, path: operation == "fsync_dir" and path.endswith("/coordinator"),
        lambda operation, path: operation == "fsync_dir" and path.endswith("/framework/shards"),
        lambda operation, path: operation == "fsync_dir" and path.endswith(".partial"),
        lambda operation, path: operation == "fsync_dir" and path == str(ROOT),
    ],
)
def test_each_sync_is_needed(forgets: Callable[[str, str], bool]) -> None:
    """The failing twins of the test above: without any one of the syncs a crash leaves something that is not whole."""
    for at in reversed(range(crash_points() + 1)):  # most show at the end
        disk, answered = crashed(at, forgets)
        for survives in (Survives.NOTHING, Survives.NAMES):
            try:
                check_after_crash(disk.after_crash(survives), answered)
            except (AssertionError, InvalidCheckpointState):
                return
    pytest.fail("this sync could be left out and no crash would tell")


def check_whole(found: Checkpoint, name: CheckpointId) -> None:
    assert found.manifest.checkpoint_id == str(name)
    assert len(found.parts) == len(SERVERS)
    assert all(len(part.records) == 1 for part in found.parts)
    assert len(found.registry) == 4


@pytest.mark.parametrize("survives", Survives)
def test_a_crash_while_claiming_leaves_no_claim_or_a_whole_one(survives: Survives) -> None:
    """Whatever is left, the next start claims a number of its own and finds its chain. Covers: I96"""
    for at in range(40):
        disk = CrashDisk()
        disk.mkdir(ROOT, parents=True)
        for each in (Path("/"), ROOT.parent):
            disk.fsync_dir(each)
        store, epoch = started(disk)
        first = publish(disk, store, epoch, 1)
        disk.crash_at(at)
        answered = 0
        try:
            answered = store_on(disk).claim()
            store_on(disk).record_base(answered, first)
        except Crash:
            pass
        left = disk.after_crash(survives, at)
        again = store_on(left)
        later = again.claim()
        assert later > answered, "an epoch that was answered is given again"
        assert again.candidates(later) == (first,)


def test_an_aborted_operation_at_any_point_leaves_the_old_checkpoint_in_force() -> None:
    """The disk is full at any operation: an error, the old one in force, and the next is tried. Covers: I42"""
    total = crash_points()
    for at in range(total):
        disk = CrashDisk()
        store, epoch = started(disk)
        first = publish(disk, store, epoch, 1)
        start = len(disk.log)
        failed = False

        def full(operation: str, path: str) -> None:
            nonlocal failed
            if len(disk.log) - start == at and not failed:  # noqa: B023
                failed = True
                raise OSError(errno.ENOSPC, "no space left")

        disk.fault = full
        with suppress(InvalidCheckpointState, StoreError, OSError):
            publish(disk, store, epoch, 2)
        assert failed
        for each in store.published():
            store.read(each)
        assert store.published()[0] == first
        assert publish(disk, store, epoch, 3) == CheckpointId(epoch, 3)


# --- validation


def damage(disk: MemoryDisk, path: Path, content: bytes) -> None:
    disk.unlink(path)
    with disk.create(path) as file:
        file.write(content)


def written(disk: MemoryDisk, **more: Any) -> Path:
    store, epoch = started(disk)
    return store.publish(finished(disk, store, epoch, 1, **more)).directory


def files_of(disk: MemoryDisk, directory: Path) -> list[str]:
    return sorted(path.removeprefix(f"{directory}/") for path in disk._files if path.startswith(f"{directory}/"))


def test_every_single_file_is_checked() -> None:
    """A changed byte, a cut end or a missing file, whichever it is: refused, with its name. Covers: I44"""
    disk = MemoryDisk()
    names = files_of(disk, written(disk))
    assert len(names) == 2 * len(SERVERS) + 7
    for name in names:
        for spoil in ("changed", "cut", "missing", "longer"):
            disk = MemoryDisk()
            directory = written(disk)
            content = disk.read(directory / name)
            if spoil == "missing":
                disk.unlink(directory / name)
            else:
                middle = len(content) // 2
                flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
                damage(
                    disk,
                    directory / name,
                    {"changed": flipped, "cut": content[:-2], "longer": content + b"x"}[spoil],
                )
            with pytest.raises(InvalidCheckpointState) as error:
                store_on(disk).read(CheckpointId(1, 1))
            assert Path(name).name in str(error.value) or name == "checkpoint.json"


def rewritten(disk: MemoryDisk, directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(disk.read(directory / "checkpoint.json"))
    change(value)
    damage(disk, directory / "checkpoint.json", json.dumps(value).encode())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda value: value.update(schema_version=2), "schema version 2"),
        (lambda value: value.update(checkpoint_id="ck-000001-000002"), "is of ck-000001-000002"),
        (lambda value: value.update(epoch=2), "epoch"),
        (lambda value: value.update(more=1), "more"),
        (lambda value: value["registry"].update(path="../registry.jsonl"), "relative path"),
        (lambda value: value["registry"].update(path="coordinator/ledger.jsonl"), "belongs"),
        (lambda value: value["ledger"].update(count=9), "says 9"),
        (lambda value: value["participants"].pop(), "names other participants"),
        (lambda value: value["participants"][0].update(mode="stateless"), "names other participants"),
        (lambda value: value["framework"].pop(), "is not named"),
        (lambda value: value["framework"][0].update(path="gym/manifest.json"), "as the framework's"),
        (lambda value: value["framework"][0].update(size_bytes=1), "bytes"),
        (lambda value: value.pop("created_ts"), "created_ts"),
        (lambda value: value.update(policy_version=7), "policy_version"),
    ],
)
def test_a_global_manifest_that_lies_is_refused(change: Callable[[dict[str, Any]], None], problem: str) -> None:
    """Another schema, id, epoch, place, count or set of participants, files left out. Covers: I44, I45"""
    disk = MemoryDisk()
    rewritten(disk, written(disk), change)
    with pytest.raises(InvalidCheckpointState, match=problem):
        store_on(disk).read(CheckpointId(1, 1))


def test_a_part_or_a_file_that_nobody_names_is_refused() -> None:
    """A participant's state that would silently not be restored; a framework's file without a digest. Covers: I44"""
    disk = MemoryDisk()
    directory = written(disk)
    write_part(
        disk,
        directory,
        kind="resources",
        instance="late",
        checkpoint_id="ck-000001-000001",
        records=[],
        entropy=ENTROPY,
    )
    with pytest.raises(InvalidCheckpointState, match="resources/late holds a part"):
        store_on(disk).read(CheckpointId(1, 1))
    disk = MemoryDisk()
    directory = written(disk)
    disk.create(directory / "framework/extra").close()
    with pytest.raises(InvalidCheckpointState, match="framework/extra is not named"):
        store_on(disk).read(CheckpointId(1, 1))


def rows_with(name: str, **changes: Any) -> list[RegistryRow]:
    return [evolve(row, **changes) if row.rollout_id == name else row for row in registry()]


DONE = ledger()[1]
DONE_RECEIPT = DONE.receipt
assert DONE_RECEIPT is not None


@pytest.mark.parametrize(
    ("rows", "results", "problem"),
    [
        (
            None,
            [evolve(DONE, rollout_id="c0", receipt=evolve(DONE_RECEIPT, rollout_id="c0"))],
            "c0 is both continue and saved",
        ),
        (rows_with("done", disposition=Disposition.FRESH), None, "both fresh and saved"),
        (rows_with("done", disposition=Disposition.QUEUED), None, "both queued and saved"),
        (None, [ledger()[0]], "done is completed, but its result is not here"),
        (None, [evolve(DONE, status=LedgerStatus.LIVE, receipt=None, body=None)], "its result is not here"),
        (None, [*ledger(), DONE], "done twice"),
        ([*registry(), registry()[0]], None, "c0 twice"),
        (rows_with("c0", attempt=2), None, "c0-a2 continues, but no record holds its episode"),
        (rows_with("again", disposition=Disposition.CONTINUE), None, "again-a1 continues, but no record"),
        (rows_with("c0", task={"n": 9}), None, "task of c0 does not match its digest"),
        (None, [evolve(DONE, body={"reward": 0.0})], "result of done does not match its receipt"),
        (None, [*ledger(), LedgerRow(rollout_id="x", attempt=0, status=LedgerStatus.LIVE)], "never dispatched"),
    ],
)
def test_rows_that_contradict_each_other_are_refused(
    rows: list[RegistryRow] | None, results: list[LedgerRow] | None, problem: str
) -> None:
    """Never both completed and resumable, each rollout once, nothing continued from nowhere. Covers: I65"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    draft = finished(disk, store, epoch, 1, rows=rows, results=results)
    with pytest.raises(InvalidCheckpointState, match=problem):
        store.validate(draft)


def test_two_owners_of_one_episode_are_refused() -> None:
    """Two environments that both hold it: which one goes on? Covers: I10, I65"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    draft = store.begin(CheckpointId(epoch, 1))
    committed = write_parts(disk, draft)
    manifest = write_part(
        disk,
        draft.directory,
        kind="environment",
        instance="second",
        checkpoint_id=str(draft.checkpoint_id),
        records=records_of("environment", 1),
        entropy=ENTROPY,
    )
    draft.write_gym([*committed, Committed(kind="environment", name="second", mode="x", manifest=manifest.to_json())])
    draft.write_coordinator(registry(), ledger())
    draft.seal_framework()
    draft.finish()
    with pytest.raises(InvalidCheckpointState, match="two records own the episode c0-a1"):
        store.validate(draft)


def test_an_agents_own_run_owns_its_episode() -> None:
    """A rollout without an environment continues from the agent's record."""
    disk = MemoryDisk()
    store, epoch = started(disk)
    draft = store.begin(CheckpointId(epoch, 1))
    own = [each | {"episode": {"task": 1}} for each in records_of("agent", 1)]
    write_part(
        disk,
        draft.directory,
        kind="agent",
        instance="agent",
        checkpoint_id=str(draft.checkpoint_id),
        records=own,
        entropy=ENTROPY,
    )
    draft.write_gym([Committed(kind="agent", name="agent", mode="export_restore")])
    draft.write_coordinator(registry(), ledger())
    draft.seal_framework()
    draft.finish()
    assert [each.key for each in store.validate(draft).scope] == ["c0-a1"]


def test_the_real_disk(tmp_path: Path) -> None:
    """Claim, publish, claim again, read: with the system's files, links and renames. Covers: I41, I44, I96"""
    disk = SystemDisk()
    root = tmp_path / "deep/root"
    store, epoch = started(disk, root)
    name = publish(disk, store, epoch, 1)
    again, second = started(disk, root)
    assert second == 2
    assert again.candidates(second) == (name,)
    assert again.read(name).registry == tuple(registry())
    assert (root / "LATEST").read_text() == "ck-000001-000001\n"
    assert sorted(each.name for each in root.iterdir()) == [
        "LATEST",
        "ck-000001-000001",
        "epoch-000001.base.json",
        "epoch-000001.json",
        "epoch-000002.base.json",
        "epoch-000002.json",
    ]
    (root / "ck-000001-000002").symlink_to(root / "ck-000001-000001")
    assert again.published() == (name,)
    with pytest.raises(InvalidCheckpointState, match="symbolic link"):
        again.read(CheckpointId(1, 2))
