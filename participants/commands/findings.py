"""What can be wrong with one running server, in plain words, each with its mend. Pure.

Rules (docs/reference/protocol.md sections 2, 5 and 8): what makes a coordinator refuse a server at its start (no role,
a clock that is off, no good answer), or a checkpoint fail later (a name that is no directory, files of another schema,
several processes behind one address, a worker that is missing). What a server says is read as what strangers send: a
field of another type than it should have is as good as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import frozen

from ..coordination.introduction import KIND_OF_ROLE, Introduction
from ..net.client import ControlError
from ..records._fields import NAME
from ..servers.server import SCHEMA_VERSIONS
from .examination import Answers

UNAUTHORIZED: Final = frozenset({401, 403})
WIRE_MODE: Final = {"export_restore": "exported", "drain_only": "restart_only", "": "restart_only"}
"""What a status calls the modes that capabilities have other words for."""


@frozen
class Finding:
    """What is wrong, and what to do about it."""

    problem: str
    mend: str


def of_error(error: ControlError) -> Finding:
    """Why a server gave no good answer."""
    said = f"HTTP {error.status} {error.code}" + (f": {error.detail}" if error.detail else "")
    if error.code == "timeout":
        mend = "it hangs, or something else listens there: look at its log; --timeout gives it longer"
        return Finding(f"it did not answer in time ({error.verb}: {error.detail})", mend)
    if error.status is None:
        return Finding(f"it cannot be reached ({error.detail})", "start it, or give the right host and port")
    if error.status in UNAUTHORIZED:
        mend = "give the token that it was started with (its checkpoint.control_auth_token), by --token-env or --token"
        return Finding(f"it refuses this control token ({said})", mend)
    if error.code == "lifespan_missing":
        mend = "run it under a server that sends ASGI lifespan events (with uvicorn: --lifespan on)"
        return Finding(f"it serves nothing ({error.detail})", mend)
    if error.code == "garbage_reply":
        mend = "is this the address of a server, and of nothing in front of it? None of this protocol answers so"
        return Finding(f"it answers {error.verb} with what cannot be read ({error.detail})", mend)
    mend = "look at its log, or at that of a proxy on the way" if error.transport else "is this the right address?"
    return Finding(f"it answers {error.verb} with {said}", mend)


def of_introduction(found: Introduction, status: Mapping[str, Any]) -> Iterable[Finding]:
    """What it says of itself must be of one piece: files are named by it."""
    kind = KIND_OF_ROLE[found.role]
    if found.kind != kind:
        mend = f"a server with the role {found.role} is of kind {kind}"
        yield Finding(f"its kind is {found.kind!r} and its role {found.role}", mend)
    if not NAME.match(found.instance):
        mend = "use letters, digits, '.', '_' and '-': its part is a directory of that name"
        yield Finding(f"its name {found.instance!r} is none", mend)
    versions = found.said.get("schema_versions")
    if isinstance(versions, list) and not any(type(each) is int and each in SCHEMA_VERSIONS for each in versions):
        mend = f"this version reads and writes {', '.join(map(str, SCHEMA_VERSIONS))}: use one that does on both sides"
        yield Finding(f"its files are of schema {', '.join(map(str, versions)) or 'nothing'}", mend)
    if not found.has_capabilities:
        return
    mode = WIRE_MODE.get(found.mode, found.mode)
    for name, said in (("kind", found.kind), ("instance", found.instance), ("mode", mode)):
        other = text(status, name)
        if other is not None and other != said:
            mend = "two servers behind one address, or one that contradicts itself: give each an address of its own"
            yield Finding(f"its capabilities say {name} {said!r}, its status {other!r}", mend)


def of_process(answers: Answers, found: Introduction, max_clock_skew_s: float) -> Iterable[Finding]:
    """What is wrong with the process that answered, or with its clock."""
    status = answers.status or {}
    if answers.error is not None:
        cause = of_error(answers.error)
        yield Finding(f"it has capabilities and no good status: {cause.problem}", cause.mend)
    if status.get("state") == "broken":
        yield Finding("its lease timer has died: it refuses every control call", "restart it, and look at its log")
    here, expected = workers(found, status)
    processes = len(answers.incarnations)
    if processes > 1 and max(here or 1, expected or 1) < 2:
        mend = "run it as one process (one worker); if it was just restarted, ask again"
        yield Finding(f"{processes} processes answer at this address, each with a state of its own", mend)
    if here is not None and expected is not None and here < expected:
        mend = "wait until they have, or restart it: a checkpoint waits for every worker"
        yield Finding(f"{here} of its {expected} workers have reported", mend)
    clock = answers.clock
    if clock is not None and clock.skew_s > max_clock_skew_s:
        side = "ahead of" if clock.offset_s > 0 else "behind"
        problem = f"its clock is {clock.skew_s:.1f} s {side} this one, more than {max_clock_skew_s:g} s"
        yield Finding(problem, "set the clocks (NTP): deadlines are absolute, and leases would end wrongly")


# --- reading what a stranger says


def workers(found: Introduction, status: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(how many there are, how many there should be), as far as it says."""
    here = count(status, "workers")
    declared = count(mapping(found.said, "workers"), "count")
    return declared if here is None else here, count(status, "expected_workers")


def text(said: Mapping[str, Any], name: str) -> str | None:
    value = said.get(name)
    return value if isinstance(value, str) else None


def count(said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    return value if type(value) is int and value >= 0 else None


def mapping(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = said.get(name)
    return value if isinstance(value, dict) else {}


def items(said: Mapping[str, Any], name: str) -> list[Any]:
    value = said.get(name)
    return value if isinstance(value, list) else []
