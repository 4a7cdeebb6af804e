"""What the demo shows: a rollout's turns through a crash, lines for a log, a live picture that fits its terminal."""

from __future__ import annotations

import io
import re

import pytest
import rich.console
import trio
import trio.testing

from participants.coordination.recovery import Verdict
from participants.demo.counting import NOTHING_HELD, Held
from participants.demo.lines import Event, Line
from participants.demo.picture import Happened, Picture, Row, Tone
from participants.demo.plan import Options, make_plan
from participants.demo.view import drawn, plain_line, plain_rows, showing
from participants.machines.transaction import TransactionState
from participants.records.records import Disposition


class Time:
    """Seconds that stand still."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def picture_of(**options: int) -> tuple[Picture, Time]:
    time = Time()
    options = {"rollouts": 4, "turns": 4, **options}
    return Picture(make_plan(Options(**options)), now=time, title="statecore demo: a title"), time  # type: ignore[arg-type]


def turn(name: str, number: int, epoch: int = 1) -> Line:
    return Line(event=Event.TURN, server="agent", epoch=epoch, ts=0.0, rollout=name, attempt=0, turn=number)


def result(name: str, reward: float, epoch: int = 1) -> Line:
    return Line(event=Event.RESULT, server="environment", epoch=epoch, ts=0.0, rollout=name, attempt=0, reward=reward)


def verdict(name: str, disposition: Disposition, attempt: int = 0) -> Verdict:
    return Verdict(name, disposition, attempt, attempt + 1)


def cells(row: Row) -> str:
    return " ".join(row.cells)


def stands(picture: Picture) -> bool:
    """Asked anew each time, whatever a type checker remembers."""
    return picture.stands


def crashed() -> Picture:
    """p0_g0 did 3 of 4 turns, 2 of them held; p0_g1 has its result held; p0_g2 did one turn, not held."""
    picture, time = picture_of()
    picture.epoch = 1
    for line in (*(turn("p0_g0", n) for n in (1, 2, 3)), *(turn("p0_g1", n) for n in (1, 2, 3, 4)), turn("p0_g2", 1)):
        picture.saw(line)
    picture.saw(result("p0_g1", -4.5))
    time.now += 2.0
    picture.killed(Held({"p0_g0": 2, "p0_g1": 4}, frozenset({"p0_g1"})))
    return picture


def test_a_row_through_a_crash() -> None:
    """Finished turns are held or lost by the crash; lost ones are redone; a held one that runs again is broken."""
    picture = crashed()
    row = picture.rows["p0_g0"]
    assert cells(row) == "held held lost open"
    assert (row.status, picture.rows["p0_g1"].reward, picture.rows["p0_g2"].status) == ("on disk", -4.5, "lost")
    picture.saw(turn("p0_g0", 4))
    picture.saw(turn("p0_g0", 1))
    assert cells(row) == "held held lost open", "what the first life still does changes nothing"
    picture.epoch = 2
    picture.restored([verdict("p0_g0", Disposition.CONTINUE), verdict("p0_g2", Disposition.FRESH)])
    assert (row.status, picture.rows["p0_g2"].status) == ("goes on, attempt 1", "starts over, attempt 1")
    picture.saw(turn("p0_g0", 3, epoch=2))
    picture.saw(turn("p0_g0", 4, epoch=2))
    assert cells(row) == "held held redone done"
    picture.saw(turn("p0_g0", 1, epoch=2))
    assert cells(row) == "broken held redone done"
    picture.saw(turn("p0_g2", 1, epoch=2))
    picture.saw(turn("p0_g2", 2, epoch=2))
    assert cells(picture.rows["p0_g2"]) == "redone done open open"
    picture.saw(turn("nobody", 1, epoch=2))
    assert picture.finished_turns == 5


def test_phases_have_their_times() -> None:
    """Each phase lasts until the next begins; another checkpoint begins anew; parked is who waits for one."""
    picture, time = picture_of()
    picture.entered("ck-1", TransactionState.FREEZING)
    time.now += 0.25
    picture.entered("ck-1", TransactionState.PREPARING)
    assert not stands(picture)
    time.now += 0.5
    picture.entered("ck-1", TransactionState.COMMITTING)
    assert stands(picture)
    assert picture.phases == [(TransactionState.FREEZING, 0.25), (TransactionState.PREPARING, 0.5)]
    picture.left_checkpoint()
    assert not stands(picture)
    picture.entered("ck-2", TransactionState.FREEZING)
    assert (picture.checkpoint_id, picture.phases) == ("ck-2", [])


@pytest.mark.trio
async def test_whoever_waits_for_turns_is_woken(autojump_clock: trio.testing.MockClock) -> None:
    """A condition about the picture is looked at again at every line and when all rollouts have ended."""
    picture, _ = picture_of()
    picture.epoch = 1
    woken: list[str] = []

    async def wait(name: str, turns: int) -> None:
        await picture.until(lambda: picture.ended or picture.finished_turns >= turns)
        woken.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "two", 2)
        nursery.start_soon(wait, "many", 99)
        for number in (1, 2):
            await trio.testing.wait_all_tasks_blocked()
            assert woken == []
            picture.saw(turn("p0_g0", number))
        await trio.testing.wait_all_tasks_blocked()
        assert woken == ["two"]
        picture.rollouts_ended()
    assert woken == ["two", "many"]


def test_lines_for_a_log() -> None:
    """A character for each turn, a legend, and the time before everything that happened."""
    rows = list(plain_rows(crashed()))
    assert rows[0] == "  p0_g0  Taxi-v4  ==x.  on disk"
    assert rows[1] == "  p0_g1  Taxi-v4  ====  reward -4.5"
    assert rows[2] == "  p0_g2  Taxi-v4  x...  lost"
    assert rows[3] == "  p0_g3  Taxi-v4  ...."
    assert rows[4] == "  # finished  = held by the checkpoint  x lost  + redone  . open"
    assert plain_line(Happened(12.34, "it began", Tone.PLAIN)) == "  12.3 s  it began"
    assert plain_line(Happened(12.34, "it broke", Tone.BAD)) == "  12.3 s  ! it broke"


def on_screen(picture: Picture, width: int, height: int | None) -> list[str]:
    out = io.StringIO()
    console = rich.console.Console(file=out, width=width, height=height or 50, force_terminal=True, color_system="256")
    console.print(drawn(picture, width, height))
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    return text.rstrip("\n").split("\n")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 12), (60, 24), (120, 50), (40, 10)])
@pytest.mark.parametrize("rollouts", [4, 12, 40])
@pytest.mark.parametrize("turns", [4, 8, 60])
def test_the_picture_fits_its_terminal(width: int, height: int, rollouts: int, turns: int) -> None:
    """No line is longer than the terminal is wide, and there are never more lines than it has."""
    picture, _ = picture_of(rollouts=rollouts, turns=turns)
    for number in range(20):
        picture.say(f"something happened, and it takes a good many words to say so: number {number}")
    picture.entered("ck-000001-000001", TransactionState.FREEZING)
    picture.entered("ck-000001-000001", TransactionState.PREPARING)
    lines = on_screen(picture, width, height)
    assert max(map(len, lines)) < width
    assert len(lines) <= height
    if rollouts > height:
        assert any("more rollouts" in line for line in lines)
    assert "number 19" in lines[-1] or "…" in lines[-1]


def test_the_default_job_is_seen_whole_at_80_by_24() -> None:
    """All 12 rollouts, the legend, the phases and the newest events are on a plain terminal."""
    picture = Picture(make_plan(Options()), now=Time(), title="statecore demo: 12 rollouts")
    for number in range(9):
        picture.say(f"event {number}", Tone.CHECKPOINT)
    lines = on_screen(picture, 80, 24)
    assert sum(bool(re.match(r"  p\d_g\d  ", line)) for line in lines) == 12
    assert any("held by the checkpoint" in line and line.endswith("open") for line in map(str.rstrip, lines))
    assert lines[-1].endswith("event 8")


def test_the_last_picture_has_everything() -> None:
    """Without a height no rollout and no event is left out."""
    picture, _ = picture_of(rollouts=40)
    for number in range(30):
        picture.say(f"event {number}")
    lines = on_screen(picture, 80, None)
    assert sum("Taxi-v4" in line or "Frozen" in line or "Blackjack" in line for line in lines) == 40
    assert sum("event" in line for line in lines) == 30


def test_who_waits_is_parked_and_broken_is_in_the_legend_only_if_it_is() -> None:
    """While a checkpoint is written, running rollouts are parked; the legend explains what is there."""
    picture, _ = picture_of()
    picture.epoch = 1
    picture.saw(turn("p0_g0", 1))
    picture.entered("ck-1", TransactionState.COMMITTING)
    lines = on_screen(picture, 80, 24)
    assert any("p0_g0" in line and "parked" in line for line in lines)
    assert not any("run again" in line for line in lines)
    picture.killed(Held({"p0_g0": 1}, frozenset()))
    picture.epoch = 2
    picture.saw(turn("p0_g0", 1, epoch=2))
    assert any("held, and run again" in line for line in on_screen(picture, 120, 24))
    picture.killed(NOTHING_HELD)


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True


class Dumb(Terminal):
    """A terminal that cannot place its cursor."""


@pytest.mark.trio
@pytest.mark.parametrize(
    ("out", "plain", "live"),
    [
        (Terminal("utf-8"), False, True),
        (Terminal("utf-8"), True, False),
        (Terminal("ascii"), False, False),
        (Terminal("no-such"), False, False),
        (Dumb("utf-8"), False, False),
        (io.StringIO(), False, False),
    ],
)
async def test_lines_where_there_is_no_terminal_for_more(
    out: io.StringIO, plain: bool, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live picture needs a terminal that can write squares; --plain and a pipe get lines, without any escapes."""
    monkeypatch.setenv("TERM", "dumb" if isinstance(out, Dumb) else "xterm-256color")
    picture = Picture(make_plan(Options(rollouts=2, turns=2)), title="the title")
    async with showing(picture, out, plain=plain):
        picture.say("it began")
        await trio.sleep(0.2)
    text = out.getvalue()
    assert ("\x1b" in text) == live
    assert "it began" in text and "the title" in text and "p0_g1" in text


@pytest.mark.trio
async def test_an_error_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alternate screen is left and the last picture is printed, whatever ends the story."""
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal("utf-8")
    picture = Picture(make_plan(Options(rollouts=2, turns=2)), title="the title")
    with pytest.raises(ExceptionGroup) as raised:
        async with showing(picture, out, plain=False):
            raise RuntimeError("the story broke")
    assert raised.group_contains(RuntimeError, match="the story broke")
    entered, left = out.getvalue().rfind("\x1b[?1049h"), out.getvalue().rfind("\x1b[?1049l")
    assert 0 <= entered < left
    assert "the title" in out.getvalue()[left:]
