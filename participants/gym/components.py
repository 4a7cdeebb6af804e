"""What is known of the components that NeMo Gym ships: what a checkpoint can do with each.

A component that is not listed is restart_only unless whoever embeds it says more: nothing is guessed of code that
nobody looked at. Listed as stateless are verifiers and tools whose replies depend on the request alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from ..servers.codecs import json_codec
from ..servers.modes import Mode
from ..servers.resources import Verify
from .codecs import blackjack_sessions, workplace_sessions
from .held import Held, held_in


@frozen(kw_only=True)
class Known:
    """A component: `held` is where its sessions are, `why` says in words why it is of this mode."""

    mode: Mode
    held: Held | None = None
    verify: Verify = Verify.WAIT
    why: str = ""


UNKNOWN: Final = Known(mode=Mode.RESTART_ONLY, why="nobody has looked at what it keeps")

VERIFIERS: Final[Mapping[str, str]] = {
    "aalcr": "AalcrResourcesServer",
    "aegis_v4_safety": "AegisV4SafetyResourcesServer",
    "arena_judge": "ArenaJudgeServer",
    "asr_with_pc": "ASRWithPCResourcesServer",
    "assaybench": "AssayBenchResourcesServer",
    "circle_count": "CircleCountResourcesServer",
    "deepsearchqa": "DeepSearchQAServer",
    "equivalence_llm_judge": "LLMJudgeResourcesServer",
    "equivalence_rule": "EquivalenceRuleResourcesServer",
    "ether0": "Ether0ResourcesServer",
    "false_statement_judge": "FalseStatementJudgeServer",
    "frontierscience_judge": "FrontierScienceJudgeServer",
    "fukuyamabench": "FukuyamaBenchResourcesServer",
    "gdp_pdf": "GdpPdfResourcesServer",
    "generative_reward_model": "GenerativeRewardModelResourcesServer",
    "graphwalks": "GraphWalksResourcesServer",
    "hotpotqa_qa": "HotpotQAQAResourcesServer",
    "imo_gradingbench": "ImoGradingBenchResourcesServer",
    "imo_proofbench_judge": "ImoProofBenchJudgeServer",
    "labbench2_vlm": "LabbenchVLMResourcesServer",
    "lc_niah": "LCNIAHResourcesServer",
    "math_proof_judgement": "MathProofJudgementResourcesServer",
    "moldetox": "MolDeToxResourcesServer",
    "mrcr": "MRCRResourcesServer",
    "ruler": "RulerResourcesServer",
    "ruler2": "Ruler2ResourcesServer",
    "simpleqa": "SimpleQAServer",
    "spartqa": "SpartqaResourcesServer",
    "widesearch": "WideSearchServer",
    "xlam_fc": "XlamFcResourcesServer",
}
"""Folders below `resources_servers` whose server only verifies, and its class: one route, no session, nothing assigned
after it was made. A test on the real ones holds this against their source.
"""

RESOURCES: Final[Mapping[str, Known]] = {
    "resources_servers.example_session_state_mgmt.app:StatefulCounterResourcesServer": Known(
        mode=Mode.EXPORT_RESTORE,
        held=held_in("session_id_to_counter", json_codec()),
        why="a session is one number",
    ),
    "resources_servers.blackjack.app:BlackjackEnv": Known(
        mode=Mode.EXPORT_RESTORE, held=blackjack_sessions(), why="a session is two hands and the generator that deals"
    ),
    "resources_servers.workplace_assistant.app:WorkbenchResourcesServer": Known(
        mode=Mode.EXPORT_RESTORE, held=workplace_sessions(), why="a session is the data frames of its tools"
    ),
    "resources_servers.example_single_tool_call.app:SimpleWeatherResourcesServer": Known(
        mode=Mode.STATELESS,
        why="its tool and its verifier depend on the request alone; what it notes of a session is whom it belongs to",
    ),
}
AGENTS: Final[Mapping[str, Known]] = {
    "responses_api_agents.simple_agent.app:SimpleAgent": Known(
        mode=Mode.EXPORT_RESTORE, why="all that its loop learns comes in answers to its calls, one after the other"
    ),
    "responses_api_agents.gymnasium_agent.app:GymnasiumAgent": Known(
        mode=Mode.EXPORT_RESTORE, why="all that its loop learns comes in answers to its calls, one after the other"
    ),
}


ENVIRONMENTS: Final[Mapping[str, Known]] = {
    "environment_servers.single_agent_turn.app:SingleAgentTurnEnvironmentServer": Known(
        mode=Mode.EXPORT_RESTORE, why="its episode is a sequence of calls, one after the other"
    ),
    "environment_servers.legacy_agent.app:LegacyAgentEnvironmentServer": Known(
        mode=Mode.STATELESS, why="a relay: the agent behind it owns the episode, and its answers are passed on"
    ),
}


def known_of(cls: type[Any]) -> Known:
    """What is known of a server class; a subclass of a known one is not known."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    module, _, attribute = name.partition(".app:")
    if attribute and VERIFIERS.get(module.removeprefix("resources_servers.")) == attribute:
        return Known(mode=Mode.STATELESS, why="a verifier: its verdict depends on the request alone")
    return RESOURCES.get(name) or AGENTS.get(name) or ENVIRONMENTS.get(name) or UNKNOWN
