"""The history of a simulated run for people: who, when, what; faults are marked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from statecore.simulate import lines_of

MARK: Final = "!"
PROBLEM: Final = "X"
WIDTH: Final = 18
DISK: Final = frozenset(
    {
        "append",
        "create",
        "fsync",
        "fsync_dir",
        "link",
        "mkdir",
        "rename",
        "rmdir",
        "truncate",
        "unlink",
        "write",
    }
)


def story(history: bytes, *, everything: bool = False) -> Iterator[str]:
    """Line by line; file operations and steps of machines that change nothing only with `everything`."""
    for line in lines_of(history):
        told = _told(line, everything)
        if told is not None:
            mark, text = told
            yield f"{line['at']:10.3f} {mark} {line['who']:<{WIDTH}} {text}"


def _told(line: Mapping[str, Any], everything: bool) -> tuple[str, str] | None:
    what = line["what"]
    if what == "journal":
        return _step(line["line"], everything)
    if what in DISK:
        if "fault" in line:
            return MARK, f"{what} {line['path']} fails: {line['fault']}"
        return (" ", f"{what} {line['path']}") if everything else None
    if what == "sends":
        fault = line.get("fault")
        text = f"-> {line['to']}  {line['path']}  #{line['call']}"
        return (MARK, f"{text}  {fault}") if fault else (" ", text)
    if what == "breaks":
        return MARK, f"no answer to #{line['call']} of {line['source']}"
    if what == "has" or what.startswith("answered "):
        return " ", f"{'got' if what == 'has' else what} #{line['call']} of {line['source']}"
    if what == "violated":
        return PROBLEM, f"VIOLATED {line['rule']}: {line['text']}"
    if what in ("dies", "power lost", "cut", "blow", "takes for dead", "calm", "is not brought back"):
        return MARK, _words(line, what)
    return " ", _words(line, what)


def _step(step: Mapping[str, Any], everything: bool) -> tuple[str, str] | None:
    if step["state"] == step["next"] and not step["refused"] and not everything:
        return None
    ids = " ".join(f"{name}={value}" for name, value in step["ids"].items() if name not in ("epoch",))
    refused = f", refused: {step['refused']}" if step["refused"] else ""
    return " ", f"{step['machine']}: {step['state']} -> {step['next']} by {step['event']}{refused}  {ids}"


def _words(line: Mapping[str, Any], what: str) -> str:
    more = {name: value for name, value in line.items() if name not in ("at", "who", "what")}
    return f"{what} {' '.join(f'{name}={_short(value)}' for name, value in more.items())}".rstrip()


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_short(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return str(value)
