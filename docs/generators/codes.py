"""The page of refusal codes: which there are and where they come from is read from the code, what they mean is told.

A code that the code no longer has, or has and nobody explained, is an error here (and in tests/test_docs.py).
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from participants.net.http import STATUS
from statecore.table import Refuse, leaves

from .machines import tables

PARTICIPANTS: Final = Path(__file__).resolve().parents[2] / "participants"
MEANINGS: Final = Path(__file__).with_name("codes.toml")
RAISERS: Final = frozenset({"refuse_request", "Refused"})
DEFAULT_STATUS: Final = 409


def page() -> str:
    """The page; ValueError when codes and meanings are not the same set."""
    told: dict[str, dict[str, str]] = tomllib.loads(MEANINGS.read_text(encoding="utf-8"))
    answers, inside = told["answers"], told["inside"]
    raised, celled = in_code(), in_tables()
    known = set(raised) | set(celled)
    if known != set(answers) | set(inside):
        wrong = sorted(known ^ (set(answers) | set(inside)))
        raise ValueError(f"docs/generators/codes.toml and the code do not agree on {', '.join(wrong)}")
    parts = [
        "# Codes",
        'An error of ours is `{"error": {"code": ..., "detail": ...}}`. The status belongs to the code. A body that\n'
        'does not fit its schema is 422 `{"detail": [{"type", "loc", "msg"}]}` and has no code. 404 and 405 are\n'
        '`{"detail": ...}`. Who sends a call again and who does not is in [protocol.md](protocol.md), section 5.',
        "## Answers",
        "\n".join(["| code | HTTP | meaning | raised in | in the tables |", "| --- | --- | --- | --- | --- |"]
                  + [_row(code, answers[code], raised, celled) for code in sorted(answers)]),
        "## Inside",
        "Refusals of tables whose events are no requests: they tell a shell that it is late or wrong, and no caller\n"
        "gets them unless there is a bug.",
        "\n".join(["| code | meaning | in the tables |", "| --- | --- | --- |"]
                  + [f"| `{code}` | {inside[code]} | {_places(celled.get(code, set()))} |" for code in sorted(inside)]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _row(code: str, meaning: str, raised: dict[str, dict[str, int | None]], celled: dict[str, set[str]]) -> str:
    files = raised.get(code, {})
    fixed = {status for status in files.values() if status is not None}
    status = fixed.pop() if len(fixed) == 1 else STATUS.get(code, DEFAULT_STATUS)
    where = ", ".join(f"`{name}`" for name in sorted(files))
    return f"| `{code}` | {status} | {meaning} | {where} | {_places(celled.get(code, set()))} |"


def _places(names: set[str]) -> str:
    return ", ".join(f"[{name.replace('_', ' ')}](machines/{name}.md)" for name in sorted(names))


def in_tables() -> dict[str, set[str]]:
    """Each code of a cell, with the machines that have it."""
    found: dict[str, set[str]] = defaultdict(set)
    for _module, table in tables():
        for row in table.cells.values():
            for cell in row.values():
                for leaf in leaves(cell):
                    if isinstance(leaf, Refuse):
                        found[leaf.code].add(table.name)
    return dict(found)


def in_code() -> dict[str, dict[str, int | None]]:
    """Each code that a shell raises or answers, with the files that do and the status where it stands beside it."""
    found: dict[str, dict[str, int | None]] = defaultdict(dict)
    for path in sorted(PARTICIPANTS.rglob("*.py")):
        for code, status in _codes(ast.parse(path.read_text(encoding="utf-8"))):
            found[code][path.name] = status if status is not None else found[code].get(path.name)
    return dict(found)


def _codes(tree: ast.AST) -> Iterator[tuple[str, int | None]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in RAISERS and node.args and (code := _text(node.args[0])):
            yield code, None
        elif name == "Answer" and len(node.args) >= 2 and (code := _error_code(node.args[1])):
            status = node.args[0]
            yield code, status.value if isinstance(status, ast.Constant) and type(status.value) is int else None


def _error_code(node: ast.expr) -> str | None:
    """The code of a literal ``{"error": {"code": "..."}}``."""
    inner = _value(node, "error")
    code = None if inner is None else _value(inner, "code")
    return None if code is None else _text(code)


def _value(node: ast.expr, key: str) -> ast.expr | None:
    if not isinstance(node, ast.Dict):
        return None
    pairs = zip(node.keys, node.values, strict=True)
    return next((value for each, value in pairs if each is not None and _text(each) == key), None)


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

