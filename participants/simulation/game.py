"""The resources server of a simulated job: a walk over a board, whose every step depends on all before it.

Its state is small and pure, so that what a rollout must come to can be computed beside the run. It speaks as the demo's
game does, to the demo's agent and environment.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import evolve, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from statecore.wire import digest

from ..demo.lines import Event
from ..demo.servers import Place
from ..net.http import ASGIApp
from ..servers.codecs import attrs_codec
from ..servers.resources import Mode, Resources, Verify

MOVES: Final = {"left": 0, "right": 1, "climb": 2}
ROUND: Final = 3
"""So many steps end a walk; the next step needs a reset before it."""


@frozen
class Walk:
    """Where somebody stands, and a digest of the way there. `reward` is of all walks of the session."""

    seed: int
    steps: int = 0
    resets: int = 0
    reward: int = 0
    way: str = ""

    @property
    def over(self) -> bool:
        return self.steps >= ROUND * (self.resets + 1)

    def after(self, action: int) -> Walk:
        """One step later."""
        way = digest([self.seed, self.way, self.steps, action])[:16]
        return evolve(self, steps=self.steps + 1, reward=self.reward + int(way[:2], 16) % 7, way=way)

    def seen(self) -> dict[str, Any]:
        """What the player is told."""
        return {"text": f"You stand at {self.way or 'the gate'}.", "actions": {} if self.over else MOVES}

    def state(self) -> dict[str, Any]:
        """What is compared in the end."""
        return {"steps": self.steps, "resets": self.resets, "way": self.way}


def step_seen(before: Walk, after: Walk) -> dict[str, Any]:
    """The reply to a step."""
    return {**after.seen(), "reward": after.reward - before.reward}


def verdict(walk: Walk) -> dict[str, Any]:
    """The reply to a verification."""
    return {"reward": walk.reward, "state": walk.state()}


def game_app(place: Place, kind: type[Resources[Walk]] = Resources) -> ASGIApp:
    """The resources server."""
    journal = place.journal("game")
    resources = kind(
        "game",
        place.settings,
        codec=attrs_codec(Walk),
        mode=Mode.EXPORT_RESTORE,
        verify=Verify.REPLAY,
        seams=place.seams,
        transport=place.transport,
    )

    async def seed(request: Request) -> Response:
        walk = Walk((await request.json())["seed"])
        return await resources.seed(request.scope, walk, walk.seen())

    async def step(request: Request) -> Response:
        action = (await request.json())["action"]
        async with resources.mutate(request.scope) as change:
            if not change.repeated:
                before = change.state
                change.state = before.after(action)
                change.reply = step_seen(before, change.state)
        if not change.repeated:
            session = change.session
            journal.about(
                Event.STEP, session.episode, turn=session.state.steps, revision=session.position.revision, action=action
            )
        return change.response()

    async def reset(request: Request) -> Response:
        async with resources.mutate(request.scope) as change:
            if not change.repeated:
                change.state = evolve(change.state, resets=change.state.resets + 1)
                change.reply = change.state.seen()
        return change.response()

    async def verify(request: Request) -> Response:
        async with resources.verify(request.scope) as check:
            if not check.repeated:
                check.reply = verdict(check.state)
        return check.response()

    async def close(request: Request) -> Response:
        return await resources.close(request.scope)

    routes = {"/seed_session": seed, "/step": step, "/reset": reset, "/verify": verify, "/close_session": close}
    return resources.wrap(Starlette(routes=[Route(path, each, methods=["POST"]) for path, each in routes.items()]))
