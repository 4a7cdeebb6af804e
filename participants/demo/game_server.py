"""The demo's resources server: the games."""

from __future__ import annotations

from ..gymnasium.server import Applied, gymnasium_resources
from ..net.http import ASGIApp
from .lines import Event
from .servers import Place, process_place


def game_app(place: Place) -> ASGIApp:
    """The resources server: any of the supported Gymnasium environments, as each seed says."""
    journal = place.journal("game")

    def applied(change: Applied) -> None:
        if change.action is not None:
            journal.about(
                Event.STEP,
                change.episode,
                turn=change.steps,
                revision=change.position.revision,
                action=change.action,
                reward=change.reward,
                digest=change.digest,
            )

    return gymnasium_resources("game", place.settings, on_applied=applied, seams=place.seams, transport=place.transport)


def game() -> ASGIApp:
    """The process's application."""
    return game_app(process_place())
