"""The tests that components of Gym ship for themselves pass on the embedded classes as on the originals."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .fleet import SITE

COMPONENTS = [
    "resources_servers/example_session_state_mgmt",
    "resources_servers/blackjack",
    "resources_servers/workplace_assistant",
    "resources_servers/example_single_tool_call",
    "responses_api_agents/simple_agent",
    "responses_api_agents/gymnasium_agent",
    "environment_servers/single_agent_turn",
]


def outcomes(folder: Path, *, embedded: bool) -> dict[str, str]:
    """What came of each test of these components, by component and name."""
    folder.mkdir()
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", *(str(SITE / each / "tests") for each in COMPONENTS), "-q"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(folder), "-c", "/dev/null", "--import-mode=importlib"]
    command += ["-o", "asyncio_mode=auto", f"--junit-xml={report}"]
    if embedded:
        command += ["-p", "gym_tests.all_embedded"]
    subprocess.run(command, capture_output=True, check=False, timeout=400)
    cases = re.findall(r'<testcase classname="([^"]*)" name="([^"]*)"[^>]*?(/>|>\s*<(\w+))', report.read_text())
    return {f"{where}.{name}": what or "passed" for where, name, _, what in cases}


def test_components_pass_their_own_tests_when_they_are_embedded(tmp_path: Path) -> None:
    """Each test of a component has the same outcome on the embedded class; nearly all of them pass."""
    plain = outcomes(tmp_path / "plain", embedded=False)
    embedded = outcomes(tmp_path / "embedded", embedded=True)
    assert plain == embedded
    assert len(plain) > 100
    assert list(plain.values()).count("passed") > 0.9 * len(plain)
