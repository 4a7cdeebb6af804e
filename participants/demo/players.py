"""What the policy and the judge say: pure functions of what they are asked.

The policy picks among the actions that the last message offers, by a digest of rollout and conversation: a single other
word in it, and the game goes elsewhere. So a continued rollout ends as the undisturbed one only if nothing was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from statecore.wire import digest

Message = dict[str, Any]

OFFER: Final = "You may: "
NAMES: Final = ", "


def offer(text: str, actions: Sequence[str]) -> str:
    """The text with the actions behind it, as the policy reads them."""
    return f"{text} {OFFER}{NAMES.join(actions)}"


def offered(messages: Sequence[Message]) -> list[str]:
    """The actions that the last message offers; ValueError when it offers none."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str) or OFFER not in content:
        raise ValueError("the last message offers no action")
    return content.rpartition(OFFER)[2].split(NAMES)


def turn_of(messages: Sequence[Message]) -> int:
    """Which turn of the conversation is being asked for, from 1."""
    return 1 + len([each for each in messages if each.get("role") == "assistant"])


def policy_says(seed: int, body: dict[str, Any]) -> str:
    """The action's name for a chat completion request whose `user` is the rollout."""
    messages: list[Message] = body["messages"]
    choices = offered(messages)
    return choices[_drawn(len(choices), "policy", seed, body["user"], messages)]


def judge_says(seed: int, body: dict[str, Any]) -> str:
    """A score from 0 to 10 for a conversation, as text."""
    return str(_drawn(11, "judge", seed, body["user"], body["messages"]))


def completion(model: str, said: str) -> dict[str, Any]:
    """A chat completion that says one thing."""
    message = {"role": "assistant", "content": said}
    return {
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


def said_in(reply: Any) -> str:
    """What a chat completion says; ValueError for anything else."""
    try:
        said = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"no chat completion: {reply!r}") from error
    if not isinstance(said, str):
        raise ValueError(f"no text in the chat completion: {reply!r}")
    return said


def _drawn(below: int, *of: Any) -> int:
    number = int(digest(list(of))[:15], 16)
    return number % below
