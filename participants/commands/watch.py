"""`statecore watch ROOT`: what is going on now and what was published, for a person on call. Reads only.

On a terminal the picture is drawn anew; elsewhere each thing that happens is a line, so that it can be kept. With
`--server` the servers are asked as well where they stand. Exit code of `--once`: 0, or 1 when something is wrong that
somebody should look at now; 2: the command line is wrong. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
import trio
from attrs import field, frozen

from statecore.cli import UsageError
from statecore.seams import SystemDisk
from statecore.wire import unstructure

from ..files.draft import CHECKPOINT
from ..net.client import make_client
from ..settings import Seams
from .console import Block, Grid, count, moment, show, size
from .doctor import add_token, checked_urls, found_token, seconds
from .examination import STATUS_CALLS, Answers, examine
from .inspection import is_root
from .watching import Happening, Look, PublishedLook, happened, look

EVERY_S: Final = 2.0
TIMEOUT_S: Final = 2.0
SHOWN: Final = 5
BLOCKERS_SHOWN: Final = 5
CLEAR: Final = "\x1b[H\x1b[J"


def register(commands: Any) -> None:
    """The command `watch` is known to the parser."""
    parser = commands.add_parser("watch", help="what goes on at a root now, and what was published")
    parser.add_argument("root", metavar="ROOT", type=Path, help="the root that the coordinator writes to")
    parser.add_argument("--every", type=seconds, default=EVERY_S, metavar="S", help="how often to look (%(default)g s)")
    parser.add_argument("--once", action="store_true", help="look once and end; 1 when something is wrong")
    parser.add_argument("--server", action="append", default=[], metavar="URL", help="a server to ask where it stands")
    add_token(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object for each look, a line each")
    parser.add_argument("--plain", action="store_true", help="lines of what happens, also on a terminal")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The exit code."""
    disk = SystemDisk()
    root = disk.resolve(args.root)
    if disk.kind(root) != "dir" or disk.kind(root / CHECKPOINT) is not None:
        raise UsageError(f"{args.root} is no root: give the directory that holds the checkpoints")
    if args.once and not is_root(disk, root):
        raise UsageError(f"{args.root} holds no claim and no checkpoint yet")
    urls = checked_urls(args.server)
    token = found_token(args.token, args.token_env) if urls else ""
    watch = Watch(root=root, seams=Seams(), urls=urls, token=token, timeout_s=min(args.every, TIMEOUT_S))
    form: Form = _Json() if args.json else _Lines() if args.plain or not sys.stdout.isatty() else _Screen(args.every)
    if args.once:
        now, answers, alarms = trio.run(partial(once, watch))
        (form if args.json else _Picture()).show(now, answers, alarms)
        return 1 if alarms else 0
    try:
        trio.run(partial(follow, watch, form, args.every))
    except* KeyboardInterrupt:
        pass
    return 0


@frozen(kw_only=True)
class Watch:
    """What is looked at."""

    root: Path
    seams: Seams
    urls: tuple[str, ...] = ()
    token: str = ""
    timeout_s: float = TIMEOUT_S
    transport: httpx.AsyncBaseTransport | None = field(default=None)

    def look(self, before: Look | None = None) -> Look:
        return look(self.root, self.seams.disk, self.seams.clock, self.seams.entropy, before)

    async def ask(self) -> tuple[Answers, ...]:
        """What the servers answer; nobody is asked if none was named."""
        if not self.urls:
            return ()
        limit = STATUS_CALLS * len(self.urls)
        async with make_client(self.transport, connect_timeout_s=self.timeout_s, max_in_flight=limit) as client:
            return await examine(
                self.urls, token=self.token, client=client, seams=self.seams, timeout_s=self.timeout_s
            )


async def once(watch: Watch) -> tuple[Look, tuple[Answers, ...], tuple[Happening, ...]]:
    """One look, what the servers say, and what is wrong."""
    now = watch.look()
    answers = await watch.ask()
    return now, answers, (*happened(None, now), *unwell(now, answers))


async def follow(watch: Watch, form: Form, every_s: float) -> None:
    """Looks again and again; `form` shows what each look has found."""
    before: Look | None = None
    told: frozenset[str] = frozenset()
    while True:
        now = watch.look(before)
        answers = await watch.ask()
        wrong = unwell(now, answers)
        new = tuple(each for each in wrong if each.what not in told)
        form.show(now, answers, (*happened(before, now), *new))
        before, told = now, frozenset(each.what for each in wrong)
        await trio.sleep(every_s)


def unwell(now: Look, answers: Iterable[Answers]) -> tuple[Happening, ...]:
    """What is wrong with servers: no answer, a broken one, one of another life."""
    told = []
    for each in answers:
        if each.error is not None:
            told.append(Happening(now.ts, f"{each.url} does not answer: {each.error}", alarm=True))
        elif each.status is not None and each.status.get("state") == "broken":
            told.append(Happening(now.ts, f"{each.url} is broken: its lease timer died", alarm=True))
        elif each.epoch is not None and now.epoch is not None and each.epoch != now.epoch:
            what = f"{each.url} belongs to epoch {each.epoch}, the root to epoch {now.epoch}"
            told.append(Happening(now.ts, what, alarm=True))
    return tuple(told)


# --- how it is said


class Form(Protocol):
    """How looks are shown."""

    def show(self, now: Look, answers: tuple[Answers, ...], news: tuple[Happening, ...]) -> None: ...


class _Json:
    """Everything, one object a line."""

    def show(self, now: Look, answers: tuple[Answers, ...], news: tuple[Happening, ...]) -> None:
        servers = [{"url": each.url, "status": each.status, "error": _error(each)} for each in answers]
        line = {"type": "watch", **unstructure(now), "servers": servers, "news": unstructure(news)}
        print(json.dumps(line), flush=True)


class _Lines:
    """What happens, a line each; the picture at the first look."""

    def __init__(self) -> None:
        self.begun = False

    def show(self, now: Look, answers: tuple[Answers, ...], news: tuple[Happening, ...]) -> None:
        if not self.begun:
            show(picture(now, answers), plain=True)
            print()
            self.begun = True
        for each in news:
            print(said(each), flush=True)


class _Picture:
    """The picture, once, and what is wrong."""

    def show(self, now: Look, answers: tuple[Answers, ...], news: tuple[Happening, ...]) -> None:
        show([*picture(now, answers), *(f"  wrong: {each.what}" for each in news)])


class _Screen:
    """The picture drawn anew, with the latest things that happened below it."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self.log: list[Happening] = []

    def show(self, now: Look, answers: tuple[Answers, ...], news: tuple[Happening, ...]) -> None:
        self.log = [*self.log, *news][-SHOWN:]
        sys.stdout.write(CLEAR)
        show([*picture(now, answers), "", *map(said, self.log), f"(every {self.every_s:g} s; Ctrl-C ends it)"])
        sys.stdout.flush()


def said(each: Happening) -> str:
    """One line of what happened."""
    return f"{moment(each.ts)}  {'! ' if each.alarm else ''}{each.what}"


def picture(now: Look, answers: Iterable[Answers] = ()) -> Iterator[Block]:
    """The root at that moment in words, and the servers that were asked."""
    if now.problem is not None:
        yield f"{now.directory}: BROKEN, and nothing is restored from it"
        yield f"  {now.problem}"
        return
    if now.epoch is None:
        yield f"{now.directory}: nobody has claimed it yet"
        return
    started = "has not said what it starts from" if now.void else f"started from {now.start or 'nothing: fresh'}"
    yield f"{now.directory}: epoch {now.epoch}, claimed {moment(now.claimed_ts)}, {started}"
    yield f"  in force   {_in_force(now)}"
    yield f"  under way  {_under_way(now)}"
    if now.overtaken:
        yield f"  overtaken  {', '.join(now.overtaken)}"
    if now.left_over:
        yield f"  left over  {count(len(now.left_over), 'draft')} of checkpoints that were not published"
    if now.set_aside:
        yield f"  deleted    {', '.join(now.set_aside)}: set aside by retention, and not removed yet"
    rows = tuple(_row(now, each) for each in reversed(now.published[-SHOWN:]))
    if rows:
        columns = ("checkpoint", "written", "ago", "rollouts", "beside the servers' parts")
        yield Grid("published", columns, rows, right=frozenset({2}))
    served = tuple(_server(each) for each in answers)
    if served:
        yield Grid("servers", ("server", "phase", "checkpoint", "lease", "waits for"), served, right=frozenset({3}))


def _in_force(now: Look) -> str:
    newest = now.in_force
    if newest is None:
        return "nothing yet"
    if newest.problem is not None:
        return f"{newest.checkpoint_id} cannot be read"
    return f"{newest.checkpoint_id}, {_ago(now.ts, newest.created_ts)} old, {_rollouts(newest)}"


def _under_way(now: Look) -> str:
    draft = now.under_way
    if draft is None:
        return "no checkpoint is being written"
    waits = f"; waits for {', '.join(draft.missing)}" if draft.missing else ""
    written = f"{count(len(draft.parts), 'part')} written{waits}"
    return f"{draft.checkpoint_id} for at least {_span(now.ts - draft.since_ts)}: {draft.step} ({written})"


def _row(now: Look, each: PublishedLook) -> tuple[str, ...]:
    held = each.problem or size(each.size_bytes)
    return (each.checkpoint_id, moment(each.created_ts), _ago(now.ts, each.created_ts), _rollouts(each), held)


def _rollouts(each: PublishedLook) -> str:
    shares = ", ".join(f"{number} {name}" for name, number in sorted(each.dispositions.items()))
    return f"{count(sum(each.dispositions.values()), 'rollout')}" + (f": {shares}" if shares else "")


def _server(each: Answers) -> tuple[str, ...]:
    if each.status is None:
        return (each.url, "no answer", "", "", _error(each) or "")
    status = each.status
    expires, open_id = status.get("lease_expires_at"), status.get("checkpoint_id")
    report = status.get("report")
    blockers = report.get("blocker_details") if isinstance(report, dict) else None
    lease = f"{expires - each.asked_ts:.0f} s" if isinstance(expires, (int, float)) else ""
    return (
        f"{status.get('kind')}/{status.get('instance')}",
        str(status.get("state", status.get("phase"))),
        "" if open_id is None else str(open_id),
        lease,
        "; ".join(_blocker(item) for item in blockers[:BLOCKERS_SHOWN]) if isinstance(blockers, list) else "",
    )


def _blocker(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    waited = item.get("waited_s")
    since = f" ({waited:.0f} s)" if isinstance(waited, (int, float)) else ""
    return f"{item.get('rollout_id')}: {item.get('reason')}{since}"


def _error(each: Answers) -> str | None:
    if each.error is not None:
        return str(each.error)
    return each.unknown_role or None


def _ago(now_ts: float, ts: float | None) -> str:
    return "?" if ts is None else _span(now_ts - ts)


def _span(seconds_: float) -> str:
    """A time for people: `3 s`, `5 min`, `2 h`, `4 d`."""
    value = max(0.0, seconds_)
    for unit, length in (("s", 60.0), ("min", 60.0), ("h", 24.0)):
        if value < length:
            return f"{value:.0f} {unit}"
        value /= length
    return f"{value:.0f} d"
