"""Codecs for what Gym's own servers keep, where they need nothing of Gym; the workplace's is tested on a real one."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from participants.gym.codecs import blackjack_sessions, export_random, load_random
from participants.gym.held import Slot, held_in
from participants.gym.session_cookies import GymCookies
from participants.servers.codecs import CodecError, check_codec, json_codec


class Server:
    """A server that keeps its sessions in a dictionary."""

    def __init__(self) -> None:
        self.session_state: dict[str, Any] = {}


def hand(seed: int = 1) -> dict[str, Any]:
    generator = random.Random(seed)
    generator.gauss(0, 1)  # holds the other half of the pair
    return {"player": ["K", "2"], "dealer": ["10", "A"], "rng": generator}


def test_a_game_draws_on_where_it_was() -> None:
    """The cards and all of the generator come back, so the next draws are the ones that would have come."""
    held, server = blackjack_sessions(), Server()
    server.session_state["a"] = hand()
    check_codec(held.codec, held.get(server, "a"))
    held.put(server, "b", held.codec.load(held.codec.export(held.get(server, "a"))))
    one, other = server.session_state["a"], server.session_state["b"]
    assert one["rng"] is not other["rng"]
    assert [one["rng"].gauss(0, 1), one["rng"].random()] == [other["rng"].gauss(0, 1), other["rng"].random()]


def test_a_session_that_is_over_has_no_state() -> None:
    """Nothing is carried of it, and putting nothing back leaves nothing."""
    held, server = held_in("session_state", json_codec()), Server()
    assert held.codec.export(held.get(server, "a")) is None
    server.session_state["a"] = {"n": 1}
    held.put(server, "a", held.codec.load(None))
    held.drop(server, "a")
    assert server.session_state == {}
    with pytest.raises(CodecError, match="neither null nor an object with a state"):
        held.codec.load({"n": 1})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("player",), ["1"]),
        (("player",), "K"),
        (("rng", "version"), 2),
        (("rng", "gauss"), 1),
        (("rng", "words"), [0] * 624),
        (("rng", "words"), [0] * 624 + [625]),
        (("rng", "words"), [1 << 32] + [0] * 624),
        (("rng", "words"), [True] * 625),
        (("rng",), None),
    ],
)
def test_data_that_is_no_game_is_refused_by_name(path: tuple[str, ...], value: Any) -> None:
    """Each part is checked before anything is made of it."""
    codec = blackjack_sessions().codec
    data = deepcopy(codec.export(Slot(hand())))
    place = data["state"]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(CodecError, match=rf"\$\.{path[0]}"):
        codec.load(data)


def test_a_state_with_anything_else_in_it_is_refused() -> None:
    """What the codec does not know it does not drop."""
    codec = blackjack_sessions().codec
    with pytest.raises(CodecError, match="player"):
        codec.export(Slot(hand() | {"bet": 5}))
    with pytest.raises(CodecError, match="SystemRandom"):
        codec.export(Slot(hand() | {"rng": random.SystemRandom()}))


def test_a_generator_comes_back_whole() -> None:
    """Also one that was used for a while."""
    generator = random.Random(7)
    generator.random()
    assert load_random("c", "$", export_random(generator)).getstate() == generator.getstate()


def test_a_cookie_of_somebody_else_names_nothing() -> None:
    """Only what was signed with the server's own key is read, and only a session's name in it."""
    cookies = GymCookies("Server___name")
    assert cookies.read("Server___name=eyJzZXNzaW9uX2lkIjogIjEifQ==.awx8DQ.forged") is None
    assert cookies.read("other=1") is None and cookies.read(None) is None
    assert cookies.set_in([("set-cookie", "Server___name=x")]) is None
    signed = cookies._timed.sign(b"W10=").decode()  # an empty list
    assert cookies.read(f"Server___name={signed}") is None
    with pytest.raises(NotImplementedError):
        cookies.write("s")
