"""A journal in files: bounded, rotated, never in the way, and honest about what it lost."""

from __future__ import annotations

import errno
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from participants.journals.files import FileJournal, JournalFiles, file_name
from participants.journals.reading import files_in
from participants.journals.replaying import replayed
from participants.servers.agent import Agent
from participants.settings import Seams, Settings, SettingsError
from statecore.seams import FixedClock, MemoryDisk, SeededEntropy, SystemDisk
from tests.small_job import TOKEN
from tests.whole_job import WholeJob, run

HOME = Path("/journals")
LINE = b"0123456789\n"


class Stubborn(MemoryDisk):
    """A disk that refuses to take anything while it is `full`."""

    full = False

    def create(self, path: Any) -> Any:
        return _Filling(self, super().create(path))


class _Filling:
    def __init__(self, disk: Stubborn, file: Any) -> None:
        self._disk, self._file = disk, file

    def write(self, data: bytes) -> None:
        if self._disk.full:
            self._file.write(data[:3])
            raise OSError(errno.ENOSPC, "no space left on device")
        self._file.write(data)

    def close(self) -> None:
        self._file.close()


def held(disk: Any, directory: Path = HOME) -> dict[str, bytes]:
    return {name: disk.read(directory / name) for name in disk.listdir(directory)}


def test_files_are_bounded_and_the_oldest_goes() -> None:
    """No file is larger than its bound, each ends with a whole line, and so many are kept."""
    disk = MemoryDisk()
    files = JournalFiles(disk, HOME, "agent", file_bytes=25, files_kept=2)
    for _ in range(7):
        files.write(LINE)
    files.close()
    assert held(disk) == {file_name("agent", 3): LINE * 2, file_name("agent", 4): LINE}
    assert (files.lost, files.problem) == (0, "")


def test_a_full_disk_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """They are counted and said once; a torn end begins another file, and no older file goes for one that is empty."""
    disk = Stubborn()
    files = JournalFiles(disk, HOME, "agent", file_bytes=100, files_kept=1)
    with caplog.at_level(logging.ERROR, "statecore.journal"):
        files.write(LINE)
        disk.full = True
        for _ in range(5):
            files.write(LINE)
        assert held(disk) == {file_name("agent", 1): LINE + LINE[:3]}, "the beginning is still there"
        disk.full = False
        files.write(LINE)
        files.close()
    assert held(disk) == {file_name("agent", 2): LINE}
    assert (files.lost, len(caplog.records)) == (5, 1)
    assert "no space left" in files.problem and "no space left" in caplog.text


def test_a_directory_that_cannot_be_made_is_said() -> None:
    """Serving goes on without a journal."""
    disk = MemoryDisk()
    disk.create("/journals").close()
    files = JournalFiles(disk, HOME, "agent")
    files.write(LINE)
    assert (files.lost, bool(files.problem)) == (1, True)


def test_a_slow_disk_never_holds_up_the_writer(tmp_path: Path) -> None:
    """While the disk hangs lines wait up to a bound; what is beyond it is lost, what waited is written in the end."""
    goes_on = threading.Event()

    class Hanging(SystemDisk):
        def create(self, path: Any) -> Any:
            assert goes_on.wait(30)
            return super().create(path)

    files = JournalFiles(Hanging(), tmp_path / "deep" / "down", "agent", waiting_bytes=2 * len(LINE))
    for _ in range(10):
        files.write(LINE)  # returns at once: else this test would never come to the end
    assert files.lost >= 10 - 4, "two wait, and the thread may have taken two before"
    assert files.problem == "the disk is slower than the journal grows"
    goes_on.set()
    files.close()
    files.write(LINE)
    written = held(SystemDisk(), tmp_path / "deep" / "down")
    assert list(written) == [file_name("agent", 1)]
    assert len(written[file_name("agent", 1)]) + len(LINE) * files.lost == 11 * len(LINE)
    assert files.problem == "the journal is closed"


def test_a_process_without_room_for_a_thread_loses_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line tries again; nothing is raised to who writes it."""

    def no_room(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    files = JournalFiles(SystemDisk(), tmp_path, "agent")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_room)
        files.write(LINE)
    assert (files.lost, "can't start new thread" in files.problem) == (1, True)
    files.write(LINE)
    files.close()
    assert held(SystemDisk(), tmp_path) == {file_name("agent", 1): LINE}


def test_lost_lines_are_seen_by_their_numbers() -> None:
    """The next line's number says how many are missing before it."""
    disk = Stubborn()
    journal = FileJournal(disk, FixedClock(1.0), HOME, "agent")
    for full in (False, True, True, False):
        disk.full = full
        journal.record("lamp", "off", "Pressed", "on", {})
    journal.close()
    whole = [each for data in held(disk).values() for each in data.splitlines(keepends=True) if each.endswith(b"\n")]
    assert [json.loads(each)["seq"] for each in whole] == [1, 4]
    assert journal.state() == {"lines": 4, "lost": 2, "problem": "[Errno 28] no space left on device"}


# --- a server's own


def settings(**more: Any) -> Settings:
    return Settings(enabled=True, control_auth_token=TOKEN, root=Path("/job"), **more)


def test_a_server_keeps_a_journal_if_a_directory_is_set() -> None:
    """One series per process and incarnation; its status says how it stands. Off, there is neither."""
    disk = MemoryDisk()
    seams = Seams(FixedClock(5.0), disk, SeededEntropy(1))
    agent = Agent("my_agent", settings(journal=HOME), seams=seams)
    agent.admission.close()
    agent.admission.open()
    assert list(held(disk)) == [file_name(f"my_agent-{agent.incarnation}", 1)]
    assert agent.participant is not None
    assert agent.participant.status()["journal"] == {"lines": 2, "lost": 0, "problem": ""}
    for without in (settings(), Settings(journal=HOME)):
        quiet = Agent("other", without, seams=seams)
        quiet.admission.close()
        assert quiet.participant is None or "journal" not in quiet.participant.status()
    assert len(held(disk)) == 1


def test_the_lines_of_a_server_that_has_stopped_are_on_the_disk(tmp_path: Path) -> None:
    """What still waited for it is there when the lifespan is over."""
    seams = Seams(FixedClock(5.0), SystemDisk(), SeededEntropy(1))
    agent = Agent("my_agent", settings(journal=tmp_path), seams=seams)
    agent.admission.close()
    trio.run(agent.stopped)
    (data,) = files_in(SystemDisk(), tmp_path).values()
    assert data.count(b"\n") == 1 and b"CloseRequested" in data


def test_a_coordinator_finds_the_directory_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As servers do; each life has a series of its own, and together they are allowed."""
    monkeypatch.setenv("STATECORE_JOURNAL", str(HOME))
    job_disk = MemoryDisk()

    async def two_lives(job: WholeJob) -> None:
        for _ in range(2):
            async with job.coordinator() as coordinator:
                await coordinator.recover()
                assert (await coordinator.checkpoint(timeout_s=60)).published

    run(two_lives, job_disk)
    done = replayed(files_in(job_disk, HOME))
    assert done.allowed and done.files == 2
    assert {name for name, _ in done.processes} == {"coordinator"}
    assert done.tables["transaction"].machines == 2, "a checkpoint in each life"


def test_a_journal_of_no_size_is_refused() -> None:
    """A file must hold a line, and one file must be kept."""
    for bad in ({"journal_file_bytes": 100}, {"journal_files": 0}):
        with pytest.raises(SettingsError, match="a journal needs at least one file"):
            Agent("my_agent", settings(journal=HOME, **bad))


def test_the_directory_comes_from_the_environment() -> None:
    """As every setting."""
    found = Settings.from_env({"STATECORE_JOURNAL": "/journals", "STATECORE_JOURNAL_FILES": "3"})
    assert (found.journal, found.journal_files) == (HOME, 3)
