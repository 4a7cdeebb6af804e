"""Collecting: tasks in, each result once in the output, whatever dies when; over real servers in memory."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from participants import Aborted, Dispatch, Disposition, Published, Recovered, Result
from participants.collecting import command
from participants.collecting.collector import Ask, Collector, CollectSettings, Ending, Watcher, collect
from participants.collecting.output import OURS, OutputError, OutputFile, from_row, is_failure, to_row
from participants.collecting.progress import Bar, Lines, Numbers, showing, turns_of
from participants.collecting.tasks import InputError, Tasks, read_tasks
from participants.coordination.coordinator import CoordinatorSettings
from participants.coordination.outcomes import Restarted
from participants.records.records import Receipt
from participants.serving.testing import Call, Fault, InMemoryNetwork
from statecore.cli import UsageError
from statecore.seams import FixedClock, MemoryDisk
from statecore.wire import digest, parse
from tests.test_toy_trainer import policy
from tests.whole_job import NAMES, WholeJob

OUT = Path("/out/results.jsonl")
SETTINGS = CollectSettings(concurrency=3, every_s=1.0, timeout_s=20.0)


def lines(*tasks: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in tasks)


def counting(number: int, turns: int = 3) -> Tasks:
    tasks = [{"question": f"q{each}", "turns": turns} for each in range(number)]
    return read_tasks(lines(*tasks), target="env")


async def nobody() -> Ask:
    await trio.sleep_forever()
    raise AssertionError


@define(eq=False)
class Told(Watcher):
    """What the watcher of one life was told."""

    outcomes: list[Published | Aborted] = field(factory=list)
    results: list[str] = field(factory=list)
    lives: list[Recovered] = field(factory=list)
    restarts: list[Restarted] = field(factory=list)

    def recovered(self, recovered: Recovered) -> None:
        self.lives.append(recovered)

    def result(self, result: Result) -> None:
        self.results.append(result.rollout_id)

    def checkpoint(self, outcome: Published | Aborted) -> None:
        self.outcomes.append(outcome)

    def restarted(self, report: Restarted) -> None:
        self.restarts.append(report)


@define(eq=False)
class Collecting:
    """One job over all its lives: the servers, the disk, the output."""

    job: WholeJob
    tasks: Tasks
    settings: CollectSettings = SETTINGS
    told: Told = field(factory=Told)

    def __attrs_post_init__(self) -> None:
        if self.job.disk.kind(OUT.parent) is None:
            self.job.disk.mkdir(OUT.parent)

    async def life(self, asked: Any = nobody) -> Ending:
        """A life from its start to its end."""
        self.job.disk.release()  # of an earlier life's process
        output = OutputFile(self.job.disk, OUT).open()
        collector = Collector(self.tasks, output, self.job.disk, self.told)
        self.job.trainer_kind = lambda _disk: collector  # type: ignore[assignment]
        try:
            async with self.job.coordinator(settings=CoordinatorSettings(max_running=self.settings.concurrency)) as job:
                return await collect(job, collector, self.settings, asked)
        finally:
            output.close()

    def rows(self, path: Path = OUT) -> list[dict[str, Any]]:
        if self.job.disk.kind(path) is None:
            return []
        return [parse(line) for line in self.job.disk.read(path).splitlines()]

    def answers(self) -> dict[str, Any]:
        """What the output says of each rollout, without what differs from life to life; each is there once."""
        rows = self.rows()
        assert len({row["_ng_rollout_id"] for row in rows}) == len(rows)
        return {row["_ng_rollout_id"]: (row["reward"], row["messages"]) for row in rows}


def run(test: Any, tasks: Tasks, **options: Any) -> None:
    async def main() -> None:
        async with InMemoryNetwork() as network:
            await test(Collecting(WholeJob(network, {"policy_model": policy}), tasks, **options))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# --- tasks


def test_tasks_are_numbered_by_line_and_repeat_and_go_where_the_line_says() -> None:
    """Blank lines do not count; a line's own server is taken before the target; ids are Gym's."""
    text = b'{"a": 1}\n\n{"agent_ref": {"name": "other"}}\n'
    text += b'{"_ng_environment_server": "third", "task_id": {}, "task_input": 7}'
    tasks = read_tasks(text, repeats=2, target="env")
    assert len(tasks) == 6
    first, second, last = tasks.dispatch(0), tasks.dispatch(3), tasks.dispatch(5)
    assert (first.rollout_id, first.target) == ("0-0", "env")
    assert first.task == {"a": 1, "_ng_task_index": 0, "_ng_rollout_index": 0}
    assert (second.rollout_id, second.target, second.data_position) == ("1-1", "other", {"task": 1, "repeat": 1})
    assert (last.rollout_id, last.target, last.task) == ("2-1", "third", {"task_id": {}, "task_input": 7})
    assert len(read_tasks(text, limit=1, target="env")) == 1
    assert tasks.targets == ("env", "other", "third")
    relayed = read_tasks(text, target="env", relays={"other": "agent", "env": "agent"})
    assert relayed.targets == ("agent", "third")
    assert relayed.dispatch(1).target == "agent"


@pytest.mark.parametrize(
    "text, options, problem",
    [
        (b"", {}, "no task"),
        (b"\n \n", {}, "no task"),
        (b'{"a": 1}\n{"a": ', {}, "task 2 is no JSON"),
        (b"[1]", {}, "task 1 is no JSON object"),
        (b'{"a": 1}', {"target": ""}, "task 1 names no server"),
        (b'{"_ng_rollout_id": "x"}', {}, "task 1 has _ng_rollout_id"),
        (b'{"a": 1}', {"repeats": 0}, "at least once"),
        (b'{"a": 1}', {"limit": 0}, "at least one"),
    ],
)
def test_tasks_that_cannot_be_run_are_refused_by_line(text: bytes, options: dict[str, Any], problem: str) -> None:
    """The message says which line, and why."""
    with pytest.raises(InputError, match=problem):
        read_tasks(text, **({"target": "env"} | options))


# --- rows

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["reward", OURS, "_ng_task_index", "_ng_rollout_id", "_ng_task_id", "agent_ref", "result", "failure", "episode_id"]
)
BODIES = JSON | st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON, max_size=3), max_size=6)


def result_of(body: Any, task: Any = None, rollout_id: str = "0-0") -> Result:
    receipt = Receipt(rollout_id=rollout_id, attempt=1, epoch=2, result_identity="ab" * 16, result_sha256=digest(body))
    dispatch = Dispatch(rollout_id, {"a": 1} if task is None else task, "env", data_position={"task": 0, "repeat": 0})
    return Result(rollout_id, 1, body, receipt, dispatch)


@settings(max_examples=40, deadline=None)
@given(BODIES)
def test_every_answer_comes_back_from_its_row(body: Any) -> None:
    """Whatever keys it has, and whatever it is: the row gives back the answer and its receipt."""
    result = result_of(body)
    row = parse(json.dumps(to_row(result)))
    assert from_row(row) == (result.receipt, body)
    assert (row["_ng_rollout_id"], row["_ng_task_index"], row["_ng_attempt_index"]) == ("0-0", 0, 1)


def test_a_row_is_what_gyms_collector_writes() -> None:
    """An episode's result is unwrapped, its task id kept, its server named; what was given up says so."""
    body = {"episode_id": {"rollout_id": "0-0", "attempt": 1}, "task_id": {"taskset": "t"}, "result": {"reward": 1.0}}
    row = to_row(result_of(body, {"task_id": {"taskset": "t"}, "task_input": {}}))
    assert row["reward"] == 1.0
    assert row["_ng_task_id"] == {"taskset": "t"}
    assert row["_ng_environment_server"] == "env"
    assert not is_failure(row)
    body = {"episode_id": {}, "task_id": {}, "failure": {"failure_reason": "no sandbox", "terminal": True}}
    row = to_row(result_of(body))
    assert is_failure(row)
    assert (row["_ng_failure_message"], row["_ng_failure_terminal"]) == ("no sandbox", True)
    assert to_row(result_of({"reward": 0}, {"agent_ref": {"name": "x"}}))["agent_ref"] == {"name": "x"}


# --- the file


def output() -> OutputFile:
    disk = MemoryDisk()
    disk.mkdir(OUT.parent)
    return OutputFile(disk, OUT)


def test_what_stands_is_never_written_again() -> None:
    """A second result for a rollout changes nothing; the first comes back, also in another life (I68, S63)."""
    first = output()
    first.open()
    assert first.keep(result_of({"reward": 1})) == result_of({"reward": 1})
    first.close()
    again = OutputFile(first.disk, OUT).open()
    standing = again.keep(result_of({"reward": 2}))
    assert standing.body == {"reward": 1}
    assert standing.receipt == result_of({"reward": 1}).receipt
    again.keep(result_of({"episode_id": {}, "failure": {}}, rollout_id="1-0"))
    assert again.keep(result_of({"reward": 5}, rollout_id="1-0")).body == {"episode_id": {}, "failure": {}}
    assert len(first.disk.read(OUT).splitlines()) == 1
    assert len(first.disk.read(OUT.with_name("results_failures.jsonl")).splitlines()) == 1


def test_the_end_of_a_line_that_a_crash_tore_is_taken_away() -> None:
    """Also when it is all there is; what is whole stays."""
    for whole in (0, 1, 2):
        file = output().open()
        for each in range(whole):
            file.keep(result_of({"reward": each}, rollout_id=f"{each}-0"))
        file.close()
        with file.disk.append(OUT) as torn:
            torn.write(b'{"reward": 1, "_ng')
        again = OutputFile(file.disk, OUT).open()
        assert (again.torn, len(again.standing)) == (1, whole)
        again.keep(result_of({"reward": 9}, rollout_id="9-0"))
        again.close()
        assert len(OutputFile(file.disk, OUT).open().standing) == whole + 1


def test_one_collector_writes_at_a_time() -> None:
    """The second is refused until the first has ended; it has changed nothing."""
    file = output().open()
    with pytest.raises(OutputError, match="another collector"):
        OutputFile(file.disk, OUT).open()
    file.keep(result_of({"reward": 1}))
    file.close()
    assert len(OutputFile(file.disk, OUT).open().standing) == 1


@pytest.mark.parametrize(
    "content, problem",
    [
        (b'{"reward": 1}\n', "line 1 was not written here"),
        (b"[1]\n", "line 1 was not written here"),
        (b"nothing\n", "line 1 was not written here"),
    ],
)
def test_a_file_of_somebody_else_is_refused_and_stays_as_it_is(content: bytes, problem: str) -> None:
    """Nothing is appended to it, and nothing taken away."""
    file = output()
    with file.disk.create(OUT) as there:
        there.write(content)
    with pytest.raises(OutputError, match=problem):
        file.open()
    assert file.disk.read(OUT) == content
    with pytest.raises(OutputError):
        OutputFile(file.disk, OUT.parent / "missing" / "results.jsonl").open()
    with pytest.raises(OutputError, match="is no file"):
        OutputFile(file.disk, OUT.parent).open()


def test_a_rollout_that_is_there_twice_is_told() -> None:
    """No answer is chosen where there are two."""
    file = output().open()
    file.keep(result_of({"reward": 1}))
    file.close()
    with file.disk.append(OUT) as twice:
        twice.write(file.disk.read(OUT))
    with pytest.raises(OutputError, match="line 2: rollout 0-0 is there twice"):
        OutputFile(file.disk, OUT).open()


def test_a_full_disk_leaves_whole_lines() -> None:
    """A write that fails half-way is an error, and the next one is written where it began."""

    class Full(MemoryDisk):
        full = False

        def append(self, path: Any) -> Any:
            file, write = super().append(path), None
            write = file.write

            def some(data: bytes) -> None:
                if self.full:
                    write(data[:7])
                    raise OSError(28, "No space left on device")
                write(data)

            file.write = some  # type: ignore[method-assign]
            return file

    disk = Full()
    disk.mkdir(OUT.parent)
    file = OutputFile(disk, OUT).open()
    file.keep(result_of({"reward": 1}))
    disk.full = True
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.keep(result_of({"reward": 2}, rollout_id="1-0"))
    disk.full = False
    file.keep(result_of({"reward": 2}, rollout_id="1-0"))
    assert [parse(line)["reward"] for line in disk.read(OUT).splitlines()] == [1, 2]


# --- collections


def test_a_collection_has_each_task_once() -> None:
    """Ten tasks, three at a time, a checkpoint each second; the last one holds every result."""

    async def test(here: Collecting) -> None:
        ending = await here.life()
        assert not ending.stopped
        assert not ending.lost
        assert ending.checkpoint.published
        assert sorted(here.answers()) == sorted(f"{each}-0" for each in range(10))
        assert sorted(here.told.results) == sorted(here.answers())
        assert len(here.told.outcomes) > 1

    run(test, counting(10))


def test_a_collection_that_was_stopped_goes_on_where_it_stood() -> None:
    """Stop is a checkpoint and an end; the next start redoes no finished turn, and the end is the undisturbed run's."""

    async def test(here: Collecting) -> None:
        asked: list[Ask] = [Ask.STOP, Ask.CHECKPOINT]

        async def ask() -> Ask:
            await trio.sleep(0.9)
            if not asked:
                await trio.sleep_forever()
            return asked.pop()

        ending = await here.life(ask)
        assert ending.stopped
        assert [each.published for each in here.told.outcomes] == [True, True]
        some = here.answers()
        assert len(some) < 10
        assert not (await here.life()).stopped
        assert here.told.lives[1].count(Disposition.CONTINUE) > 0
        assert len(here.answers()) == 10
        assert some.items() <= here.answers().items()
        turns = [each for row in here.answers().values() for each in row[1] if each["role"] == "assistant"]
        assert len(turns) == 30

    run(test, counting(10), settings=CollectSettings(concurrency=3, every_s=None, timeout_s=20.0))


def test_a_collection_that_is_over_does_nothing_when_it_is_started_again() -> None:
    """No task runs, and the output stays as it is."""

    async def test(here: Collecting) -> None:
        await here.life()
        before = here.job.disk.read(OUT)
        assert not (await here.life()).lost
        assert here.job.disk.read(OUT) == before

    run(test, counting(3))


def test_each_task_is_once_in_the_output_whatever_dies_when() -> None:
    """Everything dies at one call of two lives, for calls all over the job; the rows equal the undisturbed run's."""

    async def undisturbed(here: Collecting) -> None:
        network = here.job.network
        seen = 0

        def count(_call: Call) -> Fault | None:
            nonlocal seen
            seen += 1
            return None

        network.faults = count
        await here.life()
        expected.update(here.answers())
        calls.append(seen)

    async def disturbed(here: Collecting, *numbers: int) -> None:
        for number in numbers:
            with trio.CancelScope() as scope:
                seen = 0

                def strike(_call: Call, number: int = number, scope: trio.CancelScope = scope) -> Fault | None:
                    nonlocal seen
                    seen += 1
                    if seen == number:
                        scope.cancel()
                        for name in NAMES:
                            if name in here.job.network.up:
                                here.job.network.kill(name)
                    return None

                here.job.network.faults = strike
                await here.life()
        here.job.network.faults = None
        ending = await here.life()
        assert not ending.lost, f"died at calls {numbers}"
        assert here.answers() == expected, f"died at calls {numbers}"

    expected: dict[str, Any] = {}
    calls: list[int] = []
    run(undisturbed, counting(6))
    (total,) = calls
    for step in range(12):
        numbers = (1 + step * total // 12, 1 + (step * 7 % 12) * total // 12)

        async def test(here: Collecting, numbers: tuple[int, ...] = numbers) -> None:
            await disturbed(here, *numbers)

        run(test, counting(6))


def test_the_output_or_the_checkpoint_of_other_tasks_is_refused() -> None:
    """Nothing runs: neither what another input has written is taken for this one's, nor is it written over."""

    async def test(here: Collecting) -> None:
        await here.life()
        before = here.job.disk.read(OUT)
        here.tasks = counting(3, turns=4)
        with pytest.raises(OutputError, match="a result of another task as 0-0"):
            await here.life()
        here.tasks = counting(2)
        with pytest.raises(OutputError, match="as 2-0"):
            await here.life()
        assert here.job.disk.read(OUT) == before
        here.job.disk.unlink(OUT)
        with pytest.raises(InputError, match="of other tasks"):
            await here.life()
        here.tasks = counting(3)
        with pytest.raises(OutputError, match="lacks 3 results that the checkpoint counts"):
            await here.life()

    run(test, counting(3))


def test_a_server_that_dies_is_a_pause() -> None:
    """The collection goes on by itself, and says that it happened."""

    async def test(here: Collecting) -> None:
        async def kill() -> None:
            await trio.sleep(1.5)
            here.job.network.kill("tools")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            ending = await here.life()
        assert not ending.lost
        assert len(here.told.restarts) == 1
        assert len(here.answers()) == 10

    run(test, counting(10))


# --- what a person sees


@pytest.mark.parametrize(
    "body, turns",
    [
        ({"messages": [{"role": "user"}, {"role": "assistant"}, {"role": "tool"}, {"role": "assistant"}]}, 2),
        ({"response": {"output": []}}, 0),
        (
            {
                "response": {
                    "output": [
                        {"type": "reasoning"},
                        {"type": "function_call"},
                        {"type": "function_call_output"},
                        {"type": "function_call_output"},
                        {"type": "message"},
                    ]
                }
            },
            2,
        ),
        ({"episode_id": {}, "result": {"messages": [{"role": "assistant"}]}}, 1),
        ({"response": None}, 0),
        ([1], 0),
        (None, 0),
    ],
)
def test_turns_are_counted_in_every_form_of_answer(body: Any, turns: int) -> None:
    """A chat, Gym's response, an episode; what is none of them counts nothing."""
    assert turns_of(body) == turns


def test_the_lines_say_how_far_it_is_and_how_long_it_takes() -> None:
    """Nothing of speed before there is any; then results, rate, time left, turns, checkpoints, restarts."""
    clock = FixedClock(1000.0)
    numbers = Numbers(200, clock, before=20)
    assert numbers.story() == "20 of 200 results, 0 checkpoints"
    out = io.StringIO()
    lines = Lines(numbers, out)
    for _ in range(40):
        lines.result(result_of({"messages": [{"role": "assistant"}] * 3}))
    published = Published(checkpoint_id="ck-000001-000001", counts={}, phases=(), seconds=0.5)
    lines.checkpoint(published)
    lines.checkpoint(Aborted(checkpoint_id="ck-000001-000002", reason="slow", phase="preparing"))
    clock.advance(20.0)
    assert numbers.story() == (
        "60 of 200 results, 2.0 a second, about 70 s left, 120 turns, 1 checkpoint, 1 that failed"
    )
    clock.advance(4000.0)
    lines.result(result_of({}))
    told = out.getvalue().splitlines()
    assert [each.split(":")[0] for each in told[:2]] == ["ck-000001-000001", "ck-000001-000002"]
    assert told[2].startswith("61 of 200 results, 0.6 a minute, about 3 h 47 min left")


def test_without_a_terminal_there_are_lines_and_with_one_a_bar() -> None:
    """The bar shows the same numbers; a line for each checkpoint stands above it."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    numbers = Numbers(2, FixedClock(0.0))
    for out, plain, kind in [(io.StringIO(), False, Lines), (Terminal(), True, Lines), (Terminal(), False, Bar)]:
        with showing(numbers, out, plain=plain) as watcher:
            assert type(watcher) is kind
            watcher.checkpoint(Published(checkpoint_id="ck-000001-000001", counts={}, phases=(), seconds=0.5))
            watcher.result(result_of({"reward": 1}))
        assert "ck-000001-000001" in out.getvalue()


def test_the_last_lines_say_what_is_missing_and_how_to_go_on() -> None:
    """All there: 0. Stopped: 3. Some without a result: 1, each of them named with the reason."""
    fine = Published(checkpoint_id="ck", counts={}, phases=(), seconds=0.1)
    failed = Aborted(checkpoint_id="ck", reason="slow", phase="preparing")
    cases = [
        (Ending(stopped=False, lost={}, checkpoint=fine), 20, 0, "20 of 20 results"),
        (Ending(stopped=True, lost={}, checkpoint=fine), 20, 0, "20 of 20 results"),
        (Ending(stopped=True, lost={}, checkpoint=failed), 19, 3, "the last checkpoint failed"),
        (Ending(stopped=True, lost={}, checkpoint=fine), 19, 3, "stopped with 1 task left"),
        (Ending(stopped=False, lost={f"{n}-0": "no tools" for n in range(12)}, checkpoint=fine), 8, 1, "and 2 more"),
        (Ending(stopped=False, lost={"7-0": "no tools"}, checkpoint=fine), 19, 1, "no result: 7-0: no tools"),
    ]
    for ending, done, code, says in cases:
        out = io.StringIO()
        assert command.told(ending, Lines(Numbers(20, FixedClock(0.0), before=done), out), out) == code
        assert says in out.getvalue()


@pytest.mark.parametrize(
    "wrong",
    [
        ["--repeats", "0"],
        ["--concurrency", "x"],
        ["--every", "-1"],
        ["--every", "inf"],
        ["--timeout", "0"],
        ["--keep", "1"],
    ],
)
def test_a_wrong_command_line_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """By argparse, with the option's name."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    needed = ["--input", "i", "--output", "o", "--checkpoints", "c"]
    assert parser.parse_args(needed).concurrency == 32
    with pytest.raises(SystemExit):
        parser.parse_args([*needed, *wrong])
    assert wrong[0] in capsys.readouterr().err


def test_tasks_that_cannot_be_read_or_go_nowhere_are_a_wrong_command_line(tmp_path: Path) -> None:
    """Before any server is started, or any file is made."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    (tmp_path / "tasks").write_bytes(b'{"a": 1}\n')
    for name, says in [("missing", "No such file"), ("tasks", "names no server")]:
        args = parser.parse_args(
            ["--input", str(tmp_path / name), "--output", str(tmp_path / "o"), "--checkpoints", str(tmp_path / "c")]
        )
        with pytest.raises(UsageError, match=says):
            command.run(args, NoLauncher(), {"env"}, "token")
    args.target = "other"
    with pytest.raises(UsageError, match="tasks go to other"):
        command.run(args, NoLauncher(), {"env"}, "token")
    assert [each.name for each in tmp_path.iterdir()] == ["tasks"]


class NoLauncher:
    """Never asked."""

    async def start(self, epoch: int) -> dict[str, str]:
        raise AssertionError(epoch)

    async def stop(self) -> None:
        raise AssertionError
