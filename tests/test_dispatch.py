"""`POST /run`: what is sent again, what is a result, and that each one arrives once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from attrs import define, evolve, field
from starlette.responses import JSONResponse, Response
from trio.testing import MockClock

from participants.coordination.coordinator import Published
from participants.coordination.dispatch import Answer, Came, read_run_reply
from participants.coordination.ledger import Rollout
from participants.coordination.shared_map import SharedMap
from participants.coordination.trainer import Result, SavesResults
from participants.identity import EpisodeId
from participants.records.records import LedgerRow, Receipt
from participants.serving.testing import Fault, once
from statecore.wire import digest
from tests.coordinator_world import SmallTrainer, a_world, dispatches, is_call, refuse, running
from tests.small_fleet import FakeServer, Reply

EPISODE = EpisodeId("p1", 2)
OWN = Receipt(rollout_id="p1", attempt=2, epoch=4, result_identity="9" * 32, result_sha256="0" * 64)
BODY = {"reward": 1}
ISSUED = evolve(OWN, result_identity="1" * 32, result_sha256=digest(BODY))


def read(status: int, content: bytes = b'{"reward":1}', **headers: str) -> Answer:
    named = httpx.Headers({name.replace("_", "-"): value for name, value in headers.items()})
    return read_run_reply(EPISODE, status, named, content, OWN)


def error(code: str) -> bytes:
    return b'{"error":{"code":"%s","detail":"d"},"incarnation":"abc"}' % code.encode()


def test_a_result_with_its_receipt() -> None:
    """A 2xx with JSON and the receipt of this execution is the result."""
    answer = read(200, x_ng_result_receipt=ISSUED.header)
    assert (answer.came, answer.body, answer.receipt) == (Came.RESULT, BODY, ISSUED)


def test_a_foreign_server_without_receipts() -> None:
    """The coordinator makes the receipt itself, with the digest of the body (section 9)."""
    answer = read(201)
    assert answer.receipt == evolve(OWN, result_sha256=digest(BODY))


@pytest.mark.parametrize(
    ("answer", "came", "why"),
    [
        (read(409, error("admission_closed")), Came.TURNED_AWAY, "admission_closed"),
        (read(503, error("results_full")), Came.TURNED_AWAY, "results_full"),
        (read(503, error("too_many_held")), Came.TURNED_AWAY, "too_many_held"),
        (read(502, error("participant_lost")), Came.NO_RESULT, "participant_lost"),
        (read(409, error("stale_attempt")), Came.NO_RESULT, "stale_attempt"),
        (read(409, error("session_lost")), Came.NO_RESULT, "session_lost"),
        (read(409, error("duplicate_execution")), Came.NO_RESULT, "duplicate_execution"),
        (read(409, error("result_released")), Came.NO_RESULT, "result_released"),
        (read(500, error("execution_failed")), Came.NO_RESULT, "execution_failed"),
        (read(404, b"{}"), Came.NO_RESULT, "http_404"),
        (read(500, b"Internal Server Error"), Came.NO_ANSWER, "http_500"),
        (read(502, b"<html>bad gateway</html>"), Came.NO_ANSWER, "http_502"),
        (read(504, b""), Came.NO_ANSWER, "http_504"),
        (read(200, b"not json"), Came.NO_RESULT, "cannot be read"),
        (read(200, b'{"reward":NaN}'), Came.NO_RESULT, "cannot be read"),
        (read(200, b"null"), Came.NO_RESULT, "null"),
        (read(200, x_ng_result_receipt="{}"), Came.NO_RESULT, "cannot be read"),
        (read(200, x_ng_result_receipt=evolve(ISSUED, attempt=1).header), Came.NO_RESULT, "p1-a1"),
        (read(200, x_ng_result_receipt=evolve(ISSUED, epoch=3).header), Came.NO_RESULT, "epoch 3"),
        (read(200, b'{"reward":2}', x_ng_result_receipt=ISSUED.header), Came.NO_RESULT, "does not match"),
    ],
)
def test_what_is_no_result(answer: Answer, came: Came, why: str) -> None:
    """Whatever a server answers, only a whole result of this execution is one (S65). Covers: I74, I97."""
    assert answer.came is came
    assert why in answer.why
    assert answer.body is None


@pytest.mark.trio
async def test_admission_closed_is_sent_again_after_resume(autojump_clock: MockClock) -> None:
    """Turned away by a checkpoint: queued in it, and sent under the same attempt once it is over. Covers: I3."""
    async with a_world() as world:
        trainer = world.trainer()
        world.network.faults = once(Fault(request_s=0.5), path="/run")  # arrives when the environment is closed
        async with running(world.coordinator(trainer), dispatches({"p1": 1})) as (job, reports):
            await trio.sleep(0.1)
            trainer.on_save = partial(trio.sleep, 2)
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert "1 queued" in outcome.story()
        attempts = [body["episode_id"]["attempt"] for body in world.history.bodies("env", "run")]
        assert attempts == [0, 0]
        assert reports[0].delivered == 1


@pytest.mark.trio
async def test_admission_closed_without_a_checkpoint_of_ours(autojump_clock: MockClock) -> None:
    """A server that is closed for another reason is asked again after a bounded, growing wait, and given up at last."""
    async with a_world() as world:
        trainer = world.trainer()
        world.script("env", "run", refuse(409, "admission_closed"))
        async with world.coordinator(trainer, run_patience_s=60.0, run_max_delay_s=2.0) as job:
            recovered = await job.recover()
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            assert "admission_closed" in report.lost["p1"]
            sent = world.history.verbs("env").count("run")
            assert 30 < sent < 100
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert "1 queued" in outcome.story(), "it never started, so a restart runs it"


@pytest.mark.trio
@pytest.mark.parametrize("fault", [Fault(lose_request=True), Fault(lose_reply=True), Fault(refuse=True)])
async def test_s33_a_lost_connection_joins_the_one_execution(autojump_clock: MockClock, fault: Fault) -> None:
    """The rollout is played once whatever of the exchange is lost, and delivered once. Covers: I10, I68."""
    async with a_world() as world:
        trainer = world.trainer()
        world.network.faults = once(fault, path="/run")
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 3})))
        assert report.delivered == 1
        assert world.count("p1") == 3
        assert trainer.ids == ["p1"]


@pytest.mark.trio
async def test_a_duplicated_request_is_one_result(autojump_clock: MockClock) -> None:
    """The network sends `/run` twice: one execution, one result. Covers: I10, I68."""
    async with a_world() as world:
        trainer = world.trainer()
        world.network.faults = once(Fault(repeat_s=1.5), path="/run")
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 3})))
        assert (world.count("p1"), trainer.ids) == (3, ["p1"])


@pytest.mark.trio
async def test_s42_s65_a_failing_rollout_is_its_own(autojump_clock: MockClock) -> None:
    """Lost servers and failed handlers make no result, and their neighbours go on (S42, S65). Covers: I97."""
    async with a_world() as world:
        trainer = world.trainer()
        new = [
            *dispatches({"ok": 3}),
            *dispatches({"lost": 1}, fails=[502, "participant_lost"]),
            *dispatches({"failed": 1}, fails=[500, "execution_failed"]),
        ]
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            report = await job.run_batch(recovered.runnable(new))
            assert report.delivered == 1
            assert {name: why.split(":")[0] for name, why in report.lost.items()} == {
                "lost": "HTTP 502 participant_lost",
                "failed": "HTTP 500 execution_failed",
            }
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            checkpoint = world.store().read(world.store().published()[-1])
        assert trainer.ids == ["ok"]
        rows = {row.rollout_id: (row.disposition.value, row.reason.split(":")[0]) for row in checkpoint.registry}
        assert rows["lost"] == ("fresh", "HTTP 502 participant_lost")


@pytest.mark.trio
async def test_s39_an_answer_of_another_process_is_no_result(autojump_clock: MockClock) -> None:
    """The server was replaced by one of the same name: what that says of our rollout does not count (S39).

    It is a death, so all servers start anew, and the rollout ends under its next attempt. Covers: I97.
    """
    answers = iter([JSONResponse({"reward": 0}, headers={"x-statecore-incarnation": "e" * 32})])

    def another(_server: FakeServer, _body: Reply) -> Response | None:
        return next(answers, None)

    async with a_world() as world:
        trainer = world.trainer()
        world.script("env", "run", another)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            assert report.delivered == 1
            (restarted,) = job.restarts
            assert "another process answers in its name" in restarted.reason
        assert [(each.attempt, each.body["reward"]) for each in trainer.accepted] == [(1, 1)]


@pytest.mark.trio
async def test_a_server_that_is_gone_is_given_up_at_last(autojump_clock: MockClock) -> None:
    """No connection for as long as patience lasts: lost, with the reason, and no result."""
    async with a_world() as world:
        world.network.faults = lambda call: Fault(refuse=True) if is_call(call, "env", "/run") else None
        async with world.coordinator(world.trainer(), run_patience_s=30.0) as job:
            recovered = await job.recover()
            began = trio.current_time()
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            assert trio.current_time() - began < 40
        assert report.lost["p1"].startswith("participant lost: ConnectError")


@pytest.mark.trio
async def test_a_result_that_is_too_long_is_refused(autojump_clock: MockClock) -> None:
    """A body over the stated bound is not read to its end."""
    async with a_world() as world:
        world.script("env", "run", lambda *_: JSONResponse({"x": "y" * 5000}))
        async with world.coordinator(world.trainer(), max_result_bytes=1000) as job:
            recovered = await job.recover()
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
        assert report.lost == {"p1": "a result of more than 1000 bytes"}


@pytest.mark.trio
async def test_as_many_at_once_as_allowed(autojump_clock: MockClock) -> None:
    """A batch larger than the bound is registered whole and sent bit by bit."""
    async with a_world() as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer, max_running=2), dispatches({f"p{n}": 2 for n in range(6)})) as (
            job,
            reports,
        ):
            await trio.sleep(1)
            assert len(world.history.bodies("env", "run")) == 2
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert "4 queued" in outcome.story()
        assert reports[0].delivered == 6


@pytest.mark.trio
async def test_a_trainer_that_refuses_a_result_does_not_stop_the_others(autojump_clock: MockClock) -> None:
    """What `accept` raises comes out at the end; the result stays in the ledger and in the next checkpoint (S42)."""

    @define(eq=False)
    class Picky(SmallTrainer):
        async def accept(self, result: Result) -> None:
            if result.rollout_id == "bad":
                raise ValueError("no, thank you")
            self.accepted.append(result)

    async with a_world() as world:
        trainer = Picky(world.disk)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            with pytest.raises(ExceptionGroup) as raised:
                await job.run_batch(recovered.runnable(dispatches({"bad": 1, "good": 3})))
            assert raised.group_contains(ValueError, match="no, thank you")
            assert trainer.ids == ["good"]
            assert (await job.checkpoint(20)).published
            rows = world.store().read(world.store().published()[-1]).ledger
        assert {row.rollout_id: row.body for row in rows}["bad"] == {"reward": 1, "calls": ["bad-m1"]}


# --- results that the framework keeps


@define(eq=False)
class Keeper(SmallTrainer):
    """Keeps results outside its state, create-only by rollout id; `breaks` counts down failures."""

    kept: dict[str, Result] = field(factory=dict)
    breaks: int = 0

    async def save_result(self, result: Result) -> Result:
        if self.breaks:
            self.breaks -= 1
            raise OSError("disk full")
        return self.kept.setdefault(result.rollout_id, result)


@pytest.mark.trio
async def test_save_result_is_saved_and_acknowledged_at_once(autojump_clock: MockClock) -> None:
    """The framework has a durable copy, so the server may drop its own before any checkpoint. Covers: I67."""
    async with a_world() as world:
        trainer = Keeper(world.disk)
        assert isinstance(trainer, SavesResults)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            assert world.history.released == ["p1"]
            assert world.store().published() == ()


@pytest.mark.trio
async def test_the_result_that_stands_is_the_one_that_is_used(autojump_clock: MockClock) -> None:
    """An earlier life has saved another result of this rollout: that one is accepted and in the ledger (18 steps)."""
    async with a_world() as world:
        trainer = Keeper(world.disk)
        (dispatch,) = dispatches({"p1": 1})
        body = {"reward": 77}
        receipt = Receipt(rollout_id="p1", attempt=0, epoch=1, result_identity="8" * 32, result_sha256=digest(body))
        earlier = Result("p1", 0, body, receipt, dispatch)
        trainer.kept["p1"] = earlier
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable([dispatch]))
            assert trainer.accepted == [earlier]
            assert world.history.released == ["p1"], "the loser is acknowledged as well (S63)"
            assert (await job.checkpoint(20)).published
            (row,) = world.store().read(world.store().published()[-1]).ledger
            assert row.body == {"reward": 77}


@pytest.mark.trio
async def test_a_checkpoint_never_holds_a_result_that_does_not_stand(autojump_clock: MockClock) -> None:
    """While the store is asked, the ledger has no result: what came last may not be what stands. Covers: I11, I68."""

    @define(eq=False)
    class SlowKeeper(Keeper):
        async def save_result(self, result: Result) -> Result:
            await trio.sleep(30)
            return await super().save_result(result)

    async with a_world() as world:
        trainer = SlowKeeper(world.disk)
        (dispatch,) = dispatches({"p1": 1})
        body = {"reward": 77}
        receipt = Receipt(rollout_id="p1", attempt=0, epoch=1, result_identity="8" * 32, result_sha256=digest(body))
        trainer.kept["p1"] = Result("p1", 0, body, receipt, dispatch)
        async with world.coordinator(trainer) as job, trio.open_nursery() as nursery:
            recovered = await job.recover()
            nursery.start_soon(job.run_batch, recovered.runnable([dispatch]))
            await trio.sleep(10)
            rows: list[LedgerRow] = []
            for _ in range(2):
                assert (await job.checkpoint(10)).published
                rows += world.store().read(world.store().published()[-1]).ledger
                await trio.sleep(30)
        assert [(row.status, row.body) for row in rows] == [("live", None), ("saved", body)]


@pytest.mark.trio
async def test_a_store_that_fails_is_asked_again(autojump_clock: MockClock) -> None:
    """What it could not keep at first it keeps a little later; nothing is accepted or released before."""
    async with a_world() as world:
        trainer = Keeper(world.disk, breaks=3)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            assert (report.delivered, world.history.released, trainer.ids) == (1, ["p1"], ["p1"])
            assert set(trainer.kept) == {"p1"}


@pytest.mark.trio
async def test_a_store_that_never_keeps_a_result_is_said_and_its_server_has_the_copy(
    autojump_clock: MockClock,
) -> None:
    """Accepted, the result would be nowhere once a checkpoint is published: its error comes out. No checkpoint
    waits for it any more. Covers: I66, I69.
    """
    async with a_world() as world:
        trainer = Keeper(world.disk, breaks=10_000)
        async with world.coordinator(trainer, run_patience_s=20.0) as job:
            recovered = await job.recover()
            with pytest.raises(ExceptionGroup) as raised:
                await job.run_batch(recovered.runnable(dispatches({"p1": 1, "p2": 1})))
            assert [str(each) for each in raised.value.exceptions] == ["disk full", "disk full"]
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert (world.history.released, trainer.ids, trainer.kept) == ([], [], {})
            (settling,) = [phase.seconds for phase in outcome.phases if phase.name == "settle"]
            assert settling < 1


@pytest.mark.trio
async def test_a_full_server_takes_more_when_results_are_saved(autojump_clock: MockClock) -> None:
    """503 `results_full` never started: it is sent again, and no result is dropped for it."""
    turns: list[Any] = []

    def full_once(server: FakeServer, _body: Reply) -> Response | None:
        turns.append(1)
        return server.refuse(503, "results_full") if len(turns) == 2 else None

    async with a_world() as world:
        trainer = world.trainer()
        world.script("env", "run", full_once)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 1, "p2": 1})))
        assert report.delivered == 2


@pytest.mark.trio
async def test_one_more_rollout_costs_nothing_of_those_that_are_known(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is handed out once, however they come; those that were handed out are not looked through for the next."""
    async with a_world() as world, world.coordinator(world.trainer()) as job:
        recovered = await job.recover()
        first = recovered.runnable(dispatches({"A": 1, "B": 1}))
        assert [each.rollout_id for each in first.episodes] == ["A", "B"]
        looked: list[str] = []

        def watched(self: SharedMap[Rollout]) -> Iterator[str]:
            for chunk in self._chunks:
                for each in chunk:
                    looked.append(each)
                    yield each

        with monkeypatch.context() as patched:
            patched.setattr(SharedMap, "__iter__", watched)
            for number in range(100):
                batch = job.runnable(dispatches({f"more{number}": 1, "A": 1}))
                assert [each.rollout_id for each in batch.episodes] == [f"more{number}"]
        assert not looked
