"""The file of results, whatever dies at whichever file operation: what was kept stands, once, and stays."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from participants import Result
from participants.collecting.output import OutputError, OutputFile
from participants.settings import Seams
from statecore.wire import parse
from tests.crash_disk import Crash, CrashDisk, Survives
from tests.test_collecting import OUT, result_of

RESULTS = [
    result_of({"reward": 0}, rollout_id="0-0"),
    result_of({"episode_id": {}, "failure": {"terminal": True}}, rollout_id="1-0"),
    result_of({"reward": 2}, rollout_id="2-0"),
    result_of({"episode_id": {}, "failure": {}}, rollout_id="3-0"),
]
Dies = Callable[[CrashDisk], CrashDisk]


def machine(survives: Survives, seed: int = 0) -> Dies:
    return lambda disk: disk.after_crash(survives, seed)


DEATHS: dict[str, Dies] = {
    "killed": CrashDisk.after_kill,
    "nothing": machine(Survives.NOTHING),
    "everything": machine(Survives.EVERYTHING),
    "names": machine(Survives.NAMES),
    **{f"some {seed}": machine(Survives.SOME, seed) for seed in range(6)},
}


def new_disk() -> CrashDisk:
    disk = CrashDisk()
    disk.mkdir(OUT.parent)
    disk.fsync_dir("/")
    return disk


def life(disk: CrashDisk, kept: dict[str, Result]) -> None:
    """A collector that keeps all results; `kept` are those of which it, or one before it, has been told so."""
    output = OutputFile(disk, OUT).open()
    assert kept.keys() <= output.standing.keys()
    for result in RESULTS:
        assert output.keep(result) == result
        kept[result.rollout_id] = result
    output.close()


def crashes(disk: Callable[[], CrashDisk], before: dict[str, Result]) -> Iterator[tuple[CrashDisk, dict[str, Result]]]:
    """The disk of a life that died at each of its operations, and what was kept until then."""
    for operation in range(10_000):
        here, kept = disk(), dict(before)
        here.crash_at(operation)
        try:
            life(here, kept)
        except Crash:
            yield here, kept
        else:
            return


@pytest.mark.parametrize("death", DEATHS)
def test_a_result_that_was_kept_stands_whatever_dies_at_any_operation(death: str) -> None:
    """Lives that die at each operation one after the other, and then the machine: what was kept or was found at a
    start is there, each once, and all others can be kept. Covers: I67, I68, S63.
    """
    for died, kept in crashes(new_disk, {}):
        again = DEATHS[death](died)
        found = OutputFile(again, OUT).open()
        assert kept.keys() <= found.standing.keys()
        promised = dict.fromkeys(found.standing)
        found.close()
        for survives in (Survives.NOTHING, Survives.NAMES):
            lost_power = again.after_crash(survives)
            left = OutputFile(lost_power, OUT).open()
            assert promised.keys() <= left.standing.keys(), f"{death}, then {survives}: {died.log}"
            left.close()
            life(lost_power, dict(kept))
            lines = [lost_power.read(path).splitlines() for path in (OUT, left.failures)]
            assert [[parse(line)["_ng_rollout_id"] for line in each] for each in lines] == [
                ["0-0", "2-0"],
                ["1-0", "3-0"],
            ]


@pytest.mark.parametrize("death", ["killed", "nothing", "some 1"])
def test_a_start_that_dies_at_any_operation_changes_nothing_of_what_stands(death: str) -> None:
    """A torn line is taken away once, by whichever start comes to its end. Covers: I68."""

    def torn() -> CrashDisk:
        disk, kept = new_disk(), dict[str, Result]()
        life(disk, kept)
        with disk.append(OUT) as file:
            file.write(b'{"reward": 1, "_ng')
        return disk

    everything = {each.rollout_id: each for each in RESULTS}
    struck = 0
    for died, _ in crashes(torn, everything):
        life(DEATHS[death](died), dict(everything))
        struck += 1
    assert struck >= 3


@pytest.mark.parametrize("operation", ["create", "fsync_dir", "truncate", "write", "fsync"])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_result_that_could_not_be_kept_does_not_stand(operation: str, number: int) -> None:
    """An operation fails once: the error is told; kept again, the result is durable. Given up, the next life does not
    take the half of it for a result (S57, S63).
    """
    for again in (False, True):
        disk, failed = new_disk(), [0]

        def fault(asked: str, path: str, failed: list[int] = failed) -> None:
            if asked == operation and not path.endswith(".lock"):
                failed[0] += 1
                if failed[0] == number + 1:
                    raise OSError(errno.EIO, "Input/output error", path)

        disk.fault = fault
        output, refused = OutputFile(disk, OUT).open(), []
        for result in RESULTS:
            try:
                output.keep(result)
            except OSError:
                refused.append(result)
        for result in refused if again else ():
            assert output.keep(result) == result
        disk.fault = lambda operation, path: None
        standing = {each.rollout_id for each in RESULTS if again or each not in refused}
        found = OutputFile(disk.after_kill(), OUT).open()
        assert set(found.standing) == standing
        found.close()
        left = OutputFile(disk.after_crash(Survives.NOTHING), OUT).open()
        assert set(left.standing) == standing


def test_a_file_that_cannot_be_synced_is_not_opened() -> None:
    """Nothing of it is taken for durable; its lock is free again."""
    disk = new_disk()
    life(disk, {})

    def fault(operation: str, path: str) -> None:
        if operation == "fsync":
            raise OSError(errno.EIO, "Input/output error", path)

    disk.fault = fault
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error") as caught:
            OutputFile(disk, OUT).open()
        assert not isinstance(caught.value, BlockingIOError | OutputError)


def test_a_file_may_be_a_link(tmp_path: Path) -> None:
    """On a real disk: what is behind it is read, synced and written."""
    disk = Seams().disk
    there = tmp_path / "elsewhere"
    there.mkdir()
    for name in ("results.jsonl", "results_failures.jsonl"):
        (there / name).touch()
        (tmp_path / name).symlink_to(there / name)
    for again in (False, True):
        output = OutputFile(disk, tmp_path / "results.jsonl").open()
        assert len(output.standing) == again * len(RESULTS)
        for result in RESULTS:
            assert output.keep(result).body == result.body
        output.close()
