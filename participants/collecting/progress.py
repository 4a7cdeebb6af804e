"""What a person sees of a collection: a bar on a terminal that has rich, lines everywhere else.

Both say how many results there are, how fast they come and how long it will take, the turns that they took, and what
became of each checkpoint. Draws, and decides nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from attrs import define, field

from statecore.seams import Clock

from ..coordination.outcomes import Aborted, Published, Recovered, Restarted
from ..coordination.trainer import Result
from ..records.records import Json
from .collector import Watcher

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY_S: Final = 10.0
FASTEST_S: Final = 1.0
"""Nothing is said of speed before so long."""


def turns_of(body: Json) -> int:
    """How many turns of the policy an answer shows: replies in a chat, or stretches between tool results in Gym's."""
    if not isinstance(body, Mapping):
        return 0
    inner = body.get("result")
    if isinstance(inner, Mapping) and "response" not in body and "messages" not in body:
        body = inner
    messages = body.get("messages")
    if isinstance(messages, list):
        return sum(isinstance(each, Mapping) and each.get("role") == "assistant" for each in messages)
    response = body.get("response")
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(output, list):
        return 0
    of_policy = [not (isinstance(each, Mapping) and each.get("type") == "function_call_output") for each in output]
    return sum(now and not before for before, now in zip([False, *of_policy], of_policy, strict=False))


@define(eq=False)
class Numbers:
    """What is counted. `before` are the results that stood when this life began, `began` when the servers were up."""

    total: int
    clock: Clock
    before: int = 0
    came: int = 0
    turns: int = 0
    checkpoints: int = 0
    failed: int = 0
    restarts: int = 0
    began: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Time is counted from now."""
        self.began = self.clock.monotonic()

    @property
    def done(self) -> int:
        return self.before + self.came

    def rate(self) -> float | None:
        """Results of this life in a second, None while that says nothing."""
        seconds = self.clock.monotonic() - self.began
        return self.came / seconds if self.came and seconds >= FASTEST_S else None

    def story(self) -> str:
        """One line: ``12 of 200 results, 1.4 a second, about 2 min left, 61 turns, 3 checkpoints``."""
        told = [f"{self.done} of {self.total} results"]
        if (rate := self.rate()) is not None:
            told.append(f"{rate:.1f} a second" if rate >= 1 else f"{60 * rate:.1f} a minute")
            if left := self.total - self.done:
                told.append(f"about {duration(left / rate)} left")
        if self.turns:
            told.append(f"{self.turns} turns")
        told.append(f"{self.checkpoints} checkpoint{'' if self.checkpoints == 1 else 's'}")
        if self.failed:
            told.append(f"{self.failed} that failed")
        if self.restarts:
            told.append(f"{self.restarts} restart{'' if self.restarts == 1 else 's'} of the servers")
        return ", ".join(told)


def duration(seconds: float) -> str:
    """Seconds for a person: ``40 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Lines(Watcher):
    """A line for all that happens, and for the results one now and then. Each goes to `out` at once."""

    def __init__(self, numbers: Numbers, out: TextIO) -> None:
        self.numbers = numbers
        self._out = out
        self._said = numbers.began

    def recovered(self, recovered: Recovered) -> None:
        self.numbers.begin()
        self.say(recovered.story())
        for each in recovered.damaged:
            self.say(each.story())

    def result(self, result: Result) -> None:
        self.numbers.came += 1
        self.numbers.turns += turns_of(result.body)
        self.counted()

    def checkpoint(self, outcome: Published | Aborted) -> None:
        if outcome.published:
            self.numbers.checkpoints += 1
        else:
            self.numbers.failed += 1
        self.say(outcome.story())

    def restarted(self, report: Restarted) -> None:
        self.numbers.restarts += 1
        self.say(report.story())

    def counted(self) -> None:
        """There is one more."""
        now = self.numbers.clock.monotonic()
        if now - self._said >= LINE_EVERY_S:
            self._said = now
            self.say(self.numbers.story())

    def say(self, line: str) -> None:
        """The line is there."""
        print(line, file=self._out, flush=True)


class Bar(Lines):
    """A bar, and above it a line for each checkpoint and each restart."""

    def __init__(self, numbers: Numbers, out: TextIO, progress: Progress) -> None:
        super().__init__(numbers, out)
        self._progress = progress
        self._task: TaskID = progress.add_task("", total=numbers.total, completed=numbers.before, told="")

    def counted(self) -> None:
        _, _, told = self.numbers.story().partition(" results, ")
        self._progress.update(self._task, completed=self.numbers.done, told=told)

    def checkpoint(self, outcome: Published | Aborted) -> None:
        super().checkpoint(outcome)
        self.counted()

    def say(self, line: str) -> None:
        self._progress.console.print(line, highlight=False, markup=False)


@contextmanager
def showing(numbers: Numbers, out: TextIO, *, plain: bool) -> Iterator[Lines]:
    """A watcher that shows `numbers` on `out` while the block runs."""
    if plain or not out.isatty() or importlib.util.find_spec("rich") is None:
        yield Lines(numbers, out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns, console=Console(file=out)) as progress:
        yield Bar(numbers, out, progress)
