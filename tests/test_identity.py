"""Who: rollouts, attempts, capture keys, and the places that name them (protocol.md section 3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from participants.identity import (
    ATTEMPT_HEADER,
    MAX_ROLLOUT_ID_LENGTH,
    ROLLOUT_ID_HEADER,
    EpisodeId,
    IdentityMismatch,
    agreed,
    check_rollout_id,
    from_body,
    from_headers,
    highest_attempts,
    split_prefix,
    with_prefix,
)


def _is_rollout_id(text: str) -> bool:
    try:
        check_rollout_id(text)
    except ValueError:
        return False
    return True


# Short and full of what an attempt suffix is made of, so that collisions would be found.
near_suffixes = st.text("a-019._", min_size=1, max_size=8).map(lambda text: "r" + text).filter(_is_rollout_id)
plain = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True).filter(_is_rollout_id)
rollout_ids = st.one_of(near_suffixes, plain)
attempts = st.integers(0, 200)
episodes = st.builds(EpisodeId, rollout_ids, attempts)


@given(episodes, episodes)
def test_the_capture_key_is_injective(one: EpisodeId, other: EpisodeId) -> None:
    """Two executions have the same key only if they are the same execution. Covers: I4"""
    assert (one.key == other.key) == (one == other)


@given(episodes)
def test_a_key_is_read_back(episode: EpisodeId) -> None:
    """The key names the execution that it was made of, attempt 0 by the rollout id alone. Covers: I1, I4"""
    assert EpisodeId.from_key(episode.key) == episode
    assert episode.key == (episode.rollout_id if episode.attempt == 0 else f"{episode.rollout_id}-a{episode.attempt}")


@given(st.text(max_size=12))
def test_whatever_is_read_from_a_key_writes_that_key(text: str) -> None:
    """Any text is either refused or the key of exactly the execution that is read from it. Covers: I4, I5"""
    try:
        episode = EpisodeId.from_key(text)
    except ValueError:
        return
    assert episode.key == text


@given(episodes)
def test_a_restore_makes_the_next_attempt_of_the_same_rollout(episode: EpisodeId) -> None:
    """N becomes N + 1, and the rollout id never changes. Covers: I2, I54"""
    assert episode.successor == EpisodeId(episode.rollout_id, episode.attempt + 1)


@given(st.lists(episodes))
def test_a_retire_covers_the_highest_named_attempt_of_each_rollout(named: list[EpisodeId]) -> None:
    """In whatever order they are named, a lower one never lowers the mark. Covers: I8"""
    highest = highest_attempts(named)
    assert set(highest) == {each.rollout_id for each in named}
    for rollout_id, attempt in highest.items():
        assert attempt == max(each.attempt for each in named if each.rollout_id == rollout_id)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a valid rollout id"),
        ("a/b", "not a valid rollout id"),
        ("../up", "not a valid rollout id"),
        ("-starts-with-a-mark", "not a valid rollout id"),
        (".hidden", "not a valid rollout id"),
        ("a b", "not a valid rollout id"),
        ("line\n", "not a valid rollout id"),
        ("nul\x00", "not a valid rollout id"),
        ("caf\u00e9", "not a valid rollout id"),
        ("\uff41bc", "not a valid rollout id"),
        ("r-a3", "reserved attempt suffix"),
        ("r-a1-a20", "reserved attempt suffix"),
        ("x" * (MAX_ROLLOUT_ID_LENGTH + 1), "at most 128 characters, this one 129"),
    ],
)
def test_what_is_no_rollout_id_is_refused(text: str, reason: str) -> None:
    """Empty, too long, slashes, marks in front, other alphabets, what looks like an attempt: each with its reason."""
    with pytest.raises(ValueError, match=reason):
        check_rollout_id(text)
    with pytest.raises(ValueError, match=reason):
        EpisodeId(text)


@pytest.mark.parametrize("text", ["r", "R2.d2_x-", "0", "r-a", "r-a0", "r-a01", "r-b3", "x" * MAX_ROLLOUT_ID_LENGTH])
def test_what_is_a_rollout_id_is_returned_unchanged(text: str) -> None:
    """Letters, digits and marks, up to 128 of them; `-a0` and `-a01` are no attempts."""
    assert check_rollout_id(text) == text
    assert EpisodeId.from_key(text) == EpisodeId(text)


def test_a_negative_attempt_is_refused() -> None:
    """Attempts count from 0. Covers: I3"""
    with pytest.raises(ValueError, match="0 or more, not -1"):
        EpisodeId("r", -1)


@pytest.mark.parametrize("key", ["r-a1-a2", "", "/", "-a1", "r/x-a1", "x" * 129, "x" * 129 + "-a1", "r-a" + "9" * 5000])
def test_a_malformed_key_is_refused(key: str) -> None:
    """A key whose rollout is none, or already has a suffix, names nothing."""
    with pytest.raises(ValueError):
        EpisodeId.from_key(key)


@given(episodes, st.sampled_from(["/", "/run", "/v1/chat/completions", "/a//b", "/ng-rollout/x/y"]))
def test_a_path_carries_the_execution(episode: EpisodeId, path: str) -> None:
    """What the prefix says is read back, and the path behind it is the one that was called. Covers: I1"""
    assert split_prefix(with_prefix(episode, path)) == (episode, path)


def test_paths_without_a_prefix_are_left_alone() -> None:
    """No prefix, no execution; the prefix alone is the root; the training capture's prefix is taken off as well."""
    assert split_prefix("/v1/models") == (None, "/v1/models")
    assert split_prefix("/ng-rollouts/r1/x") == (None, "/ng-rollouts/r1/x")
    assert split_prefix("/ng-rollout/r1") == (EpisodeId("r1"), "/")
    captured = "/ng-rollout/r1-a2/training-token-capture/v1/responses"
    assert split_prefix(captured) == (EpisodeId("r1", 2), "/v1/responses")
    for path in ("/ng-rollout/", "/ng-rollout//run", "/ng-rollout/bad!id/v1/chat/completions"):
        with pytest.raises(ValueError, match="not a valid rollout id"):
            split_prefix(path)


@given(episodes)
def test_headers_carry_the_execution(episode: EpisodeId) -> None:
    """Both headers name it; without the attempt's it is attempt 0; without any there is none. Covers: I1"""
    both = {ROLLOUT_ID_HEADER: episode.rollout_id, ATTEMPT_HEADER: str(episode.attempt)}
    assert from_headers(both) == episode
    assert from_headers({ROLLOUT_ID_HEADER: episode.rollout_id}) == EpisodeId(episode.rollout_id)
    assert from_headers({}) is None


@pytest.mark.parametrize("attempt", ["-1", "+1", "01", "1.0", " 1", "1_0", "one", "\u0661", "9" * 5000])
def test_a_header_that_is_no_plain_number_is_refused(attempt: str) -> None:
    """An attempt is written in one way only; one without a rollout id is refused too."""
    with pytest.raises(ValueError):
        from_headers({ROLLOUT_ID_HEADER: "r", ATTEMPT_HEADER: attempt})
    with pytest.raises(ValueError, match="without"):
        from_headers({ATTEMPT_HEADER: "1"})


@given(episodes)
def test_bodies_carry_the_execution(episode: EpisodeId) -> None:
    """Native and older bodies name it; a body that names none, or is no object, has none. Covers: I1"""
    native = {"episode_id": {"rollout_id": episode.rollout_id, "attempt": episode.attempt}}
    older = {"_ng_rollout_id": episode.rollout_id, "_ng_attempt_index": episode.attempt}
    assert from_body(native) == from_body(older) == from_body(native | older) == episode
    nameless: list[Any] = [{}, {"task": 1}, [], None, "text", {"episode_id": None}]
    for body in nameless:
        assert from_body(body) is None


@pytest.mark.parametrize(
    "body",
    [
        {"episode_id": "r"},
        {"episode_id": {}},
        {"episode_id": {"attempt": 1}},
        {"episode_id": {"rollout_id": "r", "more": 1}},
        {"episode_id": {"rollout_id": 7}},
        {"episode_id": {"rollout_id": "r", "attempt": "1"}},
        {"episode_id": {"rollout_id": "r", "attempt": True}},
        {"episode_id": {"rollout_id": "r", "attempt": 1.0}},
        {"episode_id": {"rollout_id": "r", "attempt": -1}},
        {"episode_id": {"rollout_id": "r-a3"}},
        {"_ng_rollout_id": "a/b"},
        {"_ng_rollout_id": "r", "_ng_attempt_index": None},
    ],
)
def test_a_body_that_names_it_badly_is_refused(body: Any) -> None:
    """Wrong shapes, types and ids are errors, never somebody else's execution. Covers: I5"""
    with pytest.raises(ValueError):
        from_body(body)


@given(st.lists(st.one_of(st.none(), episodes), max_size=4))
def test_places_that_disagree_are_refused(places: list[EpisodeId | None]) -> None:
    """All places that name an execution name the same one, else the request is refused, never rewritten. Covers: I5"""
    named = {episode for episode in places if episode is not None}
    if len(named) > 1:
        with pytest.raises(IdentityMismatch, match="names both"):
            agreed(places)
    else:
        assert agreed(places) == next(iter(named), None)


@given(episodes, episodes)
def test_a_body_that_disagrees_with_itself_is_refused(one: EpisodeId, other: EpisodeId) -> None:
    """The native and the older fields of one body must agree. Covers: I5"""
    assume(one != other)
    native = {"rollout_id": one.rollout_id, "attempt": one.attempt}
    body = {"episode_id": native, "_ng_rollout_id": other.rollout_id, "_ng_attempt_index": other.attempt}
    with pytest.raises(IdentityMismatch):
        from_body(body)
