"""Who has no token learns nothing and changes nothing (I19)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...net.client import CONTROL_PREFIX
from ...servers.calls import VERBS
from ..check import Group, check
from ..said import NotConforming
from ..subject import CHECKPOINT, Subject

WRITTEN: Final = "protocol.md section 5"


def headers_without_the_token(token: str) -> dict[str, dict[str, str]]:
    """Requests that do not have the token, by how they lack it."""
    return {
        "no token": {},
        "another token": {"authorization": f"Bearer {token[:-1]}{'a' if token[-1] != 'a' else 'b'}"},
        "a longer token": {"authorization": f"Bearer {token}x"},
        "the scheme in small letters": {"authorization": f"bearer {token}"},
        "another scheme": {"authorization": f"Basic {token}"},
        "the token alone": {"authorization": token},
        "another text": {"authorization": "Bearer"},
    }


def routes(server: Subject, checkpoint_id: str) -> Iterator[tuple[str, str, dict[str, Any] | None]]:
    """(method, path, body) of every control route that the server has."""
    yield "GET", f"{CHECKPOINT}/status", None
    if server.has_capabilities:
        yield "GET", f"{CONTROL_PREFIX}/capabilities", None
    if server.has_results:
        yield "GET", f"{CONTROL_PREFIX}/results", None
        yield "POST", f"{CONTROL_PREFIX}/results/acknowledge", {"receipts": []}
    for verb in VERBS:
        more: dict[str, Any] = {}
        if verb in ("commit", "restore"):
            more = {"checkpoint_dir": "nowhere", "episode_ids": []}
        elif verb == "retire":
            more = {"episode_ids": [{"rollout_id": "nobody", "attempt": 0}]}
        elif verb == "forget":
            more = {"rollout_ids": ["nobody"]}
        yield "POST", f"{CHECKPOINT}/{verb}", server.body(checkpoint_id, **more)


@check(Group.AUTHENTICATION, WRITTEN, "I19")
async def every_route_wants_the_token(server: Subject) -> None:
    """Every control route answers 401 `unauthorized` without the exact bearer token, open and closed, and does
    nothing.
    """
    checkpoint_id = server.new_id()
    await _all_refused(server, checkpoint_id)
    await server.prepared(checkpoint_id)
    await _all_refused(server, checkpoint_id)
    await server.resumed(checkpoint_id)


async def _all_refused(server: Subject, checkpoint_id: str) -> None:
    for how, headers in headers_without_the_token(server.target.token).items():
        async with server.unchanged(f"every control route with {how}"):
            for method, path, body in routes(server, checkpoint_id):
                (await server.raw(method, path, headers=headers, body=body)).refused("unauthorized")


@check(Group.AUTHENTICATION, WRITTEN, "I19")
async def the_token_comes_before_the_body(server: Subject) -> None:
    """A body that is wrong is answered 401 as well, so that nobody without the token learns what is wrong with it."""
    for verb in VERBS:
        (await server.raw("POST", f"{CHECKPOINT}/{verb}", headers={}, body={"unknown": 1})).refused("unauthorized")


@check(Group.AUTHENTICATION, "protocol.md section 2", "I19", "I73", auxiliary=True)
async def an_auxiliary_shows_its_capabilities_to_those_with_the_token(server: Subject) -> None:
    """A judge's or a simulator's capabilities ask for the token, and with it there is no checkpoint route at all."""
    path = f"{CONTROL_PREFIX}/capabilities"
    for headers in headers_without_the_token(server.target.token).values():
        (await server.raw("GET", path, headers=headers)).refused("unauthorized")
    (await server.get(path)).ok(instance_role="auxiliary")
    for verb in ("status", *VERBS):
        said = await (server.status() if verb == "status" else server.call(verb, "nothing"))
        if said.status != 404:
            raise NotConforming(said.sent, str(said), "404: who takes no part has no checkpoint routes (S1)")
