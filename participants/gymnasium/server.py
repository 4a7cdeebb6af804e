"""A resources server for Gymnasium environments: each session goes on after a restore as if nothing had happened.

`/seed_session` makes an environment and resets it with a seed, `/step` takes one action, `/reset` begins another
episode in the same session, `/verify` gives the reward of all of them, `/close_session` ends the session. What a
checkpoint holds of a session is the environment with its wrappers (the step limit!) and its random generators, so that
the next step equals the undisturbed one (S11). docs/reference/protocol.md sections 2, 3, 6 and 14.

Three factories need no arguments, for a launcher: `taxi`, `frozen_lake`, `blackjack`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import httpx
from attrs import field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from statecore.errors import Refused, WireError, WireErrors
from statecore.wire import digest, parse, structure

from ..identity import EpisodeId
from ..net.http import ASGIApp, invalid_body, refusal, refuse_request
from ..records.positions import Position
from ..servers.codecs import JSON
from ..servers.resources import Mode, Resources, Session, Verify
from ..settings import Seams, Settings
from .codec import SUPPORTED, GymnasiumSession
from .play import Play, PlayCodec
from .text import actions, describe

__all__ = ["Applied", "blackjack", "frozen_lake", "gymnasium_resources", "taxi"]

IDENTITY_FIELDS: Final = "_ng_"
"""Fields of a body that name the rollout; they are read before the application sees it."""

B = TypeVar("B")


# --- what the routes take


@frozen(kw_only=True)
class SeedBody:
    """`options` are what `gymnasium.make` takes beside the id, such as ``{"is_slippery": false}``."""

    seed: int
    env_id: str | None = None
    options: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class ResetBody:
    seed: int | None = None


@frozen(kw_only=True)
class StepBody:
    action: int


@frozen(kw_only=True)
class VerifyBody:
    """`export`: the reply holds the session's state as a checkpoint would."""

    export: bool = False


# --- the server


@frozen
class Applied:
    """One change that was applied: `action` is None for a reset, `digest` is of the exported state after it.

    `steps` counts those since the seed, this one included.
    """

    episode: EpisodeId | None
    position: Position
    action: int | None
    steps: int
    reward: float
    digest: str


def gymnasium_resources(
    name: str,
    settings: Settings,
    env_id: str | None = None,
    *,
    verify: Verify = Verify.REPLAY,
    on_applied: Callable[[Applied], None] | None = None,
    seams: Seams | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    kind: type[Resources[Play]] = Resources,
) -> ASGIApp:
    """A server of one environment id, or without one of all supported: then each seed says which (`env_id`).

    A verification reads and changes nothing, so it may run again (Verify.REPLAY). `on_applied` is told of each change
    before its reply leaves; it must not block. `kind` is `Resources` or a subclass of it. Raises ValueError for an id
    that is not supported.
    """
    if env_id is not None and env_id not in SUPPORTED:
        raise ValueError(f"{env_id!r} is none of {', '.join(SUPPORTED)}")
    codec = PlayCodec(env_id)
    resources = kind(
        name, settings, codec=codec, mode=Mode.EXPORT_RESTORE, verify=verify, seams=seams, transport=transport
    )
    routes = _Routes(resources, codec, on_applied)
    return resources.wrap(
        Starlette(
            routes=[
                Route("/seed_session", _taking(SeedBody, routes.seed), methods=["POST"]),
                Route("/reset", _taking(ResetBody, routes.reset), methods=["POST"]),
                Route("/step", _taking(StepBody, routes.step), methods=["POST"]),
                Route("/verify", _taking(VerifyBody, routes.verify), methods=["POST"]),
                Route("/close_session", routes.close, methods=["POST"]),
            ]
        )
    )


@frozen
class _Routes:
    """What the application does behind the wrapper."""

    resources: Resources[Play]
    codec: PlayCodec
    on_applied: Callable[[Applied], None] | None

    async def seed(self, request: Request, body: SeedBody) -> Response:
        only = self.codec.env_id
        env_id = body.env_id if only is None else only
        if env_id is None:
            raise WireError.at(("env_id",), f"this server plays {', '.join(SUPPORTED)}: name one", "missing")
        if body.env_id not in (None, env_id):
            raise WireError.at(("env_id",), f"this server plays {env_id} only")
        if env_id not in SUPPORTED:
            raise WireError.at(("env_id",), f"{env_id!r} is none of {', '.join(SUPPORTED)}")
        with _fault_in("options", "seed"):
            play = Play(GymnasiumSession.start(env_id, seed=body.seed, **dict(body.options)))
        return await self.resources.seed(request.scope, play, {"env_id": env_id, **_seen(play)})

    async def reset(self, request: Request, body: ResetBody) -> Response:
        async with self.resources.mutate(request.scope) as change:
            if not change.repeated:
                with _fault_in("seed"):
                    change.state.reset(body.seed)
                change.reply = _seen(change.state)
        if not change.repeated:
            self._applied(change.session, None, 0.0)
        return change.response()

    async def step(self, request: Request, body: StepBody) -> Response:
        reward = 0.0
        async with self.resources.mutate(request.scope) as change:
            if not change.repeated:
                game = change.state.game
                if game.over:
                    raise refuse_request("episode_over", f"it ended after {game.steps} steps: reset it first")
                with _fault_in("action"):
                    reward = game.step(body.action).reward
                ended = {"terminated": game.terminated, "truncated": game.truncated}
                change.reply = {**_seen(change.state), "reward": reward, **ended}
        if not change.repeated:
            self._applied(change.session, body.action, reward)
        return change.response()

    async def verify(self, request: Request, body: VerifyBody) -> Response:
        async with self.resources.verify(request.scope) as check:
            if not check.repeated:
                play = check.state
                check.reply = {"reward": play.reward, "steps": play.steps, "episodes": play.episodes, **_seen(play)}
                if body.export:
                    check.reply["state"] = self.codec.export(play)
        return check.response()

    async def close(self, request: Request) -> Response:
        return await self.resources.close(request.scope)

    def _applied(self, session: Session[Play], action: int | None, reward: float) -> None:
        """Nothing was awaited since the change, so the session stands where it left it."""
        if self.on_applied is not None:
            state = digest(self.codec.export(session.state))
            self.on_applied(Applied(session.episode, session.position, action, session.state.steps, reward, state))


def _seen(play: Play) -> dict[str, JSON]:
    """What a player is told."""
    game = play.game
    return {"observation": game.observation, "text": describe(game), "actions": actions(game)}


@contextmanager
def _fault_in(*names: str) -> Iterator[None]:
    """A ValueError inside says that one of these fields of the body cannot be used: the first that its text names."""
    try:
        yield
    except ValueError as error:
        named = next((name for name in names if name in str(error)), names[0])
        raise WireError.at((named,), str(error), "value_error") from error


def _taking(cls: type[B], handler: Callable[[Request, B], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
    """The handler with the request's body as `cls`; a body that does not fit is a 422 that names the place."""

    async def endpoint(request: Request) -> Response:
        try:
            raw = await request.body()
            value = parse(raw) if raw else {}
            if type(value) is not dict:
                raise WireError.at((), "Input should be a valid dictionary", "model_attributes_type")
            own = {name: each for name, each in value.items() if not name.startswith(IDENTITY_FIELDS)}
            return await handler(request, structure(own, cls))
        except (WireError, WireErrors) as error:
            answer = invalid_body(error)
        except Refused as refused:  # also where no wrapper is around that would say so
            answer = refusal(refused)
        return JSONResponse(answer.body, answer.status)

    return endpoint


# --- factories for a launcher: settings come from the environment


def taxi() -> ASGIApp:
    """A server of Taxi-v4."""
    return gymnasium_resources("taxi", Settings.from_env(), "Taxi-v4")


def frozen_lake() -> ASGIApp:
    """A server of FrozenLake-v1."""
    return gymnasium_resources("frozen_lake", Settings.from_env(), "FrozenLake-v1")


def blackjack() -> ASGIApp:
    """A server of Blackjack-v1."""
    return gymnasium_resources("blackjack", Settings.from_env(), "Blackjack-v1")
