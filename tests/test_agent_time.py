"""What an agent's session counts and whom it listens to: parked time is nobody's, and an older loop is not heard."""

from __future__ import annotations

import pytest
import trio

from participants.identity import EpisodeId
from participants.servers.admission import Activity
from participants.servers.agent import Agent
from participants.servers.agent_session import LiveSession, Session, SessionError
from statecore.seams import MemoryDisk
from tests.small_job import seams, settings

EPISODE = EpisodeId("p1")


def begun(agent: Agent) -> tuple[LiveSession, Session]:
    """A loop of one attempt, running."""
    live = LiveSession(EPISODE, "run")
    agent.admission.enter_or_refuse()
    live.begin(Activity(agent.admission, EPISODE.rollout_id, lambda: None), agent.seams.clock.monotonic())
    return live, Session(agent, live, {}, max_steps=None, state=None, replayed=False)


@pytest.mark.trio
async def test_time_spent_parked_is_not_the_episode_s(autojump_clock: trio.testing.MockClock) -> None:
    """A turn of 2 s, an hour parked, a turn of 3 s: 5 s have elapsed. Covers: I64."""
    agent = Agent("agent", settings(), seams=seams(MemoryDisk(), "agent"))
    live, session = begun(agent)
    await trio.sleep(2)
    agent.admission.close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.boundary, {"turns": 1})
        await trio.sleep(3600)
        agent.admission.open()
    await trio.sleep(3)
    await session.boundary({"turns": 2})
    assert live.boundary is not None
    assert live.boundary.value()["elapsed_s"] == 5.0


@pytest.mark.trio
async def test_s17_a_loop_that_was_replaced_writes_no_boundary() -> None:
    """Its successor's boundary stays the last one. Covers: I9, S17."""
    agent = Agent("agent", settings(), seams=seams(MemoryDisk(), "agent"))
    live, older = begun(agent)
    await older.boundary({"loop": "older"})
    live.generation += 1
    newer = Session(agent, live, {}, max_steps=None, state=None, replayed=False)
    await newer.boundary({"loop": "newer"})
    with pytest.raises(SessionError, match="was replaced by a newer one"):
        await older.boundary({"loop": "older"})
    with pytest.raises(SessionError, match="was replaced by a newer one"):
        older.finish({})
    assert live.boundary is not None
    assert live.boundary.value()["state"] == {"loop": "newer"}
