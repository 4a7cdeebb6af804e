"""The vectorised exploration: whole frontiers at a time, over actions tabulated by what they read. Needs numpy."""

from .search import explore

__all__ = ["explore"]
