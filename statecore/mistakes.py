"""An exception in somebody's world or table, told in few lines: what, in which action or property, where in the file.

Notes that the exception carries say what was being done. Of its frames those are shown that begin in a file of the
user's own; how statecore got there is left out.
"""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["place", "told"]

HERE = Path(__file__).resolve().parent


def told(error: BaseException) -> str | None:
    """What is wrong, in lines; None if the exception has nothing to do with a file of the user's own."""
    notes: list[str] = getattr(error, "__notes__", [])
    frames = place(error)
    if not notes and not frames:
        return None
    return "\n".join([name(error), *(f"  {line}" for note in notes for line in note.splitlines()), *frames])


def name(error: BaseException) -> str:
    """The kind of the exception and what it says."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def place(error: BaseException) -> list[str]:
    """The frames from the first one in a file of the user's own on, as lines."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen ")]
    first = next((number for number, each in enumerate(frames) if not _is_ours(each.filename)), len(frames))
    return [line for text in traceback.format_list(frames[first:]) for line in text.rstrip("\n").split("\n")]


def _is_ours(filename: str) -> bool:
    return Path(filename).resolve().is_relative_to(HERE)
