"""What a command line or a written test names: an object in a file or in a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from .errors import DefinitionError, StatecoreError
from .mistakes import name as name_of
from .mistakes import place as place_of

__all__ = ["UsageError", "load_module"]


class UsageError(StatecoreError):
    """The command line names something that is not there; exit code 2."""


def load_module(target: str) -> tuple[ModuleType, str | None]:
    """(module, name) of `path/to/file.py:NAME`, `path/to/file.py`, `package.module:NAME` or `package.module`.

    The current directory can be imported from, as it can with `python -m`. Raises UsageError.
    """
    place, _, name = target.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place), name or None
        except ModuleNotFoundError as error:
            raise UsageError(f"cannot import {place}: {error}") from None
        except (Exception, SystemExit) as error:
            raise UsageError(f"cannot import {place}: {_why(error)}") from error
    path = Path(place)
    spec = importlib.util.spec_from_file_location(f"statecore_file_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"there is no file {place}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # attrs looks a class's module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{place} cannot be loaded: {_why(error)}") from error
    return module, name or None


def _why(error: BaseException) -> str:
    """What is wrong with a file, and where if the error does not say so itself."""
    says_where = isinstance(error, (DefinitionError, SyntaxError, ImportError))
    return "\n".join([name_of(error), *([] if says_where else place_of(error))])
