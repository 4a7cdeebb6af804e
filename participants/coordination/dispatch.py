"""Rollouts go out by `POST /run`, and each result comes back once.

Rules (docs/reference/protocol.md sections 6, 7 and 9): `admission_closed` never started and is sent again, under the
same attempt, after our own resume or a bounded wait (I3); a lost connection is asked again under the same attempt, and
the server joins it to the one execution (I10, S33); no answer that is not a result ever becomes one (I97, S65); one
rollout's failure is its own (S42). A result is in the ledger before the framework sees it (I84).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum, auto
from typing import Final

import httpx
import trio
from attrs import evolve, frozen

from statecore.errors import StatecoreError, WireError, WireErrors
from statecore.wire import digest, encode, exact, parse

from ..identity import EPOCH_HEADER, INCARNATION_HEADER, RECEIPT_HEADER, EpisodeId
from ..machines.handoff import AcceptResult
from ..net.replies import Verdict, read_reply
from ..records.records import Json, Receipt
from .ledger import Ledger, Rollout
from .life import Life, Serving, log
from .outcomes import Batch, BatchReport
from .trainer import Dispatch, Result, SavesResults

NOT_STARTED: Final = frozenset({"admission_closed", "results_full", "too_many_held"})
"""Codes that say: nothing has begun, send it again later."""


class Came(StrEnum):
    """What one sending of `/run` brought."""

    RESULT = auto()
    TURNED_AWAY = auto()
    NO_ANSWER = auto()
    NO_RESULT = auto()


@frozen(kw_only=True)
class Answer:
    """One sending's outcome; `body` and `receipt` of a result, `why` of everything else.

    `issued`: the server made the receipt, not we.
    """

    came: Came
    why: str = ""
    body: Json = None
    receipt: Receipt | None = None
    issued: bool = False

    @property
    def may_be_of_a_death(self) -> bool:
        """Whether the death of a server may have made this end of an execution (I97, S65).

        One of ours makes no result of it, and issues no receipt then. One of another make may have scored it.
        """
        return self.came is Came.NO_RESULT or (self.came is Came.RESULT and not self.issued)


def read_run_reply(
    episode: EpisodeId, status: int, headers: httpx.Headers, content: bytes, own_receipt: Receipt
) -> Answer:
    """What a reply to `/run` means. Pure; never raises for what a server may send.

    `own_receipt` is used, with the digest of the body, for a server that issues none.
    """
    if not 200 <= status < 300:
        said = read_reply(status, headers, content)
        why = f"HTTP {status} {said.code}: {said.detail}"
        if said.code in NOT_STARTED and status in (409, 503):
            return Answer(came=Came.TURNED_AWAY, why=why)
        lost = said.code == "participant_lost"
        if said.verdict is Verdict.TRY_AGAIN and not lost:
            return Answer(came=Came.NO_ANSWER, why=why)
        return Answer(came=Came.NO_RESULT, why=why)
    try:
        body = parse(content)
        exact({"body": body})  # as the ledger's row holds it
        sha256 = digest(body)
        header = headers.get(RECEIPT_HEADER)
        receipt = evolve(own_receipt, result_sha256=sha256) if header is None else Receipt.from_header(header)
    except (WireError, WireErrors) as error:
        return Answer(came=Came.NO_RESULT, why=f"the result cannot be read: {error}")
    if body is None:
        return Answer(came=Came.NO_RESULT, why="the result is null")
    if receipt.episode != episode or receipt.epoch not in (None, own_receipt.epoch):
        return Answer(came=Came.NO_RESULT, why=f"the receipt is for {receipt.episode.key} of epoch {receipt.epoch}")
    if receipt.result_sha256 != sha256:
        return Answer(came=Came.NO_RESULT, why="the result does not match its receipt")
    return Answer(came=Came.RESULT, body=body, receipt=receipt, issued=header is not None)


def other_process(target: str, given_to: str, shown: str | None) -> str:
    """Why a reply is not of the process that the execution was given to, or "" (I97). Pure.

    `shown` is the incarnation that the reply names; a peer of another make has none.
    """
    if shown is None or given_to in ("", shown):
        return ""
    return f"participant lost: {target} is another process now ({shown}, not {given_to})"


class Dispatcher:
    """Runs the rollouts of one life."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._places = trio.CapacityLimiter(life.settings.max_running)
        self._handed_out: set[str] = set()
        self._recovered_are_out = False
        self._running: set[str] = set()
        self._given_up: set[str] = set()
        self._acknowledging: set[str] = set()

    # --- registering: synchronous, so that no checkpoint falls in between (S40)

    def runnable(self, new_dispatches: Iterable[Dispatch]) -> Batch:
        """Everything that waits to be run, recovered or new; all of it registered, nothing handed out twice."""
        new_dispatches = tuple(new_dispatches)
        for dispatch in new_dispatches:
            if dispatch.target not in self._life.deployment.urls:
                known = ", ".join(sorted(self._life.deployment.urls))
                raise ValueError(f"{dispatch.rollout_id} goes to {dispatch.target!r}, which is none of {known}")
        ledger, new = self._life.ledger.registered(new_dispatches)
        if self._recovered_are_out:
            waiting = new
        else:  # once: to look through all that is known for each new one would take time that grows with its square
            waiting = tuple(each.episode for each in ledger.rollouts.values() if not (each.has_result or each.sent))
            self._recovered_are_out = True
        self._life.note(ledger)
        self._handed_out |= {each.rollout_id for each in waiting}
        return Batch(waiting)

    # --- running

    async def run(self, batch: Batch) -> BatchReport:
        """Every rollout of `batch` has ended, with its result delivered or a reason why there is none.

        ValueError for a batch that runs already, has run, or was never made here; one whose run was cancelled may be
        run again. What the framework's `accept` raises comes out when all others have ended. Raises what has stopped
        this life, if that happens first.
        """
        rollouts = {each.rollout_id: each for each in batch.episodes}
        for rollout_id, episode in rollouts.items():
            if rollout_id not in self._handed_out or rollout_id in self._running:
                raise ValueError(f"{episode.key} is in a batch that was not made here or runs already")
        self._running |= set(rollouts)
        lost: dict[str, str] = {}
        errors: list[Exception] = []
        ended = stopped = False

        async def run(rollout_id: str) -> None:
            nonlocal stopped
            one = self._go_on if rollout_id in self._given_up else self._run_one
            try:
                await one(rollout_id, lost, errors)
            except StatecoreError as error:
                if error is not self._life.why_stopped:
                    raise
                stopped = True
                nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                for rollout_id in rollouts:
                    nursery.start_soon(run, rollout_id)
            if stopped:
                self._life.check_running()
            ended = True
        finally:
            if not ended:  # by its caller: the batch may be run again, and joins its executions
                self._running -= set(rollouts)
                self._given_up |= set(rollouts)
        if errors:
            raise ExceptionGroup("the framework refused results", errors)
        return BatchReport(delivered=len(batch) - len(lost), lost=lost)

    async def _run_one(self, rollout_id: str, lost: dict[str, str], errors: list[Exception]) -> None:
        answer = await self._until_final(rollout_id)
        if answer.came is not Came.RESULT or answer.receipt is None:
            log.warning("%s has no result: %s", self._life.ledger[rollout_id].episode.key, answer.why)
            lost[rollout_id] = answer.why
            self._life.note(self._life.ledger.lost(rollout_id, answer.why))
            return
        try:
            await self._deliver(answer.receipt, answer.body)
        except Exception as error:  # the framework's own; its neighbours go on (S42)
            errors.append(error)
            if not self._life.ledger[rollout_id].has_result:  # no checkpoint waits for it in this life (I69)
                why = f"its result came and could not be saved: {type(error).__name__}: {error}"
                self._life.note(self._life.ledger.lost(rollout_id, why))

    async def _go_on(self, rollout_id: str, lost: dict[str, str], errors: list[Exception]) -> None:
        """As `_run_one`, for a rollout whose run was given up: at any moment of it."""
        known = self._life.ledger[rollout_id]
        if known.ended:
            lost[rollout_id] = known.ended
        elif known.has_result:
            try:
                await self._hand_over_once(known)
            except Exception as error:  # as above
                errors.append(error)
        else:
            await self._run_one(rollout_id, lost, errors)

    async def _until_final(self, rollout_id: str) -> Answer:
        """The answer to a rollout, however often it has to be sent, and under how many attempts.

        Nothing is awaited between this answer and its entry in the ledger: no restart falls in between.
        """
        life = self._life
        serving, patience = life.serving, _Patience(life)
        async with self._places:
            while True:
                await life.up.wait()
                await life.door.wait()
                life.check_running()
                if not (life.up.is_open and life.door.is_open):
                    continue
                if serving.over:
                    serving, patience = life.serving, _Patience(life)
                life.note(life.ledger.dispatched([rollout_id]))
                episode = life.ledger[rollout_id].episode
                answer = await self._ask(life.ledger[rollout_id], patience, serving)
                if not await self._counts(answer, serving):
                    continue  # its servers are gone: it goes on under the attempt that a restart gives it
                if answer.came is Came.NO_RESULT and (retirement := life.retirements.of(episode)) is not None:
                    if await retirement.succeeded():
                        if not serving.over:
                            life.note(life.ledger.retried(rollout_id))
                            life.retirements.forget(episode)
                        continue
                    if not await self._counts(answer, serving):  # it was we who ended it, and maybe for a death
                        continue
                if answer.came is not Came.TURNED_AWAY:
                    life.retirements.forget(episode)
                    return answer
                life.note(life.ledger.turned_away(rollout_id))
                if not await patience.wait_for_opening() and not serving.over:
                    return evolve(answer, came=Came.NO_RESULT, why=f"turned away until now: {answer.why}")

    async def _counts(self, answer: Answer, serving: Serving) -> bool:
        """Whether this is the end of an execution, and not of its servers: then all of those are over, or soon are."""
        if answer.may_be_of_a_death and not serving.over and not await self._life.detector.vouch():
            await serving.ended()
        return not serving.over

    async def _ask(self, rollout: Rollout, patience: _Patience, serving: Serving) -> Answer:
        """The answer to an execution that was not turned away; connections that break are asked again (S33)."""
        answer = Answer(came=Came.NO_ANSWER, why="its servers are gone")
        with serving.call():
            while (answer := await self._send(rollout)).came is Came.NO_ANSWER:
                self._life.detector.suspect()
                if not await patience.wait():
                    return evolve(answer, came=Came.NO_RESULT, why=f"participant lost: {answer.why}")
        return answer

    async def _send(self, rollout: Rollout) -> Answer:
        life, episode = self._life, rollout.episode
        body = {
            "episode_id": {"rollout_id": episode.rollout_id, "attempt": episode.attempt},
            "task": rollout.dispatch.task,
        }
        url = f"{life.deployment.urls[rollout.dispatch.target].rstrip('/')}/run"
        headers = {"content-type": "application/json", EPOCH_HEADER: str(life.epoch)}
        try:
            async with life.data_client.stream("POST", url, headers=headers, content=encode(body)) as reply:
                content = await _read(reply, life.settings.max_result_bytes)
        except httpx.TransportError as error:
            return Answer(came=Came.NO_ANSWER, why=f"{type(error).__name__}: {error}")
        except httpx.DecodingError as error:
            return Answer(came=Came.NO_RESULT, why=f"the result cannot be decoded: {error}")
        if content is None:
            return Answer(came=Came.NO_RESULT, why=f"a result of more than {life.settings.max_result_bytes} bytes")
        if problem := self._other_process(rollout.dispatch.target, reply.headers):
            return Answer(came=Came.NO_RESULT, why=problem)
        own = Receipt(
            rollout_id=episode.rollout_id,
            attempt=episode.attempt,
            epoch=life.epoch,
            result_identity=life.seams.entropy.token_hex(16),
            result_sha256="0" * 64,
        )
        return read_run_reply(episode, reply.status_code, reply.headers, content, own)

    def _other_process(self, target: str, headers: httpx.Headers) -> str:
        shown = headers.get(INCARNATION_HEADER)
        self._life.detector.heard(target, shown)
        members = (member for member in self._life.deployment.members if member.name == target)
        return next((other_process(target, member.incarnation, shown) for member in members), "")

    # --- results

    async def _deliver(self, receipt: Receipt, body: Json) -> None:
        """The result is in the ledger, and with the framework if it is the rollout's first (I68).

        A store outside is asked first: what enters the ledger, and every checkpoint, is what stands (section 9).
        """
        life = self._life
        ledger, effects = life.ledger.received(receipt, body)
        first = any(isinstance(effect, AcceptResult) for effect in effects)
        standing = await self._asked(ledger[receipt.rollout_id]) if first else None
        if standing is None:
            life.note(life.ledger.received(receipt, body)[0])
        else:
            ledger, _ = life.ledger.received(standing.receipt, standing.body)
            await self._note_standing(ledger, standing)
        if first:
            await self._accept(life.ledger[receipt.rollout_id])

    async def _hand_over(self, rollout: Rollout, *, redelivered: bool = False) -> None:
        """A result of the ledger is with the framework, or what stands in its place."""
        standing = await self._asked(rollout)
        if standing is not None:
            await self._note_standing(self._life.ledger, standing)
        await self._accept(self._life.ledger[rollout.dispatch.rollout_id], redelivered=redelivered)

    async def _accept(self, rollout: Rollout, *, redelivered: bool = False) -> None:
        result = rollout.result
        assert result is not None
        async with self._life.hooks:
            await self._life.trainer.accept(evolve(result, redelivered=redelivered))

    async def _hand_over_once(self, rollout: Rollout) -> None:
        """The result is with the framework, which may have taken it already: its consumed set tells (I88)."""
        async with self._life.hooks:
            consumed = await self._life.trainer.consumed()
        if rollout.dispatch.rollout_id not in consumed:
            await self._hand_over(rollout)

    async def _asked(self, rollout: Rollout) -> Result | None:
        """What the framework's store keeps for this rollout; None without such a store.

        A store that fails is asked again, for as long as a `/run` would be; then its error comes out, and the result is
        neither in the ledger nor with the framework: whoever keeps results outside must have all of them.
        """
        trainer, result = self._life.trainer, rollout.result
        assert result is not None
        if not isinstance(trainer, SavesResults):
            return None
        patience = _Patience(self._life)
        while True:
            try:
                standing = await trainer.save_result(result)
                break
            except Exception as error:
                log.warning("save_result failed for %s: %s: %s", result.rollout_id, type(error).__name__, error)
                if not await patience.wait():
                    raise
        if (standing.rollout_id, digest(standing.body)) != (result.rollout_id, standing.receipt.result_sha256):
            raise ValueError(f"what stands for {result.rollout_id} is not what its receipt names")
        return standing

    async def _note_standing(self, ledger: Ledger, standing: Result) -> None:
        """It is in the ledger, saved, and acknowledged at once (section 9)."""
        self._life.note(ledger.standing(standing))
        await self._acknowledge(ledger[standing.rollout_id].dispatch.target)

    async def _acknowledge(self, target: str) -> None:
        """What `target` retains and is saved is released; of several at once only one asks."""
        if target in self._acknowledging:
            return
        self._acknowledging.add(target)
        try:
            members = tuple(each for each in self._life.deployment.members if each.name == target)
            for problem in await self._life.acknowledge(members):
                log.warning("not acknowledged yet: %s", problem)
        finally:
            self._acknowledging.discard(target)

    async def redeliver(self, rollout_ids: Iterable[str]) -> None:
        """Results that a checkpoint's ledger holds and the trainer's state lacks are with the framework again (I87)."""
        for rollout_id in rollout_ids:
            await self._hand_over(self._life.ledger[rollout_id], redelivered=True)


class _Patience:
    """How long one execution is sent again without getting anywhere. Time in our own checkpoints does not count."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._delay_s = life.settings.run_first_delay_s
        self._left_s = life.settings.run_patience_s

    async def wait(self) -> bool:
        """After a growing delay true; false when patience is used up."""
        if self._left_s <= 0:
            return False
        delay_s = self._delay_s * (1 - self._life.seams.entropy.random() / 2)
        self._delay_s = min(2 * self._delay_s, self._life.settings.run_max_delay_s)
        await trio.sleep(delay_s)
        self._left_s -= delay_s
        return True

    async def wait_for_opening(self) -> bool:
        """After our own resume if a checkpoint of ours is open, else as `wait`."""
        if not self._life.door.is_open:
            await self._life.door.wait()
            self._delay_s = self._life.settings.run_first_delay_s
            return True
        return await self.wait()


async def _read(reply: httpx.Response, limit: int) -> bytes | None:
    """The body, None when it is longer than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    with trio.CancelScope() as reading:  # cancelled and not left: no async generator stays behind half-read
        async for part in reply.aiter_bytes():
            size += len(part)
            if size > limit:
                reading.cancel()
            parts.append(part)
    return b"".join(parts) if size <= limit else None
