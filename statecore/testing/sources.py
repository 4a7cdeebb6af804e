"""What no run of a table can find: a key written twice in a dict display.

Python silently keeps the last, so of two cells for one event one is never seen.
"""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

from ..errors import DefinitionError

__all__ = ["assert_no_repeated_keys", "repeated_keys"]


def repeated_keys(source: str) -> list[tuple[int, str]]:
    """(line, key) of each key that repeats an earlier one of the same dict display, in the order of the source."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            seen = set()
            for key in node.keys:
                text = ast.unparse(key) if key is not None else None
                if text in seen and key is not None:
                    found.append((key.lineno, str(text)))
                elif text is not None:
                    seen.add(text)
    return sorted(found)


def assert_no_repeated_keys(module: ModuleType) -> None:
    """Nothing, if no dict display in the module's source writes a key twice; else DefinitionError naming the lines."""
    found = repeated_keys(inspect.getsource(module))
    if found:
        places = ", ".join(f"{key} again in line {line}" for line, key in found)
        raise DefinitionError(f"{module.__name__}: {places}; Python keeps only the last, so remove one")
