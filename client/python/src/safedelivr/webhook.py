"""Verifying posts to an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from standardwebhooks import Webhook

from .schema import NoticePost, TestPost, UpdatePost

#: What is told of one update or, at endpoints of the installation, notice; or a test.
Event: TypeAlias = UpdatePost | NoticePost | TestPost


def verify(secret: str, headers: Mapping[str, str], body: bytes) -> list[Event]:
    """
    Returns the events of a post to your endpoint, or raises ``standardwebhooks.WebhookVerificationError`` unless it was
    made with the secret of the endpoint within the last five minutes. ``body`` is the body as it came.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    post: Any = Webhook(secret).verify(body, lower)
    events: list[Event] = post["data"] if post["type"] == "batch" else [post]
    return events
