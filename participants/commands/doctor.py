"""`statecore doctor URL...`: what running servers could give to a checkpoint, in plain words. Changes nothing.

Exit code 0: every participant can take part, and every rollout would continue after a crash (judges alone are fine
too). 1: something is wrong, or rollouts would start over, or nothing takes part; the first line says which. 2: the
command line is wrong, or there is no token. docs/reference/protocol.md section 2 says what roles and modes are.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import partial
from ipaddress import IPv6Address
from typing import Any, Final

import httpx
import trio
from attrs import frozen

from statecore.cli import UsageError
from statecore.wire import unstructure

from ..coordination.introduction import Role
from ..coordination.life import CoordinatorSettings
from ..coordination.outcomes import Blocker
from ..net.client import make_client
from ..settings import PREFIX, TOKEN_VARIABLE, Seams, control_token
from .console import Block, Grid, count, show
from .diagnosis import Diagnosis, diagnose, names
from .examination import STATUS_CALLS, examine
from .server_view import Outlook, ServerView, Token

TIMEOUT_S: Final = 5.0
MAX_CLOCK_SKEW_S: Final = CoordinatorSettings().max_clock_skew_s
WIDTH: Final = 79
LABEL: Final = 9
BLOCKERS_TOLD: Final = 5
MAX_PORT: Final = 65_535
MAX_HOST: Final = 253
_DNS_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*\.?\Z")

_IN_WORDS: Final = {
    Outlook.CONTINUES: "its rollouts would continue",
    Outlook.STARTS_OVER: "its rollouts would start over",
    Outlook.NO_PARTICIPANT: "not a participant",
    Outlook.CANNOT_TAKE_PART: "cannot take part",
}
_IN_A_WORD: Final = {
    Outlook.CONTINUES: "continue",
    Outlook.STARTS_OVER: "start over",
    Outlook.NO_PARTICIPANT: "-",
    Outlook.CANNOT_TAKE_PART: "cannot take part",
}


def register(commands: Any) -> None:
    """The command `doctor` is known to the parser."""
    parser = commands.add_parser("doctor", help="say what running servers could give to a checkpoint")
    parser.add_argument("urls", metavar="URL", nargs="+", help="the base addresses of the servers of one deployment")
    add_token(parser)
    parser.add_argument(
        "--max-clock-skew", type=seconds, default=MAX_CLOCK_SKEW_S, metavar="S",
        help="by how much a server's clock may be off (%(default)g s, as a coordinator has it)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=seconds, default=TIMEOUT_S, metavar="S", help="how long one call may take (%(default)g s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--plain", action="store_true", help="no tables with lines, also on a terminal")
    parser.set_defaults(run=run)


def add_token(parser: argparse.ArgumentParser) -> None:
    """The command line says where the control token is; `found_token` reads it."""
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token", help="the control token (others on this machine can see it in the process list)")
    token.add_argument("--token-env", metavar="NAME", help="the environment variable that holds the control token")


def run(args: argparse.Namespace) -> int:
    """The exit code; the report is on standard output."""
    question = Question(
        urls=checked_urls(args.urls),
        token=found_token(args.token, args.token_env),
        timeout_s=args.timeout,
        max_clock_skew_s=args.max_clock_skew,
    )
    diagnosis = trio.run(partial(asked, question))
    if args.json:
        print(json.dumps(as_json(diagnosis), indent=2))
    else:
        show(tell(diagnosis), plain=True if args.plain else None)
    return 0 if diagnosis.healthy else 1


# --- what is asked


@frozen(kw_only=True)
class Question:
    """Whom to ask, and the bounds of it, in seconds."""

    urls: tuple[str, ...]
    token: str
    timeout_s: float = TIMEOUT_S
    max_clock_skew_s: float = MAX_CLOCK_SKEW_S


async def asked(
    question: Question, *, transport: httpx.AsyncBaseTransport | None = None, seams: Seams | None = None
) -> Diagnosis:
    """The diagnosis of the servers, asked now; `transport` and `seams` are for tests."""
    limit = STATUS_CALLS * len(question.urls)
    async with make_client(transport, connect_timeout_s=question.timeout_s, max_in_flight=limit) as client:
        answers = await examine(
            question.urls, token=question.token, client=client, seams=seams or Seams(), timeout_s=question.timeout_s
        )
    return diagnose(answers, question.max_clock_skew_s)


def checked_urls(urls: Iterable[str]) -> tuple[str, ...]:
    """The base addresses, without a slash at the end; UsageError for what is none, and for one that is given twice."""
    found: list[str] = []
    for text in urls:
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, ValueError) as error:
            raise UsageError(f"{text!r} is no URL: {error}") from None
        if url.scheme not in ("http", "https") or not _is_host(url.raw_host.decode("ascii")) or url.port == 0:
            raise UsageError(f"{text!r} is no URL of a server: write http://HOST:PORT")
        if url.port is not None and url.port > MAX_PORT:
            raise UsageError(f"{text!r}: there is no port {url.port}")
        if url.userinfo or url.query or url.fragment:
            raise UsageError(f"{text!r}: a base address has no user, query or fragment")
        base = text.rstrip("/")
        if base in found:
            raise UsageError(f"{base} is given twice")
        found.append(base)
    return tuple(found)


def _is_host(host: str) -> bool:
    """Whether it can be looked up at all: what cannot is not always a clean error of the resolver."""
    if ":" not in host:
        return len(host) <= MAX_HOST and _HOST.match(host) is not None
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def found_token(token: str | None, variable: str | None) -> str:
    """The control token, from where the command line says or the servers' own variables; UsageError without one."""
    found = control_token(variable) if token is None else token
    if not found:
        where = variable or f"{TOKEN_VARIABLE} (or {PREFIX}CONTROL_AUTH_TOKEN)"
        given = "an empty token" if token is not None else f"no control token in {where}"
        raise UsageError(f"{given}: set it, or use --token-env NAME or --token")
    if not (found.isascii() and found.isprintable()) or found != found.strip():
        raise UsageError("the control token is no text that a header can hold: printable ASCII, no space at its ends")
    return found


def seconds(text: str) -> float:
    """A number of seconds from the command line."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds greater than 0")
    return value


# --- what is said


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The whole diagnosis as one JSON object."""
    return {"type": "doctor", "healthy": diagnosis.healthy, **unstructure(diagnosis)}


def tell(diagnosis: Diagnosis) -> Iterator[Block]:
    """The diagnosis in words: the outlook of all, what does not fit together, then each server."""
    servers = diagnosis.servers
    yield _wrapped(f"{count(len(servers), 'server')}: {diagnosis.story}")
    for finding in diagnosis.findings:
        yield _labelled("wrong", finding.problem)
        yield _labelled("mend", finding.mend)
    for note in diagnosis.notes:
        yield _labelled("note", note)
    if len(servers) > 1:
        columns = ("server", "kind", "mode", "clock", "rollouts")
        rows = tuple(tuple(map(printable, _row(each))) for each in servers)
        yield Grid("overview", columns, rows, right=frozenset({3}))
    for each in servers:
        yield ""
        named = each.url if each.instance is None else f"{each.instance} at {each.url}"
        yield _wrapped(f"{named}: {_IN_WORDS[each.outlook]}")
        for label, said in _lines(each):
            yield _labelled(label, said)


def _row(each: ServerView) -> tuple[str, ...]:
    name = each.instance or each.url.partition("://")[2]
    kind = Role.AUXILIARY if each.role is Role.AUXILIARY else each.kind
    offset = "" if each.clock_offset_s is None else f"{each.clock_offset_s:+.2f} s"
    return name, kind or "?", each.mode or "", offset, _IN_A_WORD[each.outlook]


def _lines(each: ServerView) -> Iterator[tuple[str, str]]:
    """(label, text) of everything that is known of a server."""
    if each.findings:
        for finding in each.findings:
            yield "wrong", finding.problem
            yield "mend", finding.mend
    else:
        yield "why", each.reason
        if each.mend:
            yield "mend", each.mend
    for note in each.notes:
        yield "note", note
    if each.token is not Token.NOT_ASKED:
        yield "token", each.token
    if each.role is None:
        return
    auxiliary = each.role is Role.AUXILIARY
    mode = "auxiliary" if auxiliary else f"mode {each.mode}" if each.mode else "no mode declared"
    yield "kind", f"{each.kind}, {mode}"
    yield "clock", _clock(each)
    if each.workers is not None:
        yield "workers", f"{each.workers}" + (f" of {each.expected_workers}" if each.expected_workers else "")
    if not auxiliary:
        yield from _now(each)
    if each.incarnation is not None:
        yield "process", f"incarnation {each.incarnation}" + ("" if each.epoch is None else f", epoch {each.epoch}")


def _now(each: ServerView) -> Iterator[tuple[str, str]]:
    """What is going on in a participant."""
    phase = each.phase or "?"
    if each.state == "born":
        phase += ", closed since its start"
    if each.checkpoint_id is not None:
        phase += f": checkpoint {each.checkpoint_id} is open"
    if each.lease_left_s is not None:
        left = each.lease_left_s
        phase += f", its lease ends in {left:.0f} s" if left > 0 else f", its lease ended {-left:.0f} s ago"
    yield "phase", phase
    counted = [f"{name} {number}" for name, number in sorted(each.counts.items()) if number]
    yield "holds", ", ".join(counted) or "nothing"
    for blocker in each.blockers[:BLOCKERS_TOLD]:
        yield "blocker" if each.checkpoint_id else "busy", _blocker(blocker)
    if each.blocker_count > len(each.blockers[:BLOCKERS_TOLD]):
        yield "", f"and {each.blocker_count - len(each.blockers[:BLOCKERS_TOLD])} more"
    if each.restarts:
        yield "restarts", f"{names(each.restarts)}: would start over"
    if each.retained:
        yield "results", f"{count(len(each.retained), 'result')} not acknowledged yet: {names(each.retained)}"


def _blocker(blocker: Blocker) -> str:
    who = f"{blocker.rollout_id} attempt {blocker.attempt}" if blocker.rollout_id else ""
    waited = "" if blocker.waited_s is None else f", for {blocker.waited_s:.1f} s"
    return ": ".join(filter(None, (who, blocker.reason))) + waited


def _clock(each: ServerView) -> str:
    if each.clock_offset_s is None:
        return "not told"
    side = "ahead" if each.clock_offset_s > 0 else "behind"
    return f"{abs(each.clock_offset_s):.3f} s {side}, known to {each.clock_uncertainty_s:.3f} s"


def _labelled(label: str, text: str) -> str:
    return _wrapped(text, f"  {label:{LABEL}}", " " * (LABEL + 2))


def _wrapped(text: str, first: str = "", rest: str = "  ") -> str:
    """Lines of no more than WIDTH, but for a word that is longer."""
    lines = textwrap.wrap(
        printable(text), WIDTH, initial_indent=first, subsequent_indent=rest,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines)


def printable(text: str) -> str:
    """The text with everything escaped that a terminal would obey: servers are strangers."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
