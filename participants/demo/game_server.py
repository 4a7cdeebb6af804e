"""The demo's resources server: the games."""

from __future__ import annotations

from ..gymnasium.play import Play
from ..gymnasium.server import Applied, gymnasium_resources
from ..net.http import ASGIApp
from ..servers.resources import Resources
from .lines import Event
from .servers import Place, app, process_place


def game_app(place: Place, kind: type[Resources[Play]] = Resources) -> ASGIApp:
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

    return gymnasium_resources(
        "game", place.settings, on_applied=applied, seams=place.seams, transport=place.transport, kind=kind
    )


def game() -> ASGIApp:
    """The process's application."""
    return app("game", process_place())
