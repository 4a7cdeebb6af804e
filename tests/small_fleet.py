"""Four small servers that speak the control plane, for tests of the coordinator: no framework of ours inside them.

All four are one fleet with one set of episodes in memory, so a kill of the fleet loses everything that no file holds. A
turn of a rollout takes `turn_s`; `Fleet.played` counts every turn that any fleet of a test ever played.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.files.snapshots import read_part, write_part
from participants.identity import EpisodeId
from participants.records.positions import Position, advance, seed_position
from participants.records.records import (
    AgentBoundary,
    EnvironmentBoundary,
    ModelRow,
    PartRef,
    Receipt,
    ResourcesState,
    task_digest,
)
from participants.serving.testing import InMemoryLauncher, InMemoryNetwork
from statecore.seams import Clock, MemoryDisk, SeededEntropy
from statecore.wire import digest

TOKEN = "tok"
SHOWN = 100
KINDS = {"env": "environment", "policy": "model", "agent": "agent", "tools": "resources"}
ROLES = {"env": "environment", "policy": "policy", "agent": "agent", "tools": "resources"}

Reply = dict[str, Any]
Script = Callable[["FakeServer", Reply], "Reply | Response | None"]


@define(eq=False)
class FakeEpisode:
    """One execution: how many turns it has done, where its tool session stands, which calls it made."""

    episode: EpisodeId
    task: Any
    position: Position
    turn: int = 0
    rows: list[Reply] = field(factory=list)
    parked: bool = False
    started: bool = False
    done: trio.Event = field(factory=trio.Event)
    failed: tuple[int, str] | None = None
    receipt: Receipt | None = None
    digest: str = ""
    scope: trio.CancelScope = field(factory=trio.CancelScope)


@define(eq=False)
class History:
    """What outlives every fleet of one test: turns played, control calls made, results released.

    `steps` are the turns once more, each with the epoch and the execution that played it.
    """

    played: list[tuple[str, int]] = field(factory=list)
    steps: list[tuple[int, EpisodeId, int]] = field(factory=list)
    calls: list[tuple[str, str, Reply]] = field(factory=list)
    released: list[str] = field(factory=list)
    scripts: dict[tuple[str, str], Script] = field(factory=dict)
    features: tuple[str, ...] = ()

    def verbs(self, server: str | None = None) -> list[str]:
        return [verb for name, verb, _ in self.calls if server in (None, name)]

    def bodies(self, server: str, verb: str) -> list[Reply]:
        return [body for name, called, body in self.calls if (name, called) == (server, verb)]


@define(eq=False)
class FakeServer:
    """One server. `phase` and the rest as the wire shows them; `fenced` are checkpoint ids that have ended."""

    name: str
    fleet: Fleet
    incarnation: str
    phase: str = "idle"
    checkpoint_id: str | None = None
    born: bool = True
    fenced: set[str] = field(factory=set)
    retired: dict[str, int] = field(factory=dict)
    committed: Reply = field(factory=dict)
    left_out: set[EpisodeId] = field(factory=set)

    @property
    def kind(self) -> str:
        return KINDS[self.name]

    @property
    def open(self) -> bool:
        return self.phase == "idle" and not self.born

    @property
    def manifest_extra(self) -> Reply:
        """What its manifests hold beyond their own fields."""
        return {"incarnation": self.incarnation, "epoch": self.fleet.epoch}

    def stamped(self, reply: Reply) -> Reply:
        clock = self.fleet.clock
        stamp: Reply = {"server_ts": clock.time() + self.fleet.skew_s}
        if self.incarnation:  # a peer of another make shows none
            stamp["incarnation"] = self.incarnation
        return stamp | {"epoch": self.fleet.epoch} | reply

    def refuse(self, status: int, code: str, detail: str = "") -> Response:
        return JSONResponse(self.stamped({"error": {"code": code, "detail": detail}}), status)

    def app(self) -> Starlette:
        control = "/ng-control/v1"
        routes = [
            Route(f"{control}/capabilities", self.capabilities),
            Route(f"{control}/checkpoint/status", self.status),
            Route(f"{control}/results", self.results),
            Route(f"{control}/results/acknowledge", self.acknowledge, methods=["POST"]),
            Route("/run", self.run, methods=["POST"]),
        ]
        routes += [
            Route(f"{control}/checkpoint/{verb}", self.verb(verb), methods=["POST"])
            for verb in ("prepare", "commit", "restore", "resume", "renew", "retire")
        ]
        return Starlette(routes=routes)

    # --- control plane

    async def capabilities(self, _request: Request) -> Response:
        script = self.fleet.history.scripts.get((self.name, "capabilities"))
        said: Reply = {
            "kind": self.kind,
            "instance": self.name,
            "instance_role": ROLES[self.name],
            "checkpoint_mode": "exported",
            "features": list(self.fleet.history.features),
        }
        answer = script(self, {}) if script is not None else None
        if isinstance(answer, Response):
            return answer
        return JSONResponse(self.stamped(said | (answer or {})))

    async def status(self, _request: Request) -> Response:
        script = self.fleet.history.scripts.get((self.name, "status"))
        answer = script(self, {}) if script is not None else None
        if isinstance(answer, Response):
            return answer
        said: Reply = {"kind": self.kind, "instance": self.name, "phase": self.phase}
        said["checkpoint_id"] = self.checkpoint_id
        said["report"] = self.report(self.blockers())
        return JSONResponse(self.stamped(said))

    def verb(self, verb: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            body = await request.json()
            self.fleet.history.calls.append((self.name, verb, body))
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return self.refuse(401, "unauthorized")
            if request.headers.get("x-statecore-incarnation") not in (None, self.incarnation):
                return self.refuse(409, "stale_incarnation")
            if request.headers.get("x-statecore-epoch") != str(self.fleet.epoch):
                return self.refuse(409, "stale_epoch")
            script = self.fleet.history.scripts.get((self.name, verb))
            answer = script(self, body) if script is not None else None
            if answer is None:
                answer = await getattr(self, f"on_{verb}")(body)
            return answer if isinstance(answer, Response) else JSONResponse(self.stamped(answer))

        return endpoint

    def wrong_id(self, body: Reply) -> Response | None:
        if body["checkpoint_id"] in self.fenced:
            return self.refuse(409, "stale_checkpoint")
        if self.checkpoint_id not in (None, body["checkpoint_id"]):
            return self.refuse(409, "checkpoint_conflict")
        return None

    async def on_prepare(self, body: Reply) -> Reply | Response:
        wrong = self.wrong_id(body)
        if wrong is not None or self.born:
            return wrong or self.refuse(409, "invalid_phase")
        if "leave_out" in body and "leave_out" not in self.fleet.history.features:
            return JSONResponse({"detail": [{"type": "extra_forbidden", "loc": ["body", "leave_out"]}]}, 422)
        self.left_out |= {EpisodeId(**each) for each in body.get("leave_out", ())}
        self.phase, self.checkpoint_id = "preparing", body["checkpoint_id"]
        while self.phase == "preparing":
            blockers = self.blockers()
            if not blockers:
                self.phase = "prepared"
            elif self.fleet.clock.time() >= body["deadline_ts"]:
                break
            else:
                await trio.sleep(0.1)
        return {"phase": self.phase, "report": self.report(self.blockers())}

    def blockers(self) -> list[FakeEpisode]:
        if self.name != "env":
            return []
        moving = [each for each in self.fleet.live() if each.started and not each.parked]
        return [each for each in moving if each.episode not in self.left_out]

    def report(self, blockers: list[FakeEpisode]) -> Reply:
        count, blockers = len(blockers), blockers[:SHOWN]
        retained = [each.receipt.to_json() for each in self.fleet.retained() if each.receipt is not None]
        return {
            "ready": not count,
            "blockers": [each.episode.key for each in blockers],
            "blocker_count": count,
            "counts": {},
            "restarts": list(self.fleet.restarts) if self.name == "tools" else [],
            "blocker_details": [
                {
                    "rollout_id": each.episode.rollout_id,
                    "attempt": each.episode.attempt,
                    "reason": "running a turn",
                    "waited_s": 1.5,
                }
                for each in blockers
            ],
            "retained": retained if self.name == "env" else [],
        }

    async def on_commit(self, body: Reply) -> Reply | Response:
        wrong = self.wrong_id(body)
        if self.phase == "committed" and wrong is None:
            return self.committed
        if wrong is not None or self.phase != "prepared":
            return wrong or self.refuse(409, "invalid_phase", self.phase)
        scope = {EpisodeId(**each) for each in body["episode_ids"]}
        exported = [each for each in self.fleet.live() if each.episode in scope]
        manifest = write_part(
            self.fleet.disk,
            Path(body["checkpoint_dir"]),
            kind=self.kind,
            instance=self.name,
            checkpoint_id=body["checkpoint_id"],
            records=[self.record(each) for each in exported],
            extra=self.manifest_extra,
            entropy=self.fleet.entropy,
        )
        self.phase = "committed"
        keys = sorted(each.episode.key for each in exported)
        self.committed = {"phase": "committed", "manifest": manifest.to_json(), "episode_ids": keys}
        return self.committed

    def record(self, each: FakeEpisode) -> Reply:
        head: Reply = {"episode_id": {"rollout_id": each.episode.rollout_id, "attempt": each.episode.attempt}}
        digested, at_start = each.digest or task_digest(each.task), each.turn == 0
        if self.kind == "environment":
            step = EnvironmentBoundary(step_index=1, results=[], state=None, sessions={}).to_json()
            return head | {"task_digest": digested, "boundary": None if at_start else step}
        if self.kind == "model":
            return head | {"generation_cuts": [], "rows": list(each.rows)}
        if self.kind == "resources":
            state = ResourcesState(codec="turns", position=each.position, operations={}, data=each.turn)
            return head | {"session_id": each.episode.rollout_id, "state": state.to_json()}
        part = PartRef(kind="resources", instance="tools", key=each.episode.rollout_id, position=each.position)
        boundary = AgentBoundary(
            boundary_index=each.turn,
            previous=None,
            task_digest=digested,
            data_position=None,
            last_model_call_id=each.rows[-1]["model_call_id"] if each.rows else None,
            lineage_head=None,
            parts=(part,),
            items=[],
            usage={},
            cookies={},
            steps_used=each.turn,
            elapsed_s=0.0,
            state={"turn": each.turn},
        ).to_json()
        session = {"session_key": "k", "boundary": None if at_start else boundary, "episode": None, "session": {}}
        return head | session

    async def on_restore(self, body: Reply) -> Reply | Response:
        scope = {EpisodeId(**each) for each in body["episode_ids"]}
        part = read_part(self.fleet.disk, Path(body["checkpoint_dir"]), kind=self.kind, instance=self.name, scope=scope)
        self.phase, self.checkpoint_id, self.born = "restored", body["checkpoint_id"], False
        restored = []
        for record in part.records:
            episode = EpisodeId(**record["episode_id"]).successor
            self.fleet.install(self.kind, episode, record)
            restored.append(episode.key)
        self.retired |= {each.rollout_id: each.attempt for each in scope}
        return {
            "phase": "restored",
            "source_checkpoint_id": part.manifest.checkpoint_id,
            "restored": sorted(restored),
        }

    async def on_resume(self, body: Reply) -> Reply | Response:
        if self.checkpoint_id not in (None, body["checkpoint_id"]):
            return self.refuse(409, "checkpoint_conflict")
        idempotent = self.open
        self.reopen(body["checkpoint_id"])
        return {"phase": "idle", "idempotent": idempotent}

    def reopen(self, checkpoint_id: str) -> None:
        """As resume and as the end of a lease do."""
        self.fenced.add(checkpoint_id)
        self.phase, self.checkpoint_id, self.born = "idle", None, False
        self.left_out = set()
        self.fleet.changed()

    async def on_renew(self, body: Reply) -> Reply | Response:
        wrong = self.wrong_id(body)
        if wrong is not None or self.phase == "idle":
            return wrong or self.refuse(409, "invalid_phase")
        return {"lease_expires_at": body["deadline_ts"] + 600.0}

    async def on_retire(self, body: Reply) -> Reply | Response:
        if self.phase not in ("idle", "restored"):
            return self.refuse(409, "invalid_phase")
        episodes = [EpisodeId(**each) for each in body["episode_ids"]]
        for each in episodes:
            self.retired[each.rollout_id] = max(each.attempt, self.retired.get(each.rollout_id, 0))
            self.fleet.drop(each)
        return {"retired": [each.key for each in episodes]}

    # --- results and rollouts

    async def results(self, _request: Request) -> Response:
        if self.name != "env":
            return JSONResponse({"detail": "Not Found"}, 404)
        retained = [each.receipt.to_json() for each in self.fleet.retained() if each.receipt is not None]
        return JSONResponse(self.stamped({"receipts": retained}))

    async def acknowledge(self, request: Request) -> Response:
        answer: Reply = {"acknowledged": [], "unknown": [], "mismatched": []}
        for receipt in (await request.json())["receipts"]:
            each = self.fleet.episodes.get(EpisodeId(receipt["rollout_id"], receipt["attempt"]))
            exact = each is not None and each.receipt is not None and each.receipt.to_json() == receipt
            answer["acknowledged" if exact else "unknown"].append(receipt)
            if exact:
                self.fleet.history.released.append(receipt["rollout_id"])
                self.fleet.released.add(EpisodeId(receipt["rollout_id"], receipt["attempt"]))
        return JSONResponse(self.stamped(answer))

    async def run(self, request: Request) -> Response:
        body = await request.json()
        episode = EpisodeId(**body["episode_id"])
        self.fleet.history.calls.append((self.name, "run", body))
        script = self.fleet.history.scripts.get((self.name, "run"))
        answer = script(self, body) if script is not None else None
        if isinstance(answer, Response):
            return answer
        if episode.attempt <= self.retired.get(episode.rollout_id, -1):
            return self.refuse(409, "stale_attempt")
        each = self.fleet.episodes.get(episode)
        if each is None or not each.started:
            if not self.open:
                return self.refuse(409, "admission_closed")
            each = self.fleet.begin(episode, body["task"])
        await each.done.wait()
        if each.failed is not None:
            return self.refuse(*each.failed)
        assert each.receipt is not None
        headers = {"x-ng-result-receipt": each.receipt.header, "x-statecore-incarnation": self.incarnation}
        return JSONResponse(self.fleet.result(each), headers=headers)


@define(eq=False)
class Fleet:
    """One start of all servers: they share `episodes`, and all of it is gone when they are killed."""

    epoch: int
    clock: Clock
    disk: MemoryDisk
    entropy: SeededEntropy
    history: History
    nursery: trio.Nursery
    restarts: list[str] = field(factory=list)
    skew_s: float = 0.0
    servers: dict[str, FakeServer] = field(factory=dict)
    episodes: dict[EpisodeId, FakeEpisode] = field(factory=dict)
    released: set[EpisodeId] = field(factory=set)
    _moved: trio.Event = field(factory=trio.Event)

    def server(self, name: str) -> FakeServer:
        if name not in self.servers:
            self.servers[name] = FakeServer(name, self, self.entropy.token_hex(16))
        return self.servers[name]

    def changed(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    def live(self) -> list[FakeEpisode]:
        return [each for each in self.episodes.values() if not each.done.is_set()]

    def retained(self) -> list[FakeEpisode]:
        finished = (each for each in self.episodes.values() if each.receipt is not None)
        return [each for each in finished if each.episode not in self.released]

    def result(self, each: FakeEpisode) -> Reply:
        return {"reward": each.turn, "calls": [row["model_call_id"] for row in each.rows]}

    def begin(self, episode: EpisodeId, task: Any) -> FakeEpisode:
        each = self.episodes.get(episode)
        if each is None:
            each = self.episodes[episode] = FakeEpisode(episode, task, seed_position(self.entropy))
        each.task, each.started = task, True
        self.nursery.start_soon(self.play, each)
        return each

    async def play(self, each: FakeEpisode) -> None:
        with each.scope:
            while each.turn < each.task["turns"]:
                await self.boundary(each)
                await trio.sleep(each.task.get("turn_s", 1.0))
                each.turn += 1
                call = f"{each.episode.rollout_id}-m{each.turn}"
                parent = each.rows[-1]["model_call_id"] if each.rows else None
                each.rows.append(ModelRow(model_call_id=call, parent_call_id=parent).to_json())
                each.position = advance(each.position, call)
                self.history.played.append((each.episode.rollout_id, each.turn))
                self.history.steps.append((self.epoch, each.episode, each.turn))
            if "fails" in each.task:
                each.failed = tuple(each.task["fails"])
            else:
                self.finish(each)
            each.done.set()
            self.changed()

    async def boundary(self, each: FakeEpisode) -> None:
        while not self.servers["env"].open:
            each.parked = True
            await self._moved.wait()
        each.parked = False

    def finish(self, each: FakeEpisode) -> None:
        each.receipt = Receipt(
            rollout_id=each.episode.rollout_id,
            attempt=each.episode.attempt,
            epoch=self.epoch,
            result_identity=self.entropy.token_hex(16),
            result_sha256=digest(self.result(each)),
        )

    def install(self, kind: str, episode: EpisodeId, record: Reply) -> None:
        """One record of a checkpoint, under N+1."""
        each = self.episodes.get(episode)
        if each is None:
            each = self.episodes[episode] = FakeEpisode(episode, None, seed_position(self.entropy))
        if kind == "environment":
            each.digest = record["task_digest"]
        elif kind == "model":
            each.rows = list(record["rows"])
        elif kind == "resources":
            state = ResourcesState.read(record["state"])
            assert state is not None
            each.turn, each.position = state.data, state.position
        each.parked = True

    def drop(self, retired: EpisodeId) -> None:
        for episode in list(self.episodes):
            each = self.episodes[episode]
            if episode.rollout_id != retired.rollout_id or episode.attempt > retired.attempt or each.done.is_set():
                continue
            each.failed = (409, "stale_attempt")
            each.scope.cancel()
            each.done.set()
            del self.episodes[episode]


@define(eq=False)
class Deployments:
    """A launcher of fleets, one at a time, over one disk and one history."""

    network: InMemoryNetwork
    clock: Clock
    disk: MemoryDisk
    nursery: trio.Nursery
    history: History = field(factory=History)
    names: tuple[str, ...] = tuple(KINDS)
    restarts: list[str] = field(factory=list)
    skew_s: float = 0.0
    fleets: list[Fleet] = field(factory=list)
    launcher: InMemoryLauncher | None = None
    stopped: int = 0

    @property
    def fleet(self) -> Fleet:
        return self.fleets[-1]

    async def start(self, epoch: int) -> Mapping[str, str]:
        fleet = Fleet(
            epoch, self.clock, self.disk, SeededEntropy(epoch), self.history, self.nursery, self.restarts, self.skew_s
        )
        self.fleets.append(fleet)
        factories = {name: partial(_app, fleet.server(name)) for name in self.names}
        self.launcher = InMemoryLauncher(self.network, factories)
        return await self.launcher.start(epoch)

    async def stop(self) -> None:
        self.stopped += 1
        self.kill()

    def kill(self) -> None:
        """As kill -9 to all of them."""
        if self.launcher is not None:
            self.launcher.kill()
        for fleet in self.fleets[-1:]:
            for each in fleet.episodes.values():
                each.scope.cancel()


def _app(server: FakeServer, _epoch: int, _urls: Mapping[str, str]) -> Starlette:
    return server.app()
