"""Reading updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from .schema import Update


class Updates:
    """
    Reads updates one after the other: ``for update in client.updates(wait="30s")``. It may be iterated again, also
    after an error: it goes on behind the last update that it has yielded.
    """

    def __init__(self, read: Callable[[dict[str, Any]], Any], query: dict[str, Any]) -> None:
        self._read, self._query = read, query
        self._page: list[Update] = []  # those that were read and not yielded
        self._next = ""  # the cursor behind _page; "" if no page was read
        self._more = False
        #: The place behind the last page whose updates were all yielded. Store it: a reader that begins with it yields
        #: the next update, and before it those of the present page again.
        self.cursor: str = query.get("cursor", "")
        #: No update before this time follows behind the present page; None if nothing was ever written.
        self.complete_until: datetime | None = None

    def __iter__(self) -> Iterator[Update]:
        while True:
            while self._page:
                yield self._page.pop(0)
            if self._next:
                self.cursor, self._next = self._next, ""
                if not self._more and ("wait" not in self._query or self._ended()):
                    return
            query = {**self._query, "cursor": self.cursor} if self.cursor else self._query
            page = self._read(query)
            self._page, self._next, self._more = page["updates"], page["next_cursor"], page["more"]
            if until := page.get("complete_until"):
                self.complete_until = datetime.fromisoformat(until)

    def _ended(self) -> bool:
        to = self._query.get("to")
        return bool(to and self.complete_until and self.complete_until >= datetime.fromisoformat(to))
