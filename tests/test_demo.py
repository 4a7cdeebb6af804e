"""The demo's story in memory: what is killed goes on, the numbers are the journals', a fault shows in the last line."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.coordination.trainer import Result
from participants.demo.agent_server import Chat, play_turn
from participants.demo.counting import NOTHING_HELD, Held, Numbers, Verdict, differences, numbers
from participants.demo.life import ABANDON, Observer
from participants.demo.lines import Event, JournalReader, Line, ServerJournal, make_directory, read_journals
from participants.demo.model_servers import policy_app
from participants.demo.picture import Picture
from participants.demo.plan import (
    ENVIRONMENTS,
    GROUP_SIZE,
    STRAGGLER,
    Kill,
    Options,
    Plan,
    PlanError,
    RolloutPlan,
    When,
    make_plan,
    read_plan,
    write_plan,
)
from participants.demo.players import judge_says, offer, offered, policy_says, said_in, turn_of
from participants.demo.servers import Place, app, factory, process_place
from participants.demo.story import JOB
from participants.demo.trainer import DemoTrainer
from participants.demo.worlds import CHECKPOINTS
from participants.files.store import Store
from participants.net.http import ASGIApp
from participants.records.records import Disposition, Receipt
from participants.servers.agent import Agent
from participants.settings import SettingsError
from statecore import WireError
from statecore.errors import StatecoreError
from statecore.seams import FixedClock, MemoryDisk, SeededEntropy
from statecore.wire import canonical
from tests.demo_world import DIRECTORY, tell_in_memory

LINE = re.compile(
    r"turns redone: (\d+) held by the checkpoint, (\d+) finished after it \(without checkpoints: (\d+)\); "
    r"results lost (\d+), doubled (\d+); (equal to the undisturbed run|NOT equal to the undisturbed run: .+)\Z"
)
SMALL = Options(rollouts=6, turns=4)


def rollout(name: str, think_s: tuple[float, ...], env_id: str = "Blackjack-v1") -> RolloutPlan:
    return RolloutPlan(rollout_id=name, group="g", env_id=env_id, game_seed=7, think_s=think_s)


def turns(lines: tuple[Line, ...], epoch: int) -> dict[str, int]:
    """How many turns each rollout finished in this life, by the agent's journal."""
    found = [line.rollout for line in lines if line.event is Event.TURN and line.epoch == epoch]
    return dict(Counter(found))


# --- the story


def test_the_seeds_example_six_turns_redone_without_none_with() -> None:
    """5 turns, A is done, B has done 2 and C 4, crash right after the snapshot: 6 redone without, 0 with."""
    plan = Plan(
        seed=1,
        rollouts=(
            rollout("A", (0.1,) * 5),
            rollout("B", (0.1, 0.1, 5.0, 0.1, 0.1)),
            rollout("C", (0.1, 0.1, 0.1, 0.1, 5.0)),
        ),
        checkpoints_at=(11,),
    )
    told = tell_in_memory(plan)
    lines = told.ending.lines
    assert turns(lines, 1) == {"A": 5, "B": 2, "C": 4}
    assert turns(lines, 2) == {"B": 3, "C": 1}
    assert told.ending.held == Held({"A": 5, "B": 2, "C": 4}, frozenset({"A"}))
    assert told.ending.verdict.line() == (
        "turns redone: 0 held by the checkpoint, 0 finished after it (without checkpoints: 6); "
        "results lost 0, doubled 0; equal to the undisturbed run"
    )
    assert told.ending.verdict.good


@pytest.mark.parametrize("kill", Kill)
@pytest.mark.parametrize("when", When)
def test_what_was_killed_goes_on_and_ends_as_the_undisturbed_run(when: When, kill: Kill) -> None:
    """Wherever the crash falls and whatever dies: no held turn runs again, and all results equal. Covers: I65, I68."""
    told = tell_in_memory(make_plan(evolve(SMALL, when=when, kill=kill)))
    ending, counted = told.ending, told.ending.verdict.numbers
    assert ending.verdict.good, ending.verdict.line()
    assert counted.held_redone == ()
    assert (counted.lost == ()) == (when is When.PUBLISHED)
    assert set(counted.lost) <= set(counted.without)
    assert counted.without
    again = {(line.rollout, line.turn) for line in ending.lines if line.event is Event.TURN and line.epoch == 2}
    assert set(counted.lost) <= again, "what was lost is redone, and nothing else of the first life"
    first = {(line.rollout, line.turn) for line in ending.lines if line.event is Event.TURN and line.epoch == 1}
    assert first & again == set(counted.lost)
    assert told.deployments == 3, "the new coordinator adopts no server"


def test_the_checkpoint_in_force_is_the_one_that_was_published() -> None:
    """A crash inside the second checkpoint leaves the first in force; its draft goes after the next publication."""
    told = tell_in_memory(make_plan(evolve(SMALL, when=When.BEFORE_PUBLISH)))
    said = [each.text for each in told.picture.happened]
    assert any("in force: ck-000001-000002" in text for text in said), said
    assert any("ck-000001-000003 is being validated" in text for text in said), said
    names = told.disk.listdir("/demo/job/checkpoints")
    assert not [each for each in names if "ck-000001-000003" in each]
    assert "ck-000002-000002" in names


@pytest.mark.parametrize("seed", range(10))
def test_ten_seeds_equal_the_undisturbed_run(seed: int) -> None:
    """Ten jobs of all three games are killed and equal their undisturbed runs. Covers: S11, I54."""
    options = Options(rollouts=3, turns=4, seed=seed, env=list(ENVIRONMENTS)[seed % 3], when=list(When)[seed % 3])
    told = tell_in_memory(make_plan(options))
    assert told.ending.verdict.good, told.ending.verdict.line()


def test_the_story_can_be_told_again_from_its_seed() -> None:
    """In memory the same plan gives the same lines, their times included."""
    first, second = (tell_in_memory(make_plan(Options(rollouts=2, turns=3))) for _ in range(2))
    assert set(first.ending.lines) == set(second.ending.lines)
    assert first.ending.trainer.results() == second.ending.trainer.results()


def test_a_job_that_is_over_before_the_crash_is_brought_back_all_the_same() -> None:
    """A crash that waits for more turns than there are falls after the last; nothing hangs, nothing is lost."""
    plan = make_plan(Options(rollouts=1, turns=2, when=When.LATER))
    told = tell_in_memory(evolve(plan, checkpoints_at=(99,)))
    assert told.ending.verdict.good, told.ending.verdict.line()


def entered(observer: Observer, checkpoint: str, state: str, clock: float = 5.0) -> None:
    """The coordinator's journal says that the checkpoint is in this state now."""
    said = {"machine": "transaction", "state": "before", "next": state, "ids": {"checkpoint_id": checkpoint}}
    observer(canonical(said | {"clock": clock}) + b"\n")


@pytest.mark.trio
async def test_an_aborted_checkpoint_does_not_move_the_crash() -> None:
    """The crash falls into the first checkpoint that is published, or the one after it, however many aborted before."""
    for when, states in (
        (When.PUBLISHED, ["validating", "aborting", "validating", "published"]),
        (When.BEFORE_PUBLISH, ["validating", "aborting", "validating", "published", "resuming", "validating"]),
        (When.LATER, ["validating", "published", "resuming", "validating", "published"]),
    ):
        scope = trio.CancelScope()
        file = MemoryDisk().create("/journal")
        observer = Observer(Picture(make_plan(SMALL)), file, ABANDON.get(when), scope)
        for state in states:
            assert not scope.cancel_called, (when, state)
            entered(observer, "ck", state)
        assert scope.cancel_called == (when is not When.LATER)
    assert observer.published_ts == 5.0
    observer(canonical({"machine": "other", "state": "a", "next": "b"}) + b"\n")


# --- a fault shows


def forgetful(name: str, place: Place) -> ASGIApp:
    """An agent that begins again after a restore, whatever its session stood at."""
    if name != "agent":
        return app(name, place)
    journal = place.journal("agent")
    agent = Agent("agent", place.settings, seams=place.seams, transport=place.transport)

    async def respond(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            assert session.episode is not None
            model, game = session.client("policy"), session.client("game")
            chat = Chat.start(session.task)
            while chat.turns < session.task["turns"]:
                chat = await play_turn(chat, session.episode.rollout_id, model, game)
                journal.about(Event.TURN, session.episode, turn=chat.turns)
                if chat.turns < session.task["turns"]:
                    await session.boundary(chat)
            return session.finish(chat.result())

    return agent.wrap(Starlette(routes=[Route("/v1/responses", respond, methods=["POST"])]))


def impure(name: str, place: Place) -> ASGIApp:
    """A policy whose answers depend on the life it answers in."""
    if name == "policy":
        return policy_app(evolve(place, plan=evolve(place.plan, seed=place.settings.epoch or 0)))
    return app(name, place)


def test_an_agent_that_starts_over_is_found_out() -> None:
    """Held turns that run again are counted, whoever forgot them, and the demo is not good."""
    told = tell_in_memory(make_plan(evolve(SMALL, env="taxi")), forgetful)
    verdict, held = told.ending.verdict, told.ending.held
    assert not verdict.good
    again = {name for name, turn in verdict.numbers.held_redone}
    continued = {name for name, turns in held.turns.items() if turns and name not in held.completed}
    assert again == continued != set()
    assert sum(held.turns[name] for name in continued) == len(verdict.numbers.held_redone)


def test_a_policy_that_is_not_pure_is_found_out() -> None:
    """A continuation that goes elsewhere than the undisturbed run is NOT equal, and says which rollout and what."""
    told = tell_in_memory(make_plan(SMALL), impure)
    verdict = told.ending.verdict
    assert not verdict.good
    match = LINE.match(verdict.line())
    assert match is not None and match[6].startswith("NOT equal to the undisturbed run: p0_g")
    assert verdict.numbers.held_redone == (), "the turns were held all the same"


# --- the numbers


def line(event: Event, epoch: int, name: str, turn: int | None = None) -> Line:
    return Line(event=event, server="x", epoch=epoch, ts=0.0, rollout=name, turn=turn)


@pytest.mark.parametrize("event", [Event.GENERATION, Event.STEP, Event.TURN])
def test_a_held_turn_that_any_server_does_again_is_counted(event: Event) -> None:
    """Policy, game or agent: whoever works on a held turn in a later life makes it redone, once."""
    before = [line(Event.TURN, 1, "r", turn) for turn in (1, 2, 3)]
    held = Held({"r": 2}, frozenset())
    after = [line(event, 2, "r", 2), line(event, 2, "r", 2), line(event, 2, "r", 3)]
    assert numbers(before, [*before, *after], held) == Numbers(
        held_redone=(("r", 2),), lost=(("r", 3),), without=(("r", 1), ("r", 2), ("r", 3))
    )


def test_a_completed_rollout_would_not_be_redone() -> None:
    """Turns of a rollout whose result is in the checkpoint count for nobody; without one all are lost."""
    before = [line(Event.TURN, 1, "done", 1), line(Event.TURN, 1, "open", 1), line(Event.RESULT, 1, "done")]
    held = Held({"done": 1}, frozenset({"done"}))
    assert numbers(before, before, held) == Numbers((), (("open", 1),), (("open", 1),))
    assert numbers(before, before, NOTHING_HELD).lost == (("done", 1), ("open", 1))
    with pytest.raises(ValueError, match="names no turn"):
        numbers([line(Event.TURN, 1, "r")], [], held)


def test_what_nobody_asked_for_is_not_counted() -> None:
    """Servers that outlive their coordinator finish turns after the crash: neither lost nor redone."""
    at_crash = [line(Event.TURN, 1, "r", 1)]
    zombie = [line(Event.TURN, 1, "r", 2), line(Event.RESULT, 1, "r")]
    held = Held({"r": 1}, frozenset())
    assert numbers(at_crash, [*at_crash, *zombie], held) == Numbers((), (), (("r", 1),))


RESULT: dict[str, Any] = {"reward": 1.0, "score": 1, "turns": 1, "messages": [{"a": 1}, {"b": 2}], "state": {"s": 1}}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"reward": 2.0}, "reward 2 instead of 1"),
        ({"messages": [{"a": 1}, {"b": 3}]}, "conversation from message 2 on"),
        ({"messages": [{"a": 1}]}, "conversation from message 2 on"),
        ({"state": {"s": 2}}, "environment state"),
        ({"score": 2}, "result"),
    ],
)
def test_what_differs_is_named(changed: dict[str, Any], told: str) -> None:
    """Reward, conversation and environment state are compared, and the first that differs is said."""
    found = differences({"r": RESULT | changed}, {"r": RESULT})
    assert found == ({"r": told} if told else {})


def test_a_missing_result_is_a_difference() -> None:
    """A rollout without a result on either side is not equal."""
    assert differences({}, {"r": RESULT}) == {"r": "no result here"}
    assert differences({"r": RESULT}, {}) == {"r": "no result in the undisturbed run"}


def test_the_last_line_tells_the_truth() -> None:
    """Each number has its place, at most three differences are named, and any of them makes the exit code 1."""
    clean = Verdict(numbers=Numbers((), (("r", 3),), (("r", 1), ("r", 2), ("r", 3))), differences={})
    assert clean.good
    assert LINE.match(clean.line()) is not None
    many = {f"r{n}": "reward 1 instead of 2" for n in range(5)}
    bad = Verdict(
        numbers=Numbers((("r", 1),), (), ()), lost_results=("a", "b"), doubled_results=("c",), differences=many
    )
    match = LINE.match(bad.line())
    assert match is not None
    assert match.group(1, 2, 3, 4, 5) == ("1", "0", "0", "2", "1")
    assert match[6].endswith("r2: reward 1 instead of 2; and 2 more")
    nothing = Numbers((), (), ())
    assert not Verdict(numbers=evolve(nothing, held_redone=(("r", 1),)), differences={}).good
    assert not Verdict(numbers=nothing, lost_results=("r",), differences={}).good
    assert not Verdict(numbers=nothing, doubled_results=("r",), differences={}).good
    assert not Verdict(numbers=nothing, differences={"r": "result"}).good


# --- plan, players, trainer, journals


def test_the_default_job() -> None:
    """12 rollouts in groups of 4, one straggler in each, 5 to 8 turns, one game for each group; equal for one seed."""
    plan = make_plan(Options())
    assert [len(group) for group in plan.groups] == [GROUP_SIZE] * 3
    assert {each.turns for each in plan.rollouts} <= {5, 6, 7, 8}
    assert [group[0].env_id for group in plan.groups] == list(ENVIRONMENTS.values())
    for group in plan.groups:
        slowest = sorted(sum(each.think_s) / each.turns for each in group)
        assert slowest[-1] > slowest[-2] * 1.2, f"one of them thinks {STRAGGLER} times as long"
    assert plan == make_plan(Options())
    assert plan != make_plan(Options(seed=1))
    assert len(plan.by_id()) == 12


def test_a_plan_is_read_as_it_was_written() -> None:
    """Servers find the very plan beside the checkpoints; thinking is scaled by the pace and nothing beyond the plan."""
    disk = MemoryDisk()
    plan = make_plan(Options(rollouts=5, turns=3, env="taxi", kill=Kill.COORDINATOR, when=When.LATER))
    write_plan(disk, Path("/"), plan)
    assert read_plan(disk, Path("/")) == plan
    slow = evolve(plan, pace=2.0)
    assert slow.think_s("p0_g0", 1) == 2 * plan.rollouts[0].think_s[0]
    assert [plan.think_s(name, turn) for name, turn in (("p0_g0", 4), ("p0_g0", 0), ("x", 1))] == [0.0] * 3


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"rollouts": 0}, "--rollouts 0: between 1 and"),
        ({"rollouts": 401}, "--rollouts 401"),
        ({"turns": 1}, "--turns 1: between 2 and"),
        ({"turns": 61}, "--turns 61"),
        ({"env": "chess"}, "--env chess: one of mixed, taxi"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any], told: str) -> None:
    """The message names the option and what it may be."""
    with pytest.raises(PlanError, match=re.escape(told)):
        Options(**wrong)


def test_the_policy_hangs_on_every_word() -> None:
    """It picks among what the last message offers, the same for the same conversation, and not always the same."""
    actions = ["south", "north", "east", "west"]

    def asked(text: str, user: str = "r") -> dict[str, Any]:
        return {"user": user, "messages": [{"role": "user", "content": offer(text, actions)}]}

    assert offered(asked("Taxi here.")["messages"]) == actions
    assert policy_says(1, asked("x")) == policy_says(1, asked("x"))
    assert {policy_says(1, asked(f"at {n}")) for n in range(40)} == set(actions)
    assert {policy_says(1, asked("x", f"r{n}")) for n in range(40)} == set(actions)
    assert {judge_says(1, asked(f"at {n}")) for n in range(200)} == {str(score) for score in range(11)}
    assert turn_of([{"role": "user"}, {"role": "assistant"}, {"role": "user"}]) == 2


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": "hello"}], [{"role": "user"}]])
def test_a_conversation_without_an_offer_is_refused(messages: list[dict[str, Any]]) -> None:
    """The policy does not make up an action."""
    with pytest.raises(ValueError, match="offers no action"):
        offered(messages)


@pytest.mark.parametrize("reply", [None, {}, {"choices": []}, {"choices": [{"message": {"content": 1}}]}])
def test_what_is_no_completion_is_refused(reply: Any) -> None:
    """A reply without text is an error that shows it."""
    with pytest.raises(ValueError, match="completion"):
        said_in(reply)


def result(name: str, identity: str = "1") -> Result:
    receipt = Receipt(
        rollout_id=name, attempt=0, epoch=1, result_identity=identity * 32, result_sha256=f"{int(identity):064x}"
    )
    dispatch = make_plan(Options()).rollouts[0].dispatch(0)
    return Result(name, 0, {"reward": 1.0}, receipt, dispatch)


def test_a_policy_version_names_the_life_that_made_it() -> None:
    """Its epoch: a number that is counted up from what a checkpoint says is given twice when two lives begin with it.

    Covers: I89, S51.
    """
    told = tell_in_memory(make_plan(Options(rollouts=4, turns=2)))
    store = Store(DIRECTORY / JOB / CHECKPOINTS, told.disk, SeededEntropy(0), FixedClock(0.0))
    versions = {each: store.read(each).manifest.policy_version for each in store.published()}
    assert {each.epoch for each in versions} == {1, 2}
    assert all(version is not None and version[0] == each.epoch for each, version in versions.items())


@pytest.mark.trio
async def test_a_trainer_is_what_it_saved() -> None:
    """A new trainer with the files stands where the old one stood when it saved; one without them has nothing."""
    disk, plan = MemoryDisk(), make_plan(Options(rollouts=6, turns=2))
    trainer = DemoTrainer(plan, disk)
    assert [each.rollout_id for each in trainer.next_group()] == ["p0_g0", "p0_g1", "p0_g2", "p0_g3"]
    for number, name in enumerate(("p0_g0", "p0_g1", "p0_g2")):
        await trainer.accept(result(name, str(number)))
    assert trainer.policy_version == (0, 0), "the group waits for its straggler"
    disk.mkdir("/saved")
    await trainer.save(Path("/saved"), {"p0_g0": Disposition.COMPLETED})
    await trainer.accept(result("p0_g3", "3"))
    assert trainer.policy_version == (0, 1)

    new = DemoTrainer(plan, disk)
    new.life = 3
    assert await new.consumed() == set()
    await new.load(Path("/saved"))
    assert await new.consumed() == {"p0_g0", "p0_g1", "p0_g2"}
    assert new.policy_version == (3, 0)
    second = new.next_group()
    assert [(each.rollout_id, each.data_position) for each in second] == [("p1_g0", 4), ("p1_g1", 5)]
    assert new.next_group() == ()
    assert new.lost() == ("p0_g3", "p1_g0", "p1_g1")
    assert new.doubled() == ()


@pytest.mark.trio
async def test_a_result_that_comes_twice_is_seen() -> None:
    """Accepting a rollout twice, or one receipt for two rollouts, is doubled."""
    trainer = DemoTrainer(make_plan(Options()), MemoryDisk())
    await trainer.accept(result("a", "1"))
    await trainer.accept(result("a", "2"))
    assert trainer.doubled() == ("a", "a")
    await trainer.accept(result("b", "3"))
    await trainer.accept(result("c", "3"))
    assert set(trainer.doubled()) == {"a", "b", "c"}


def test_a_journal_is_read_as_it_grows() -> None:
    """Each whole line is given once, a torn one only when it is whole; what is no line is refused by its file."""
    disk, directory = MemoryDisk(), Path("/journals")
    make_directory(disk, directory)
    make_directory(disk, directory)
    journal = ServerJournal(disk, directory, "agent", 1, FixedClock(5.0))
    reader = JournalReader(disk, directory)
    journal.write(Event.TURN, "r", 0, turn=1)
    assert [(each.rollout, each.turn, each.epoch, each.ts) for each in reader.new_lines()] == [("r", 1, 1, 5.0)]
    assert list(reader.new_lines()) == []
    torn = disk.create(directory / "000001-game.jsonl")
    whole = disk.read(directory / "000001-agent.jsonl")
    torn.write(whole[:20])
    assert list(reader.new_lines()) == []
    torn.write(whole[20:])
    assert len(list(reader.new_lines())) == 1
    with pytest.raises(FileExistsError):
        ServerJournal(disk, directory, "agent", 1, FixedClock(5.0))
    torn.write(b'{"event": "flew"}\n')
    with pytest.raises(StatecoreError, match=r"000001-game\.jsonl"):
        read_journals(disk, directory)


# --- servers


def test_a_server_of_the_demo_is_not_started_by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a root it says what starts it; with one and no plan the file that is missing is named."""
    monkeypatch.delenv("STATECORE_ROOT", raising=False)
    with pytest.raises(SettingsError, match="statecore demo"):
        process_place()
    monkeypatch.setenv("STATECORE_ROOT", str(tmp_path / "checkpoints"))
    with pytest.raises(FileNotFoundError, match=r"demo\.json"):
        process_place()
    (tmp_path / "demo.json").write_text("{}")
    with pytest.raises((WireError, StatecoreError)):
        process_place()
    assert factory("game") == "participants.demo.game_server:game"
