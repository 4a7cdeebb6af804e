"""Ids that have ended, for ever and in bounded memory (protocol.md section 5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from participants.machines.fencing import FOREIGN_IDS_KEPT, Ended, own_id, parse_own

numbers = st.integers(0, 10**9)
own_ids = st.builds(own_id, st.sampled_from(["ck", "rs"]), numbers, numbers)
foreign_ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


@given(st.sampled_from(["ck", "rs"]), numbers, numbers)
def test_own_ids_are_read_back(kind: str, epoch: int, sequence: int) -> None:
    """What `own_id` writes is read back, and sorts as it counts up to the padding."""
    assert parse_own(own_id(kind, epoch, sequence)) == (kind, epoch, sequence)
    if epoch < 999_999 and sequence < 999_998:
        assert own_id(kind, epoch, sequence) < own_id(kind, epoch, sequence + 1) < own_id(kind, epoch + 1, 0)


def test_other_texts_are_foreign() -> None:
    """Too short numbers, other kinds, other digits and trailing characters are not ours."""
    arabic = "ck-" + "\u0660" * 6 + "-000002"
    for text in ("ck-1-2", "xx-000001-000002", "ck-000001-000002x", "ck-000001-000002\n", arabic, ""):
        assert parse_own(text) is None


@given(st.lists(st.one_of(own_ids, foreign_ids), max_size=30))
def test_what_has_ended_stays_ended(ids: list[str]) -> None:
    """The set only grows: each id is in it from then on, and adding it again changes nothing. Covers: I14"""
    ended = Ended()
    for number, checkpoint_id in enumerate(ids):
        ended = ended.with_id(checkpoint_id)
        assert all(earlier in ended for earlier in ids[: number + 1])
        assert ended.with_id(checkpoint_id) is ended


@given(st.lists(own_ids, max_size=50))
def test_own_ids_cost_one_mark_per_kind(ids: list[str]) -> None:
    """However many of our own ids end, two marks are all that is kept; older ones are stale, newer ones are not."""
    ended = Ended()
    for checkpoint_id in ids:
        ended = ended.with_id(checkpoint_id)
    assert ended.foreign == ()
    for kind, mark in (("ck", ended.checkpoints), ("rs", ended.restores)):
        seen = [found[1:] for found in map(parse_own, ids) if found and found[0] == kind]
        assert mark == (max(seen) if seen else None)
        if mark is not None:
            assert own_id(kind, *mark) in ended
            assert own_id(kind, mark[0], mark[1] + 1) not in ended and own_id(kind, mark[0] + 1, 0) not in ended


def test_s16_the_last_4096_foreign_ids_are_kept() -> None:
    """However many foreign checkpoints end, the newest 4,096 are fenced and no more is kept. Covers: I75, S16"""
    ended = Ended(foreign=tuple(f"old-{number}" for number in range(FOREIGN_IDS_KEPT)))
    for number in range(100):
        ended = ended.with_id(f"new-{number}")
    assert len(ended.foreign) == FOREIGN_IDS_KEPT == 4096
    assert "old-99" not in ended and "old-100" in ended and "new-0" in ended and "new-99" in ended
