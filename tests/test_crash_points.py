"""A checkpoint and a restore, broken off at points of every kind; `make crash-points` goes through all of them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import crash_points
from tests.crash_points import NEW, OF_FILES, OF_MESSAGES, OLD, Point, What, came_of, count, older_life, points

EVERY = 80


def test_s34_the_old_checkpoint_or_the_new_one_and_the_job_ends_right() -> None:
    """S34: whatever fails, is lost or dies at a file operation or at a message of a restore, a checkpoint and what
    follows, the next life finds one of the two whole, and every rollout has its one right result.

    Covers: I40, I41, I42, I51, I57, I61, I65, I68
    """
    in_force = Counter[str]()
    for point in points(EVERY):
        came = came_of(point)
        assert came.found == () and came.place, came
        in_force[came.in_force] += 1
    assert in_force[OLD] and in_force[NEW] and in_force.total() >= 14, in_force


def test_every_point_is_gone_through() -> None:
    """Every file operation with each thing that can happen to it, every message with each; and no number more."""
    every = list(points())
    assert len(every) == len(set(every)) == len(OF_FILES) * count()[True] + len(OF_MESSAGES) * count()[False]
    assert count()[True] > 100 and count()[False] > 50
    assert came_of(Point(What.EIO, count()[True] + 1)).place == ""


def test_a_disk_that_forgets_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no sync has an effect, a machine that is gone after a publication has lost it: so the check can fail."""
    monkeypatch.setattr(older_life(), "forgets", lambda operation, path: True)
    came = came_of(Point(What.POWER, count()[False]))
    assert "it was published, and the old one is in force" in came.found, came


def test_one_point_can_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong one is named with its place; a point that is none is a wrong command line."""
    assert crash_points.main(["--jobs", "1", "--point", "TORN", "60"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("file operation 60: the machine is gone, some of") and first.endswith(": right")
    assert last.endswith("all right")
    for wrong in (["--point", "NOTHING", "1"], ["--point", "EIO", "one"], ["--every", "0"]):
        with pytest.raises(SystemExit):
            crash_points.main(wrong)
