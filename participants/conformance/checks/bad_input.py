"""What is no call of the protocol is refused as such, open and closed, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from ..check import Group, check
from ..said import DoesNotApply, NotConforming, Said
from ..subject import Json, Subject

WRITTEN: Final = "routes.md section 1"
NOBODY: Final[Json] = {"rollout_id": "nobody", "attempt": 0}
BODIES: Final[dict[str, Json]] = {
    "prepare": {},
    "commit": {"checkpoint_dir": "nowhere", "episode_ids": [NOBODY]},
    "restore": {"checkpoint_dir": "nowhere", "episode_ids": [NOBODY]},
    "resume": {},
    "renew": {},
    "retire": {"episode_ids": [NOBODY]},
    "forget": {"rollout_ids": ["nobody"]},
}
WRONG: Final[dict[str, tuple[Any, ...]]] = {
    "checkpoint_id": (None, 7, True, [], {}, "", "a" * 129, "a/b", "../a", ".a", "a b", "a\n", "\u00e9", "\x00"),
    "deadline_ts": (None, True, [], {}, "soon", "", float("nan"), float("inf"), "nan", "-inf", 10**400),
    "checkpoint_dir": (None, 7, True, [], {}, ""),
    "episode_ids": (
        "nobody", 7, True, {}, NOBODY, [None], ["nobody"], [7], [[]], [{}],
        [{"attempt": 0}], [{"rollout_id": ""}], [{"rollout_id": "a-a1"}], [{"rollout_id": "a/b"}], [{"rollout_id": 7}],
        [{"rollout_id": "a" * 129}], [NOBODY | {"attempt": -1}], [NOBODY | {"attempt": 0.5}],
        [NOBODY | {"attempt": "0"}], [NOBODY | {"attempt": True}], [NOBODY | {"attempt": None}],
        [NOBODY | {"generation": 1}],
    ),
    "rollout_ids": (None, "nobody", 7, True, {}, [], [None], [7], [[]], [{}]),
}  # fmt: skip
"""By field, the values that are none."""
MORE_WRONG: Final[dict[tuple[str, str], tuple[Any, ...]]] = {
    ("retire", "episode_ids"): (None, []),
    ("restore", "episode_ids"): (None,),
}
UNWRITABLE: Final = "no\0where"
NO_DIRECTORY: Final = (
    "..", "../..", "/", "nowhere/../../nowhere", "/nowhere", "~", ".", "n" * 300, "n/" * 3000, "no\ud800where",
    UNWRITABLE,
)  # fmt: skip
"""Paths where no checkpoint is; to all but the last another make might write, so that they are only read from."""
NO_OBJECT: Final = (b"", b"null", b"[]", b"7", b'"text"', b"{", b'{"checkpoint_id": ', b"\xff\xfe", b"[" * 20_000)


def wrong_bodies(verb: str, right: Json, values: int) -> Iterator[tuple[str, Json]]:
    """(what is wrong, body) of every body of `verb` in which one thing is wrong, with so many wrong values a field."""
    for name in right:
        if (verb, name) != ("commit", "episode_ids"):  # none is all of them
            yield f"{name} missing", {key: value for key, value in right.items() if key != name}
        more = MORE_WRONG.get((verb, name), ())
        for value in (*more, *WRONG[name])[:values]:
            yield f"{name} is {value!r:.40}", right | {name: value}
    yield "an unknown field", right | {"unknown": 1}


@check(Group.BAD_INPUT, WRITTEN)
async def every_field_of_every_verb(server: Subject) -> None:
    """A field that is missing, of another type, malformed or unknown: 422 with `detail`, on an open server and on a
    closed one, which are then as they were.
    """
    checkpoint_id = server.new_id()
    await _refused(server, checkpoint_id, values=100)
    await server.prepared(checkpoint_id)
    await _refused(server, checkpoint_id, values=2)
    (await server.call("resume", checkpoint_id)).ok(idempotent=False)


async def _refused(server: Subject, checkpoint_id: str, values: int) -> None:
    for verb, more in BODIES.items():
        async with server.unchanged(f"bodies of {verb} in which one thing is wrong"):
            for what, body in wrong_bodies(verb, server.body(checkpoint_id, **more), values):
                _unprocessable(await server.post(verb, json.dumps(body).encode()), what)


@check(Group.BAD_INPUT, WRITTEN)
async def bodies_that_are_no_object(server: Subject) -> None:
    """No body, no JSON, no object, a thousandfold nesting: 422, never an error of the server."""
    for verb in BODIES:
        async with server.unchanged(f"bodies of {verb} that are no object"):
            for content in NO_OBJECT:
                _unprocessable(await server.post(verb, content), "no object")


@check(Group.BAD_INPUT, "codes.md", "I17", "I52")
async def directories_that_are_none(server: Subject) -> None:
    """A restore from a path that is none, and a commit to one that cannot be, is refused with 422, never an error of
    the server, which stays as it was.
    """
    checkpoint_id = server.new_id()
    async with server.unchanged("restores from paths that are none"):
        for directory in NO_DIRECTORY:
            said = await server.call("restore", checkpoint_id, checkpoint_dir=directory, episode_ids=[])
            _no_directory(said, directory)
    await server.prepared(checkpoint_id)
    said = await server.call("commit", checkpoint_id, checkpoint_dir=UNWRITABLE, episode_ids=[])
    _no_directory(said, UNWRITABLE)
    await server.stands(said.sent, phase="prepared", checkpoint_id=checkpoint_id)


def _no_directory(said: Said, directory: str) -> None:
    if said.status != 422:
        raise said.differs(f"422: {directory!r:.60} is no directory of a checkpoint")


@check(Group.BAD_INPUT, WRITTEN)
async def bodies_that_are_huge(server: Subject) -> None:
    """A body of two million characters is refused, with 413 or 422, or served, and the server stays as it was."""
    checkpoint_id = "x" * 2_000_000
    async with server.unchanged("huge bodies"):
        for verb, more in BODIES.items():
            said = await server.post(verb, json.dumps(server.body(checkpoint_id, **more)).encode())
            if said.status not in (413, 422):
                raise said.differs("413 or 422: an id of two million characters")


@check(Group.BAD_INPUT, "routes.md section 2", "I66")
async def acknowledgements_that_are_none(server: Subject) -> None:
    """What is no list of receipts is refused with 422, by a server that keeps results."""
    if not server.has_results:
        raise DoesNotApply("it keeps no results")
    receipts: tuple[Any, ...] = ([], None, {}, "receipt", ["receipt"], [{}], [NOBODY], [NOBODY] * 1001)
    async with server.unchanged("acknowledgements that are none"):
        for body in ({}, [], *({"receipts": each} for each in receipts)):
            _unprocessable(await server.acknowledge(body), "no receipts")


@check(Group.BAD_INPUT, WRITTEN)
async def a_verb_that_is_none(server: Subject) -> None:
    """An unknown route below the prefix is 404."""
    async with server.unchanged("an unknown verb"):
        said = await server.post("destroy", server.body("nothing"))
        if said.status != 404:
            raise said.differs("404")


def _unprocessable(said: Said, what: str) -> None:
    detail = said.body.get("detail") if isinstance(said.body, dict) else None
    if said.status != 422 or not isinstance(detail, list) or not detail:
        raise NotConforming(said.sent, str(said), f"422 with a list `detail`: {what}")
