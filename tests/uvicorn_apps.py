"""Applications for a uvicorn process: the counting kinds, configured from the environment."""

from __future__ import annotations

from participants.net.http import ASGIApp
from participants.servers.policy_model import PolicyModel
from participants.settings import Seams, Settings
from tests.small_job import answer, counter_resources, counting_agent, counting_environment


def tools() -> ASGIApp:
    return counter_resources(Settings.from_env(), Seams())


def agent() -> ASGIApp:
    return counting_agent(Settings.from_env(), Seams())


def env() -> ASGIApp:
    return counting_environment(Settings.from_env(), Seams())


def policy() -> ASGIApp:
    return PolicyModel("policy_model", Settings.from_env(), answer).app()
