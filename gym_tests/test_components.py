"""What is said of Gym's components holds for their source: those that are called stateless keep nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from participants.gym.components import AGENTS, ENVIRONMENTS, RESOURCES, VERIFIERS

from .fleet import SITE

MADE_ONCE = frozenset({"__init__", "model_post_init"})
ROUTES = frozenset({"seed_session", "close_resources_session", "setup_webserver", "mcp_tools"})
CHANGING = frozenset({"append", "pop", "setdefault", "update", "add", "clear", "extend", "remove", "discard"})


def kept(cls: ast.ClassDef) -> Iterator[str]:
    """Every sign that a server class keeps something between two calls, or has more routes than `/verify`."""
    for statement in cls.body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) != "config":
            yield f"a field: {ast.unparse(statement)}"
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) or statement.name in MADE_ONCE:
            continue
        if statement.name in ROUTES:
            yield f"a route: {statement.name}"
        for node in ast.walk(statement):
            if isinstance(node, ast.Global | ast.Nonlocal):
                yield f"{statement.name}: {ast.unparse(node)}"
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            yield from (f"{statement.name} assigns {ast.unparse(each)}" for each in targets if _is_own(each))
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in CHANGING and _is_own(called.value):
                yield f"{statement.name} calls {ast.unparse(called)}"


def _is_own(node: ast.expr) -> bool:
    return ast.unparse(node).startswith("self.")


@pytest.mark.parametrize(("folder", "name"), VERIFIERS.items())
def test_a_verifier_keeps_nothing(folder: str, name: str) -> None:
    """Its class has one route, and nothing of it changes after it was made; it does not look at a session."""
    source = (SITE / "resources_servers" / folder / "app.py").read_text()
    assert "SESSION_ID_KEY" not in source and "request.session" not in source
    [cls] = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == name]
    assert [ast.unparse(base) for base in cls.bases] == ["SimpleResourcesServer"]
    assert list(kept(cls)) == []


def test_a_server_with_sessions_shows_it() -> None:
    """The signs are there in a server that is known to keep something."""
    source = (SITE / "resources_servers" / "example_session_state_mgmt" / "app.py").read_text()
    [cls] = [each for each in ast.parse(source).body if getattr(each, "name", "") == "StatefulCounterResourcesServer"]
    assert isinstance(cls, ast.ClassDef)
    assert len(list(kept(cls))) >= 3


@pytest.mark.parametrize("name", [*RESOURCES, *AGENTS, *ENVIRONMENTS])
def test_a_component_that_is_listed_is_there(name: str) -> None:
    """Its module has a class of that name."""
    module, _, cls = name.partition(":")
    source = (SITE / (module.replace(".", "/") + ".py")).read_text()
    assert cls in {each.name for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}
