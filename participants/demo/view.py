"""The picture on a terminal: lines as things happen, or a live view of all rollouts (rich). Draws, and decides nothing.

Without a terminal, without rich, or where the squares cannot be written, it is lines.
"""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TextIO

import trio

from ..machines.transaction import TransactionState
from .picture import Cell, Happened, Picture, Row, Tone

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

FRAME_S: Final = 0.1
FIXED_LINES: Final = 4
"""The title, the legend, and two lines about the checkpoint."""
FEWEST_EVENTS: Final = 3
MOST_EVENTS: Final = 7
DIM: Final = "grey50"
SPACED_TURNS: Final = 20
"""Rows with more turns than this have no space between their squares."""

LETTERS: Final = {
    Cell.OPEN: ".",
    Cell.DONE: "#",
    Cell.HELD: "=",
    Cell.LOST: "x",
    Cell.REDONE: "+",
    Cell.BROKEN: "!",
}
SQUARES: Final = {
    Cell.OPEN: ("·", DIM),
    Cell.DONE: ("■", "dark_sea_green4"),
    Cell.HELD: ("■", "steel_blue"),
    Cell.LOST: ("□", "indian_red"),
    Cell.REDONE: ("■", "dark_goldenrod"),
    Cell.BROKEN: ("■", "bold red"),
}
WORDS: Final = {
    Cell.DONE: "finished",
    Cell.HELD: "held by the checkpoint",
    Cell.LOST: "lost",
    Cell.REDONE: "redone",
    Cell.OPEN: "open",
    Cell.BROKEN: "held, and run again",
}
TONES: Final = {
    Tone.PLAIN: "",
    Tone.GOOD: "dark_sea_green4",
    Tone.CHECKPOINT: "steel_blue",
    Tone.CRASH: "indian_red",
    Tone.BAD: "bold red",
}


PHASES: Final[Mapping[str, str]] = {
    TransactionState.FREEZING: "freeze",
    TransactionState.PREPARING: "prepare",
    TransactionState.COMMITTING: "commit",
    TransactionState.SETTLING: "settle",
    TransactionState.SAVING: "save",
    TransactionState.VALIDATING: "validate",
    TransactionState.PUBLISHED: "ack",
    TransactionState.RESUMING: "resume",
    TransactionState.ABORTING: "abort",
}


@asynccontextmanager
async def showing(picture: Picture, out: TextIO, *, plain: bool) -> AsyncIterator[None]:
    """While the block runs, `out` shows the picture; afterwards its last state stands there."""
    if plain or not _is_lively(out):
        async with _lines(picture, out):
            yield
    else:
        async with _live(picture, out):
            yield


def _is_lively(out: TextIO) -> bool:
    if not out.isatty() or importlib.util.find_spec("rich") is None:
        return False
    try:
        "■□·".encode(out.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


# --- lines


@asynccontextmanager
async def _lines(picture: Picture, out: TextIO) -> AsyncIterator[None]:
    def told(happened: Happened) -> None:
        print(plain_line(happened), file=out, flush=True)

    picture.told = told
    print(picture.title, file=out, flush=True)
    yield
    for line in plain_rows(picture):
        print(line, file=out)
    out.flush()


def plain_line(happened: Happened) -> str:
    """One thing that happened."""
    mark = "! " if happened.tone is Tone.BAD else ""
    return f"{happened.at_s:6.1f} s  {mark}{happened.text}"


def plain_rows(picture: Picture) -> Iterator[str]:
    """The rollouts as text, a character for each turn, and what the characters mean."""
    names = max(len(row.rollout_id) for row in picture.rows.values())
    games = max(len(row.env_id) for row in picture.rows.values())
    turns = max(row.turns for row in picture.rows.values())
    for row in picture.rows.values():
        cells = "".join(LETTERS[cell] for cell in row.cells)
        yield f"  {row.rollout_id:{names}}  {row.env_id:{games}}  {cells:{turns}}  {_standing(row)}".rstrip()
    yield "  " + "  ".join(f"{LETTERS[cell]} {WORDS[cell]}" for cell in _legend(picture))


def _standing(row: Row) -> str:
    return row.status if row.reward is None else f"reward {row.reward:.1f}"


def _legend(picture: Picture) -> list[Cell]:
    """All kinds of turns, the one that never is only if it is."""
    seen = {cell for row in picture.rows.values() for cell in row.cells}
    return [cell for cell in WORDS if cell is not Cell.BROKEN or cell in seen]


# --- live


@asynccontextmanager
async def _live(picture: Picture, out: TextIO) -> AsyncIterator[None]:
    """Frames on the alternate screen, so that nothing is erased before it is written anew; the last one stays."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=out, highlight=False)
    if console.is_dumb_terminal:
        async with _lines(picture, out):
            yield
        return

    def frame() -> RenderableType:
        return drawn(picture, console.size.width, console.size.height)

    async def frames(live: Live) -> None:
        while True:
            live.update(frame(), refresh=True)
            await trio.sleep(FRAME_S)

    try:
        with Live(frame(), console=console, screen=True, auto_refresh=False, redirect_stdout=False) as live:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(frames, live)
                yield
                nursery.cancel_scope.cancel()
    finally:
        console.print(drawn(picture, console.size.width, None))


def drawn(picture: Picture, width: int, height: int | None) -> RenderableType:
    """The picture for a terminal of this size; without a height, all of it."""
    from rich.console import Group
    from rich.text import Text

    rows, events, airy = list(picture.rows.values()), picture.happened, True
    if height is not None:
        left = height - FIXED_LINES
        shown = max(FEWEST_EVENTS, min(MOST_EVENTS, left - len(rows)))
        rows, events, airy = rows[: left - shown], events[-shown:], left >= len(rows) + MOST_EVENTS + 3
    air = [Text()] if airy else []
    parts = [_headline(picture, width), *air, *(_row(row, picture, width) for row in rows)]
    if len(rows) < len(picture.rows):
        parts[-1] = Text(f"  and {len(picture.rows) - len(rows) + 1} more rollouts", style=DIM)
    parts += [_legend_line(picture), *air, *_phases(picture), *air, *map(_event, events)]
    for part in parts:
        part.truncate(width - 1, overflow="ellipsis")
    return Group(*parts)


def _headline(picture: Picture, width: int) -> Text:
    from rich.text import Text

    clock = f"{picture.elapsed_s:5.1f} s"
    title = Text(picture.title, style="bold")
    title.truncate(width - len(clock) - 3, overflow="ellipsis", pad=True)
    return title.append(f" {clock}", style=DIM)


def _row(row: Row, picture: Picture, width: int) -> Text:
    from rich.text import Text

    games = max(len(each.env_id) for each in picture.rows.values())
    names = max(len(each.rollout_id) for each in picture.rows.values())
    longest = max(each.turns for each in picture.rows.values())
    between = " " if longest <= SPACED_TURNS else ""
    text = Text("  ").append(f"{row.rollout_id:{names}}  ")
    if width >= names + games + longest * (1 + len(between)) + 24:
        text.append(f"{row.env_id:{games}}  ", style=DIM)
    for cell in row.cells:
        square, style = SQUARES[cell]
        text.append(square + between, style=style)
    text.append(" " * ((longest - row.turns) * (1 + len(between)) + 1))
    parked = picture.stands and row.status and row.reward is None
    return text.append("parked" if parked else _standing(row), style=DIM if row.reward is None else "")


def _legend_line(picture: Picture) -> Text:
    from rich.text import Text

    text = Text("  ")
    for cell in _legend(picture):
        square, style = SQUARES[cell]
        text.append(square, style=style).append(f" {WORDS[cell]}   ", style=DIM)
    return text


def _phases(picture: Picture) -> list[Text]:
    """The headline with the newest checkpoint, and a line of its phases with their milliseconds."""
    from rich.text import Text

    first, second = Text(f"  {picture.headline}", style="bold"), Text("  ")
    if picture.checkpoint_id:
        now = "" if picture.phase is None else f": {picture.phase} ..."
        first.append(f"   {picture.checkpoint_id}{now}", style="steel_blue")
        took = [(PHASES.get(phase, phase), round(1000 * seconds)) for phase, seconds in picture.phases]
        for name, ms in took:
            if ms > 0:
                second.append(f"{name} ", style=DIM).append(f"{ms}  ")
        second.append("ms" if took else "", style=DIM)
    return [first, second]


def _event(happened: Happened) -> Text:
    from rich.text import Text

    text = Text(f"  {happened.at_s:5.1f} s  ", style=DIM)
    return text.append(happened.text, style=TONES[happened.tone])
