"""The package's front door: what users name is there, typed and loaded when it is first used."""

from __future__ import annotations

import subprocess
import sys

import participants


def test_every_name_of_the_front_door_is_there() -> None:
    """`from participants import X` works for each name, and an unknown one is an AttributeError."""
    for name in participants.__all__:
        assert getattr(participants, name).__name__ == name
    assert dir(participants) == sorted(participants._WHERE) == sorted(participants.__all__)
    assert not hasattr(participants, "Nothing")


def test_a_server_does_not_load_the_coordinator() -> None:
    """Importing a kind of server loads neither the coordinator nor trio's server."""
    code = "import participants, sys; participants.Resources; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert [name for name in loaded.split() if "coordinator" in name or "hypercorn" in name] == []
