"""The server under test, in the hands of one check: calls to it, and what they leave behind.

Only HTTP is spoken. Whatever a check opens, it is closed by `tidied`: checkpoints are resumed, executions retired and
forgotten, results acknowledged, files removed. trio.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import trio
from attrs import evolve, field, frozen

from statecore.seams import Disk, on_disk

from ..coordination.introduction import Role, UnknownRole, declared_role
from ..files.snapshots import InvalidCheckpointState, read_part
from ..identity import EPOCH_HEADER, INCARNATION_HEADER, EpisodeId
from ..net.client import CONTROL_PREFIX, make_client
from ..records.records import Part
from .prediction import Shadow
from .said import DoesNotApply, NotConforming, NotTried, Said, shown
from .target import Driver, Target

CHECKPOINT: Final = f"{CONTROL_PREFIX}/checkpoint"
NAME: Final = "conform"
AHEAD_S: Final = 60.0
"""How far ahead deadlines are that nobody waits for."""
PAST_S: Final = 1000.0
GRACE_S: Final = 5.0
"""How long after its deadline a call may be answered (I18)."""
PATIENCE_S: Final = 30.0
"""How long a driver may take, and a data request of an open server."""
TIDY_S: Final = 300.0

Json = dict[str, Any]


@frozen(kw_only=True)
class Rules:
    """The bounds of a run, in seconds: how long a prepare waits in vain, how long a lease lasts that nobody renews, and
    how long at most is waited for one that cannot be made shorter.
    """

    moment_s: float = 0.3
    lease_s: float = 1.0
    max_wait_s: float = 10.0


@frozen(kw_only=True)
class Standing:
    """Where a server stands, from its status."""

    phase: str
    checkpoint_id: str | None
    lease_until: float | None
    retired: int
    counts: Mapping[str, int] = field(factory=dict)


class Subject:
    """The server under test. `url` and `client` are for drivers, as is `background`; checks use the rest."""

    def __init__(
        self,
        target: Target,
        driver: Driver,
        client: httpx.AsyncClient,
        rules: Rules,
    ) -> None:
        self.target = target
        self.driver = driver
        self.client = client
        self.rules = rules
        self.url = target.url.rstrip("/")
        self.calls = 0
        self.kind = ""
        self.instance = ""
        self.mode = ""
        self.state = ""
        self.role: Role | None = None
        self.incarnation: str | None = None
        self.epoch: int | None = None
        self.has_results = False
        self.has_capabilities = False
        self._ahead_s = 0.0
        self._nursery: trio.Nursery | None = None
        self._ids: list[str] = []
        self._episodes: list[EpisodeId] = []
        self._folders: list[Path] = []
        self._run = target.seams.entropy.token_hex(4)

    @property
    def clock_now(self) -> float:
        """Wall time as the server has it, in Unix seconds: its deadlines are judged by its own clock."""
        return self.target.seams.clock.time() + self._ahead_s

    def background(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """The function runs until the check is over; it may lose its connection, as when its server is replaced."""
        assert self._nursery is not None, "background tasks run inside of a check"
        self._nursery.start_soon(_until_lost, function, args)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Background tasks can be started inside of the block, and are over behind it."""
        async with trio.open_nursery() as self._nursery:
            yield
            self._nursery.cancel_scope.cancel()

    async def learn(self) -> None:
        """It is known who answers. Raises NotConforming for who is no server of this protocol."""
        capabilities = await self.get(f"{CONTROL_PREFIX}/capabilities")
        self.has_capabilities = capabilities.status == 200
        if self.has_capabilities:
            said = capabilities.ok()
            try:
                self.role = declared_role(said.body)
            except UnknownRole as error:
                raise NotConforming(said.sent, str(error), "a role (S1)") from error
            if self.role is Role.AUXILIARY:
                self.kind, self.instance = str(said.body.get("kind")), str(said.body.get("instance"))
                return
        sent = self.target.seams.clock.time()
        said = (await self.status()).ok()
        body, came = said.body, self.target.seams.clock.time()
        if type(body.get("server_ts")) in (int, float):
            self._ahead_s = body["server_ts"] - (sent + came) / 2
        self.kind, self.instance = str(body.get("kind")), str(body.get("instance"))
        self.mode, self.state = str(body.get("mode", "")), str(body.get("state", ""))
        self.incarnation = body.get("incarnation", said.headers.get(INCARNATION_HEADER))
        self.epoch = body.get("epoch")
        self.has_results = (await self.get(f"{CONTROL_PREFIX}/results")).status == 200

    # --- control calls

    def new_id(self) -> str:
        """A checkpoint id that was never used; it is resumed at the end."""
        self._ids.append(f"{NAME}-{self._run}-{len(self._ids) + 1}")
        return self._ids[-1]

    def deadline(self, within_s: float = AHEAD_S) -> float:
        return self.clock_now + within_s

    def body(self, checkpoint_id: str, within_s: float = AHEAD_S, **more: Any) -> Json:
        return {"checkpoint_id": checkpoint_id, "deadline_ts": self.deadline(within_s), **more}

    async def call(
        self, verb: str, checkpoint_id: str, *, within_s: float = AHEAD_S, headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Said:  # fmt: skip
        """The answer to a verb; no later than its deadline and `GRACE_S`, or NotConforming."""
        return await self.post(verb, self.body(checkpoint_id, within_s, **more), headers=headers)

    async def post(
        self, verb: str, body: Any, *, headers: Mapping[str, str] | None = None, token: str | None = None
    ) -> Said:
        """The answer to a verb with any JSON body, or with bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = f"POST {verb} {shown(body.decode('utf-8', 'replace') if isinstance(body, bytes) else body)}"
        deadline_ts = body.get("deadline_ts") if isinstance(body, dict) else None
        wait_s = AHEAD_S
        if isinstance(deadline_ts, int | float) and math.isfinite(deadline_ts):
            wait_s = min(max(deadline_ts - self.clock_now, 0.0), AHEAD_S)
        request = self._request("POST", f"{CHECKPOINT}/{verb}", headers, token, content)
        return await self._send(sent, request, wait_s + GRACE_S)

    async def get(self, path: str, *, headers: Mapping[str, str] | None = None, token: str | None = None) -> Said:
        """The answer to GET of a path."""
        return await self._send(f"GET {path}", self._request("GET", path, headers, token), AHEAD_S)

    async def acknowledge(self, body: Any) -> Said:
        """The answer to an acknowledgement of results."""
        path = f"{CONTROL_PREFIX}/results/acknowledge"
        request = self._request("POST", path, None, None, json.dumps(body).encode())
        return await self._send(f"POST acknowledge {shown(body)}", request, AHEAD_S)

    async def raw(self, method: str, path: str, *, headers: Mapping[str, str], body: Json | None = None) -> Said:
        """The answer to a request with these headers and no others of ours: without a token, unless they have one."""
        content = None if body is None else json.dumps(body).encode()
        request = self.client.build_request(method, self.url + path, headers=headers, content=content)
        told = f" {shown(dict(headers))}" if headers else ""
        return await self._send(f"{method} {path}{told}", request, AHEAD_S)

    async def status(self) -> Said:
        return await self.get(f"{CHECKPOINT}/status")

    async def standing(self) -> Standing:
        """Where the server stands now."""
        body = (await self.status()).ok().body
        report = body.get("report") if isinstance(body.get("report"), dict) else {}
        return Standing(
            phase=str(body.get("phase")),
            checkpoint_id=body.get("checkpoint_id"),
            lease_until=body.get("lease_expires_at"),
            retired=body.get("retired_rollouts", 0),
            counts=report.get("counts", {}),
        )

    @asynccontextmanager
    async def unchanged(self, after: str) -> AsyncIterator[None]:
        """What is sent inside of the block changes nothing that a status shows."""
        before = await self.standing()
        yield
        now = await self.standing()
        if now != before:
            raise NotConforming(after, f"afterwards {told(now)}", f"nothing to have changed: {told(before)}")

    async def stands(self, after: str, **fields: Any) -> Standing:
        """Where the server stands, which is there. Raises NotConforming."""
        now = await self.standing()
        expected = evolve(now, **fields)
        if now != expected:
            raise NotConforming(after, f"status: {told(now)}", f"status: {told(expected)}")
        return now

    async def prepared(self, checkpoint_id: str, **more: Any) -> Said:
        """The server is closed and quiet for this checkpoint; the answer that says so."""
        return (await self.call("prepare", checkpoint_id, **more)).ok(phase="prepared")

    async def lost(self, verb: str, body: Json) -> None:
        """The call is sent, and its caller has gone before the answer: once as it begins, once unheard."""
        content = json.dumps(body).encode()
        for pause_s in (0.0, 0.02):
            request = self._request("POST", f"{CHECKPOINT}/{verb}", None, None, content)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._unheard, request)
                await trio.sleep(pause_s)
                nursery.cancel_scope.cancel()
        await self._unheard(self._request("POST", f"{CHECKPOINT}/{verb}", None, None, content))

    async def _unheard(self, request: httpx.Request) -> None:
        """The answer has begun, and is not read: the connection is closed."""
        self.calls += 1
        with trio.move_on_after(PATIENCE_S):
            try:
                await (await self.client.send(request, stream=True)).aclose()
            except httpx.TransportError as error:
                raise NotConforming(f"{request.method} {request.url.path}", repr(error), "an answer") from error

    def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None,
        token: str | None,
        content: bytes | None = None,
    ) -> httpx.Request:
        given = {"authorization": f"Bearer {self.target.token if token is None else token}"}
        if self.epoch is not None:
            given[EPOCH_HEADER] = str(self.epoch)
        if content is not None:
            given["content-type"] = "application/json"
        return self.client.build_request(method, self.url + path, headers=given | dict(headers or {}), content=content)

    async def _send(self, sent: str, request: httpx.Request, within_s: float) -> Said:
        self.calls += 1
        with trio.move_on_after(within_s):
            try:
                reply = await self.client.send(request)
            except httpx.TransportError as error:
                raise NotConforming(sent, f"{type(error).__name__}: {error}", "an answer") from error
            return read(sent, reply)
        raise NotConforming(sent, f"no answer within {within_s:g} s", "an answer by then (I18)")

    # --- the shadow

    def shadow(self, lease_grace_s: float) -> Shadow:
        """The table beside this server, both of them idle."""
        return Shadow(incarnation=self.incarnation, epoch=self.epoch, lease_grace_s=lease_grace_s)

    async def lease_grace_s(self) -> float:
        """How long this server's lease lasts behind a deadline; it was prepared and resumed to know."""
        checkpoint_id = self.new_id()
        body = self.body(checkpoint_id, self.rules.moment_s)  # there may be something that it waits for
        said = (await self.post("prepare", body)).ok()
        until = (await self.standing()).lease_until
        await self.resumed(checkpoint_id)
        if type(until) not in (int, float) or until is None or until < body["deadline_ts"]:
            came = f"lease_expires_at {until} in status"
            raise NotConforming(said.sent, came, "a number: deadline_ts and the grace of a lease")
        return until - float(body["deadline_ts"])

    async def resumed(self, checkpoint_id: str) -> Said:
        return (await self.call("resume", checkpoint_id)).ok(phase="idle")

    # --- executions

    def episode(self, attempt: int = 0) -> EpisodeId:
        """An execution of a rollout that was never heard of."""
        return self.attempt(EpisodeId(f"{NAME}-{self._run}-r{len(self._episodes) + 1}", attempt))

    def attempt(self, episode: EpisodeId) -> EpisodeId:
        """The execution; it is retired and forgotten at the end."""
        self._episodes.append(episode)
        return episode

    async def start(self, episode: EpisodeId) -> None:
        with trio.move_on_after(PATIENCE_S) as scope, self._answering(episode):
            await self.driver.start(self, episode)
        if scope.cancelled_caught:
            raise NotTried(f"the driver's start() did not end within {PATIENCE_S:g} s")

    @asynccontextmanager
    async def blocking(self) -> AsyncIterator[EpisodeId]:
        """Inside of the block an execution, which is given, does something that a prepare has to wait for."""
        episode = self.episode()
        with trio.move_on_after(PATIENCE_S) as scope:
            async with self._blocked(episode):
                scope.deadline = math.inf
                report = (await self.status()).ok().body.get("report")
                if isinstance(report, dict) and episode.key in report.get("restarts", ()):
                    raise DoesNotApply("its executions start over, and block no checkpoint")
                yield episode
        if scope.cancelled_caught:
            raise NotTried(f"the driver's blocking() had not begun after {PATIENCE_S:g} s")

    @asynccontextmanager
    async def _blocked(self, episode: EpisodeId) -> AsyncIterator[None]:
        with self._answering(episode):
            async with self.driver.blocking(self, episode):
                yield

    async def touch(self, episode: EpisodeId, within_s: float = PATIENCE_S) -> Said | None:
        """The answer to a data request of the execution; None if there is none in time, and it has been given up."""
        self.calls += 1
        reply: httpx.Response | None = None
        with trio.move_on_after(within_s), self._answering(episode):
            reply = await self.driver.touch(self, episode)
        return None if reply is None else read(self.touching(episode), reply)

    @contextmanager
    def _answering(self, episode: EpisodeId) -> Iterator[None]:
        """A connection of the driver's that fails is the server's fault, as it is for a control call."""
        try:
            yield
        except httpx.TransportError as error:
            raise NotConforming(self.touching(episode), f"{type(error).__name__}: {error}", "an answer") from error

    def touching(self, episode: EpisodeId) -> str:
        return f"a data request of {episode.key}"

    async def accepted(self, episode: EpisodeId) -> None:
        """A request of the execution is served. Raises NotConforming."""
        said = await self.touch(episode)
        if said is None:
            raise NotConforming(self.touching(episode), "no answer", "2xx: the server is open, and the attempt its own")
        if not 200 <= said.status < 300:
            raise said.differs("2xx: the server is open, and the attempt its own")

    async def fenced(self, episode: EpisodeId) -> None:
        """A request of the execution gets `stale_attempt` (I7). Raises NotConforming."""
        said = await self.touch(episode)
        if said is None:
            raise NotConforming(self.touching(episode), "no answer", "409 stale_attempt")
        said.refused("stale_attempt")

    async def not_served(self, episode: EpisodeId) -> None:
        """A request of the execution is held or refused, as the server is closed (I24). Raises NotConforming."""
        said = await self.touch(episode, self.rules.moment_s)
        if said is not None and said.code != "admission_closed":
            raise said.differs("no answer before the resume, or 409 admission_closed: the server is closed")

    @asynccontextmanager
    async def another(self) -> AsyncIterator[Subject]:
        """A fresh process of the same name."""
        try:
            async with self.driver.fresh() as target, subject(target, self.driver, self.rules) as other:
                try:
                    yield other
                finally:
                    self.calls += other.calls
        except httpx.TransportError as error:
            raise NotTried(f"the driver's fresh() failed: {type(error).__name__}: {error}") from error

    # --- files

    @property
    def disk(self) -> Disk:
        return self.target.seams.disk

    def folder(self) -> Path:
        """A directory below the root that is not there yet; what comes to be in it is removed at the end."""
        if self.target.root is None:
            raise NotTried("needs --root: the server's checkpoint root, where its files can be read")
        self._folders.append(self.target.root / f"{NAME}-{self._run}-{len(self._folders) + 1}")
        return self._folders[-1]

    async def part(self, folder: Path, after: Said) -> Part:
        """The part that the server wrote into the folder, every byte of it checked. Raises NotConforming."""
        try:
            return await on_disk(self.disk, self._read, folder)
        except InvalidCheckpointState as error:
            raise NotConforming(after.sent, f"on disk: {error}", "a whole part (docs/reference/files.md)") from error

    def _read(self, folder: Path) -> Part:
        return read_part(self.disk, folder, kind=self.kind, instance=self.instance, foreign=True)

    async def files(self, below: Path) -> dict[str, bytes]:
        """The content of every file below a directory, by path."""
        return await on_disk(self.disk, _files, self.disk, below)

    # --- the end

    async def tidied(self) -> None:
        """Nothing of what was made here is open, held, kept or on the disk. Raises NotConforming."""
        try:
            open_id = (await self.standing()).checkpoint_id if self._ids else None
            for checkpoint_id in sorted(self._ids, key=lambda each: each != open_id):
                await self.resumed(checkpoint_id)  # all of them, so that no call of ours that is late opens one
            if self._episodes:
                await self._end_executions()
        finally:  # also of a server that is gone
            for folder in self._folders:
                await on_disk(self.disk, _remove, self.disk, folder)

    async def _end_executions(self) -> None:
        end = self.new_id()
        named = [{"rollout_id": each.rollout_id, "attempt": each.attempt} for each in self._episodes]
        rollouts = sorted({each.rollout_id for each in self._episodes})
        (await self.call("retire", end, episode_ids=named)).ok()
        if self.has_results:
            listed = (await self.get(f"{CONTROL_PREFIX}/results")).ok().body.get("receipts", [])
            ours = [each for each in listed if each.get("rollout_id") in rollouts]
            if ours:
                (await self.acknowledge({"receipts": ours})).ok()
        (await self.call("forget", end, rollout_ids=rollouts)).ok()


@asynccontextmanager
async def subject(target: Target, driver: Driver, rules: Rules) -> AsyncIterator[Subject]:
    """A server in the hands of one check; at its end background tasks are over and the server is tidied."""
    failed: Exception | None = None
    transport = None if target.transport is None else _Lent(target.transport)
    async with make_client(transport, connect_timeout_s=GRACE_S) as client:
        made = Subject(target, driver, client, rules)
        await made.learn()
        try:
            async with made.at_work():
                try:
                    yield made
                except Exception as error:  # raised again below, where no nursery wraps it into a group
                    failed = error
        finally:  # also when it is interrupted: a server that is left closed stays so until its lease ends
            with trio.CancelScope(shield=True, deadline=trio.current_time() + TIDY_S):
                try:
                    await made.tidied()
                except NotConforming as untidy:
                    failed = untidy if isinstance(failed, NotTried | DoesNotApply) else failed or untidy
    if failed is not None:
        raise failed


class _Lent(httpx.AsyncBaseTransport):
    """Somebody else's transport, which is not closed with a client."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._inner.handle_async_request(request)


async def _until_lost(function: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
    with suppress(httpx.TransportError):
        await function(*args)


def read(sent: str, reply: httpx.Response) -> Said:
    """The answer that a reply is."""
    try:
        body = json.loads(reply.content)
    except (ValueError, RecursionError):
        body = reply.content.decode("utf-8", "replace")
    return Said(sent, reply.status_code, body, {name.lower(): value for name, value in reply.headers.items()})


def told(standing: Standing) -> str:
    """A standing in one line."""
    lease = "no lease" if standing.lease_until is None else f"lease until {standing.lease_until:.3f}"
    counts = ", ".join(f"{name} {number}" for name, number in sorted(standing.counts.items())) or "nothing"
    where = f"{standing.phase}, checkpoint {standing.checkpoint_id}, {lease}, {standing.retired} retired"
    return f"{where}, holds {counts}"


def _files(disk: Disk, below: Path) -> dict[str, bytes]:
    kind = disk.kind(below)
    if kind == "file":
        return {str(below): disk.read(below)}
    if kind != "dir":
        return {}
    return {name: data for each in disk.listdir(below) for name, data in _files(disk, below / each).items()}


def _remove(disk: Disk, path: Path) -> None:
    kind = disk.kind(path)
    if kind == "dir":
        for name in disk.listdir(path):
            _remove(disk, path / name)
        disk.rmdir(path)
    elif kind is not None:
        disk.unlink(path)
