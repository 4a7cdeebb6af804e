"""What the conformance suite found wrong with our own servers, each with a test of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from participants.files.files import InvalidCheckpointState, resolve_below
from statecore.seams import SystemDisk


@pytest.mark.parametrize("name", ["n" * 300, "n/" * 3000, "no\ud800where"], ids=["long", "deep", "surrogate"])
def test_a_path_that_the_disk_does_not_take_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    """A commit or restore with such a directory is refused as what it is, and was an error of the server before."""
    for directory in (name, f"{tmp_path}/{name}"):
        with pytest.raises(InvalidCheckpointState, match="below the checkpoint root"):
            resolve_below(SystemDisk(), tmp_path, directory)
