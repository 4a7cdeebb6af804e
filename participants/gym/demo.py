"""`statecore gym demo`: the story of `statecore demo` on real NeMo Gym servers.

Rollouts run on servers that nobody here wrote, embedded; a checkpoint is taken half-way; then servers are killed with
SIGKILL, and the collection goes on from the files. With the scripted policy the same rollouts run undisturbed as well,
to compare. Turns are counted where they are paid for: at the model. The last line says what the crash cost.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, field, frozen

from statecore.cli import UsageError
from statecore.errors import StatecoreError
from statecore.exception_groups import single
from statecore.seams import SystemEntropy
from statecore.wire import parse, structure

from ..collecting.collector import Ask, Collector, CollectSettings, Watcher, collect
from ..collecting.output import OURS, OutputFile
from ..collecting.tasks import Tasks
from ..commands.console import count, logged_to
from ..coordination.coordinator import Coordinator, CoordinatorSettings
from ..coordination.outcomes import Aborted, Published, Recovered, Restarted
from ..coordination.trainer import Result
from ..files.checkpoint import Checkpoint
from ..files.store import Store
from ..records.manifests import CheckpointId
from ..records.records import AgentBoundary, AgentRecord, Disposition
from ..serving.launcher import ProcessLauncher
from ..serving.lifespan import StartupFailed
from ..settings import Seams, control_token
from .fleet import gym_launcher
from .transcript import Transcript
from .upstream import Asked, Model, asked, spec

ALL: Final = "all"
MODEL: Final = "policy_model"
LEASE_GRACE_S: Final = 5.0
CHECKPOINT_S: Final = 60.0
LONGEST_S: Final = 900.0
LOOK_EVERY_S: Final = 0.02
TURN_S: Final = 0.3
DESCRIPTION: Final = """\
Starts real NeMo Gym servers, embedded: a policy model, agents, resources servers. Rollouts run on them, a checkpoint is
taken half-way, and then everything, or one server, is killed with SIGKILL. It goes on from the files, and the last line
says what the crash cost. Needs an environment with NeMo Gym in it."""


class DemoFailed(Exception):
    """The story could not be told; the message says why."""


EXPECTED: Final = (DemoFailed, StatecoreError, StartupFailed, OSError)


# --- the job


@frozen
class Game:
    """A component of Gym with rollouts for it: the file of its examples, and the tool calls of rollout `number`."""

    name: str
    component: str
    calls: Callable[[int], list[dict[str, Any]]]
    fields: Callable[[int], dict[str, Any]]


def _call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def _counting(number: int) -> list[dict[str, Any]]:
    adds = [_call("increment_counter", count=1 + (number + step) % 4) for step in range(3 + number % 3)]
    return [*adds, _call("get_counter_value")]


def _counted(number: int) -> dict[str, Any]:
    adds = sum(each["arguments"].get("count", 0) for each in _counting(number))
    return {"initial_count": number, "expected_count": number + adds}


def _office(number: int) -> list[dict[str, Any]]:
    subject = f"Report {number}"
    return [
        _call("company_directory_find_email_address", name="carlos"),
        _call("email_send_email", recipient="carlos.rodriguez@atlas.com", subject=subject, body="It is done."),
        _call("email_search_emails", query=subject),
        _call("email_reply_email", email_id="00000057", body=f"Thanks, {number}."),
    ]


def _office_truth(number: int) -> dict[str, Any]:
    done = [each for each in _office(number) if each["name"] in ("email_send_email", "email_reply_email")]
    return {"ground_truth": [{**each, "arguments": json.dumps(each["arguments"])} for each in done]}


GAMES: Final = (
    Game("counter", "example_session_state_mgmt", _counting, _counted),
    Game("workplace", "workplace_assistant", _office, _office_truth),
)


def example(component: str) -> dict[str, Any]:
    """The first of the example tasks that a component ships."""
    folder = Path(sysconfig.get_paths()["purelib"]) / "resources_servers" / component / "data"
    with (folder / "example.jsonl").open() as lines:
        task: dict[str, Any] = parse(next(lines))
    return task


def task_of(game: Game, number: int, *, planned: bool) -> dict[str, Any]:
    """A task; `planned`: it says which tools to call, for the scripted policy."""
    task = example(game.component)
    task["agent_ref"] = {"type": "responses_api_agents", "name": f"{game.name}_agent"}
    given = task["responses_create_params"]
    if planned:
        text = f"Rollout {number}. Make these calls, one after the other: {json.dumps(game.calls(number))}"
        given["input"] = [{"role": "user", "content": text}]
        return {**task, **game.fields(number)}
    said = given["input"]
    said = [{"role": "user", "content": said}] if isinstance(said, str) else said
    given["input"] = [{"role": "system", "content": f"This is rollout {number}."}, *said]
    return task


def config_of(upstream: str, model: str, key: str, games: Iterable[Game] = GAMES) -> dict[str, Any]:
    """Gym's configuration of a model and of each game's servers."""
    config: dict[str, Any] = {
        "head_server": {"host": "127.0.0.1", "port": 11000},
        "default_host": "127.0.0.1",
        "dry_run": False,
        MODEL: {
            "responses_api_models": {
                "openai_model": {
                    "entrypoint": "app.py",
                    "openai_base_url": upstream,
                    "openai_api_key": key,
                    "openai_model": model,
                }
            }
        },
    }
    for game in games:
        config[game.name] = {"resources_servers": {game.component: {"entrypoint": "app.py", "domain": "agent"}}}
        agent = {
            "entrypoint": "app.py",
            "resources_server": {"type": "resources_servers", "name": game.name},
            "model_server": {"type": "responses_api_models", "name": MODEL},
        }
        config[f"{game.name}_agent"] = {"responses_api_agents": {"simple_agent": agent}}
    return config


SERVERS: Final = (MODEL, *(name for game in GAMES for name in (game.name, f"{game.name}_agent")))


# --- counting


def held_by(checkpoint: Checkpoint) -> tuple[dict[str, int], frozenset[str]]:
    """The turns of each rollout under way that a checkpoint has, and the rollouts that it has the result of."""
    turns: dict[str, int] = {}
    for part in checkpoint.of_kind("agent"):
        for record in part.typed:
            boundary = AgentBoundary.read(record.boundary) if isinstance(record, AgentRecord) else None
            if boundary is not None:
                calls = structure(boundary.state, Transcript).calls
                turns[record.episode_id.rollout_id] = sum(each.server == MODEL for each in calls)
    known = {row.rollout_id for row in checkpoint.registry if row.disposition is Disposition.COMPLETED}
    return turns, frozenset(known)


Turn = tuple[str, int]
"""A rollout and one of its turns, from 0."""


@frozen
class Cost:
    """What the crash cost, in turns, and what became of the results."""

    held: int
    redone: int
    without: int
    missing: tuple[str, ...]
    doubled: tuple[str, ...]
    different: tuple[str, ...] | None

    @property
    def good(self) -> bool:
        return not (self.redone or self.missing or self.doubled or self.different)

    def line(self) -> str:
        """The verdict."""
        told = [
            f"held turns run again: {self.redone} of {self.held}",
            f"without checkpoints it had been {self.without}",
            f"results lost: {len(self.missing)}",
            f"doubled: {len(self.doubled)}",
        ]
        if self.different is None:
            told.append("not compared: a real model need not say the same twice")
        else:
            told.append(
                "all equal the undisturbed run" if not self.different else f"different: {', '.join(self.different)}"
            )
        return "; ".join(told)


def counted(
    before: list[Turn], after: list[Turn], turns: Mapping[str, int], completed: frozenset[str]
) -> tuple[int, int, int]:
    """Held turns; held turns that the model was asked for again; turns that would run again without a checkpoint.

    `before` and `after` are the turns that the model was asked for up to the crash and from then on.
    """
    done: dict[str, set[int]] = {}
    for name, turn in before:
        done.setdefault(name, set()).add(turn)
    held = {name: (done[name] if name in completed else set(range(turns.get(name, 0)))) for name in done}
    again = sum(turn in held.get(name, ()) for name, turn in after)
    without = sum(len(each) for name, each in done.items() if name not in completed)
    return sum(map(len, held.values())), again, without


# --- the command


def add_demo(commands: Any) -> None:
    """The command is known to the parser."""
    parser = commands.add_parser(
        "demo",
        help="real Gym servers: checkpointed, killed with SIGKILL, brought back",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kill", choices=[ALL, *SERVERS], default=ALL, help="all (every server and the coordinator), or one server"
    )
    parser.add_argument("--rollouts", type=int, default=12, metavar="R", help="how many (12)")
    parser.add_argument("--upstream", metavar="URL", help="a real OpenAI-compatible model, as https://host/v1")
    parser.add_argument("--model", default="scripted", metavar="NAME", help="its name, for --upstream")
    parser.add_argument("--key-from", metavar="VARIABLE", help="the environment variable with its key")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep checkpoints, results and logs there")
    parser.set_defaults(run=run_demo)


def run_demo(args: argparse.Namespace) -> int:
    """The exit code: 0 when the crash cost nothing that was held."""
    if args.rollouts < 2:
        raise UsageError("--rollouts: at least 2")
    key = _key(args.key_from)
    try:
        version = importlib.metadata.version("nemo-gym")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError("there is no NeMo Gym in this environment: `make gym-demo` makes one") from None
    if args.dir is not None and args.dir.exists() and any(args.dir.iterdir()):
        raise UsageError(f"--dir {args.dir} is no empty directory")
    folder = Path(tempfile.mkdtemp(prefix="statecore-gym-")) if args.dir is None else args.dir.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{count(args.rollouts, 'rollout')} on {len(SERVERS)} servers of NeMo Gym {version}; files in {folder}")
    with logged_to(folder / "coordinator.log"):
        try:
            cost = trio.run(_within_bounds, _Story(folder, args, key))
        except Exception as error:
            cause = single(error)
            if not isinstance(cause, EXPECTED):
                raise
            print(f"statecore gym demo: {cause}; its files are in {folder}", file=sys.stderr)
            return 1
    print(cost.line())
    if cost.good and args.dir is None:
        shutil.rmtree(folder)
    return 0 if cost.good else 1


def _key(variable: str | None) -> str:
    if variable is None:
        return "none"
    key = control_token(variable)
    if not key:
        raise UsageError(f"--key-from: there is no {variable} in the environment")
    return key


async def _within_bounds(story: _Story) -> Cost:
    with trio.move_on_after(LONGEST_S) as bound:
        return await story.tell()
    assert bound.cancelled_caught
    raise DemoFailed(f"it has not come to its end within {LONGEST_S:g} s")


# --- the story


@define(eq=False)
class _Told(Watcher):
    """Says what happens, and tells whoever waits for the checkpoint."""

    saved: trio.Event = field(factory=trio.Event)
    checkpoints: list[Published] = field(factory=list)

    def recovered(self, recovered: Recovered) -> None:
        print(f"  {recovered.story()}", flush=True)

    def checkpoint(self, outcome: Published | Aborted) -> None:
        print(f"  {outcome.story()}", flush=True)
        if isinstance(outcome, Published):
            self.checkpoints.append(outcome)
            self.saved.set()

    def restarted(self, report: Restarted) -> None:
        print(f"  {report.story()}", flush=True)

    def result(self, result: Result) -> None:
        return


@define(eq=False)
class _Story:
    folder: Path
    args: argparse.Namespace
    key: str
    token: str = field(factory=lambda: SystemEntropy().token_hex(16))
    seams: Seams = field(factory=Seams)
    tasks: Tasks = field(init=False)
    names: dict[str, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        real = self.args.upstream is not None
        lines = [task_of(GAMES[n % len(GAMES)], n, planned=not real) for n in range(self.args.rollouts)]
        self.tasks = Tasks(tuple(lines), 1, "")
        params = [line["responses_create_params"] for line in lines]
        self.names = {asked(each).conversation: self.tasks.rollout_id(n) for n, each in enumerate(params)}

    async def tell(self) -> Cost:
        log = self.folder / "model.jsonl"
        log.touch()
        model = ProcessLauncher(
            [spec(Model(log=str(log), delay_s=TURN_S, forward=self.args.upstream))], self.folder / "logs", lifeline=True
        )
        try:
            url = f"{(await model.start(1))['model']}/v1"
            crashed = await self._crash(url, log)
            rows = self._rows(self.folder / "results.jsonl")
            different = None
            if self.args.upstream is None:
                print("the same rollouts undisturbed, to compare", flush=True)
                other = self.folder / "undisturbed"
                other.mkdir()
                await self._life(url, other, _Told(), trio.sleep_forever)
                expected = self._rows(other / "results.jsonl")
                different = tuple(name for name in expected if rows.get(name, [None])[0] != expected[name][0])
        finally:
            await model.stop()
        planned = {self.tasks.rollout_id(n) for n in range(len(self.tasks))}
        held, redone, without = crashed
        return Cost(
            held=held,
            redone=redone,
            without=without,
            missing=tuple(sorted(planned - rows.keys())),
            doubled=tuple(sorted(name for name, each in rows.items() if len(each) > 1)),
            different=different,
        )

    async def _crash(self, url: str, log: Path) -> tuple[int, int, int]:
        """The rollouts run with a crash half-way; held turns, held turns redone, turns without a checkpoint."""
        told, tell = _Told(), trio.Event()
        half = self.args.rollouts * 3 if self.args.upstream is None else self.args.rollouts

        async def ask() -> Ask:
            if tell.is_set():
                await trio.sleep_forever()
            while len(turns := self._turns(log)) < half:  # noqa: ASYNC110
                await trio.sleep(LOOK_EVERY_S)
            tell.set()
            print(f"{count(len(turns), 'turn')} begun; a checkpoint", flush=True)
            return Ask.CHECKPOINT

        launcher = self._launcher(url, self.folder)
        life = partial(self._life, url, self.folder, told, ask, launcher)
        before: list[Turn] = []
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def strike() -> None:
                    await told.saved.wait()
                    before.extend(self._turns(log))
                    victims = () if self.args.kill == ALL else (self.args.kill,)
                    what = f"all {len(SERVERS)} servers and the coordinator" if not victims else victims[0]
                    print(f"kill -9: {what}", flush=True)
                    launcher.kill(*victims)
                    if not victims:
                        scope.cancel()

                nursery.start_soon(strike)
                await life()
                nursery.cancel_scope.cancel()
        if not told.checkpoints:
            raise DemoFailed("no checkpoint was published before the end")
        held_turns, completed = held_by(self._checkpoint(told.checkpoints[0].checkpoint_id))
        if scope.cancelled_caught:
            await launcher.stop()  # clears away what was killed
            print("it goes on from the files", flush=True)
            await self._life(url, self.folder, _Told(), trio.sleep_forever)
        return counted(before, self._turns(log)[len(before) :], held_turns, completed)

    async def _life(
        self,
        url: str,
        folder: Path,
        told: _Told,
        ask: Callable[[], Any],
        launcher: ProcessLauncher | None = None,
    ) -> None:
        """A coordinator's life, to the end of the collection."""
        output = OutputFile(self.seams.disk, folder / "results.jsonl").open()
        try:
            job = Coordinator(
                folder / "checkpoints",
                launcher or self._launcher(url, folder),
                collector := Collector(self.tasks, output, self.seams.disk, told),
                token=self.token,
                settings=CoordinatorSettings(probe_every_s=1.0, probe_misses=2),
                seams=self.seams,
            )
            async with job:
                ending = await collect(job, collector, CollectSettings(every_s=None, timeout_s=CHECKPOINT_S), ask)
            if ending.lost:
                name, why = next(iter(ending.lost.items()))
                raise DemoFailed(f"{count(len(ending.lost), 'rollout')} without a result; {name}: {why}")
        finally:
            output.close()

    def _launcher(self, url: str, folder: Path) -> ProcessLauncher:
        root = folder / "checkpoints"
        root.mkdir(exist_ok=True)
        config = config_of(url, self.args.model, self.key)
        return gym_launcher(config, root, folder / "logs", token=self.token, lease_grace_s=LEASE_GRACE_S)

    def _turns(self, log: Path) -> list[Turn]:
        """What the model was asked for, oldest first."""
        calls = [structure(parse(line), Asked) for line in log.read_bytes().splitlines()]
        return [(self.names[call.conversation], call.turns) for call in calls]

    def _checkpoint(self, checkpoint_id: str) -> Checkpoint:
        parsed = CheckpointId.parse(checkpoint_id)
        assert parsed is not None
        store = Store(self.folder / "checkpoints", self.seams.disk, self.seams.entropy, self.seams.clock)
        return store.read(parsed)

    def _rows(self, path: Path) -> dict[str, list[Any]]:
        """What was said of each rollout, without what differs from life to life."""
        rows: dict[str, list[Any]] = {}
        for line in path.read_bytes().splitlines() if path.exists() else ():
            row = parse(line)
            kept = {key: value for key, value in row.items() if not key.startswith("_ng_") and key != OURS}
            rows.setdefault(row["_ng_rollout_id"], []).append(kept)
        return rows
