"""Random operations on the running code: a whole job with its deaths and crashes, and one server of each kind.

The rules and what they are held against are in `job_rules` and `kind_rules`; `profiles` says how long is looked.
`planted` has faults in the code that they must find.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from participants.servers.environment import Environment as EnvironmentServer
from stateful_tests.job_rules import JobRules
from stateful_tests.kind_rules import KINDS, Environment, KindRules
from stateful_tests.profiles import SEED, search


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Coordinators that are killed and overtaken say so; nobody reads it here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_job_to_which_anything_may_happen() -> None:
    """Whatever happens to a job, promises hold after every step, and in the end each result is there, once and right.

    Covers: I11, I13, I16, I17, I20, I21, I24, I35, I36, I41, I42, I43, I44, I54, I57, I58, I61, I65, I66, I67, I68
    Covers: I84, I96, I97, I98, S3, S33, S34, S35, S37, S44, S59, S62, S65, S66
    """
    JobRules.came = {}
    search(JobRules, examples=10, share=0.6)
    wanted = {"published", "continued", "gone on", "machines down", "killed", "second coordinators"}
    assert SEED or wanted <= set(JobRules.came), "the runs are empty"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_server_under_any_control_calls(kind: type[KindRules]) -> None:
    """Whatever is called, and however often, the phases, the gate, the ids and the files are as section 5 says.

    Covers: I13, I14, I15, I16, I17, I18, I19, I20, I21, I24, I40, I43, I48, I53, I74, S26, S29, S59
    """
    kind.came = {}
    search(kind, examples=12, share=0.1)
    wanted = {"prepare: prepared", "commit: committed", "resume: idle", "results"}
    assert SEED or wanted <= set(kind.came), "the runs are empty"


# --- the checks can fail


@pytest.mark.parametrize(("turns", "planted"), [(3, False), (1, False), (1, True)])
def test_a_restore_into_a_used_server_is_a_fault_while_it_has_episodes(
    turns: int, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule asks for a refusal while there is an episode, and finds a server that does not refuse. Covers: I53"""
    monkeypatch.setattr(Environment, "came", {})
    if planted:
        monkeypatch.setattr(EnvironmentServer, "check_fresh", lambda *_: None)
    state: Any = Environment()
    state.open(allowed=[1], after_s=1.1)
    state.checkpoint()
    state.promises_are_kept()
    state.end_or_renew(verb="resume", which="open", within_s=10.0)
    state.promises_are_kept()  # it has seen that the checkpoint is over
    state.allow(number=0, turns=turns)
    state.wait(seconds=8.0)
    with pytest.raises(AssertionError, match="I53") if planted else nullcontext():
        state.restore(which="new", source="over")
    state.teardown()
    assert planted or state.came["results"]
