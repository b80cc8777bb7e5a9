"""The client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self, cast
from urllib.parse import quote

import httpx

from .requests import request
from .schema import (
    Accepted,
    Batch,
    ChangeResult,
    DryRun,
    Log,
    LogFields,
    Message,
    MessageChange,
    NewBatch,
    NewSuppression,
    Suppression,
)
from .updates import Updates

Mode = Literal["strict", "permissive"]


class Safedelivr:
    """
    Requests that may be repeated are repeated when no answer arrives, or when the server says that it cannot answer
    now. A request that sends mail has an Idempotency-Key, so that a repeat never sends it twice.

    It is safe for several threads, and closes its connections at the end of a ``with`` block or by ``close``.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        repeats: int = 4,
        timeout: float = 60,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._repeats = repeats
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}", "Accept": "application/json"},
            timeout=timeout,
            transport=transport,
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        query: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Makes any request of the API, like ``request("GET", "/v1/providers")``, and returns its answer."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else None
        return request(self._http, method, path, json=json, query=query, headers=headers, repeats=self._repeats)

    def send(self, batch: NewBatch, *, idempotency_key: str | None = None, mode: Mode | None = None) -> Accepted:
        """
        Sends a batch. When it returns, the batch is stored and will be sent.

        The same ``idempotency_key``, like ``order-1017``, with the same content sends once within a day, whoever
        repeats it. Without it, only the repeats of this call are known to be the same. With ``permissive`` recipients
        that have mistakes are left out.
        """
        key = idempotency_key or str(uuid.uuid4())
        answer = self.request("POST", "/v1/batches", json=batch, query=_given(mode=mode), idempotency_key=key)
        return cast(Accepted, answer)

    def plan(self, batch: NewBatch, *, mode: Mode | None = None) -> DryRun:
        """Says what would happen to a batch. Nothing is stored or sent."""
        query = _given(dry_run="true", mode=mode)
        return cast(DryRun, self.request("POST", "/v1/batches", json=batch, query=query))

    def batch(self, id: str) -> Batch:
        """Returns a batch with its counts."""
        return cast(Batch, self.request("GET", _path("batches", id)))

    def batches(self, **query: str | int) -> Iterator[Batch]:
        """Lists batches, newest first. The parameters are those of the API."""
        return cast(Iterator[Batch], self._items(_path("batches"), "batches", query))

    def logs(self, batch: str, **query: str | int) -> Iterator[LogFields]:
        """Lists the logs of a batch, one for each recipient. The parameters are those of the API."""
        return cast(Iterator[LogFields], self._items(_path("batches", batch, "logs"), "logs", query))

    def log(self, id: str) -> Log:
        """Returns a log with all that happened to the mail."""
        return cast(Log, self.request("GET", _path("logs", id)))

    def put_messages(self, records: Sequence[MessageChange], *, mode: Mode | None = None) -> list[ChangeResult]:
        """
        Creates, updates and cancels messages by ids of your own. There is a result for each record, in order. The same
        records again change nothing, so this may be repeated after any error.
        """
        answer = self.request("PUT", "/v1/messages", json=list(records), query=_given(mode=mode))
        return cast(list[ChangeResult], answer["results"])

    def message(self, id: str) -> Message:
        """Returns a message by your own id, with its log and its versions."""
        return cast(Message, self.request("GET", _path("messages", id)))

    def updates(self, **query: Any) -> Updates:
        """
        Returns a reader of updates. It makes no request. The parameters are those of the API: ``cursor`` is where to
        begin, and with ``wait``, like ``30s``, each request waits for an update, and the reader does not end.
        """
        return Updates(lambda q: self.request("GET", "/v1/updates", query=q), {"limit": 1000, **query})

    def suppress(self, suppression: NewSuppression) -> Suppression:
        """Puts an address on your suppression list: no mail of yours goes to it any more."""
        answer = self.request("POST", "/v1/suppressions", json=suppression, idempotency_key=str(uuid.uuid4()))
        return cast(Suppression, answer)

    def _items(self, path: str, name: str, query: Mapping[str, Any]) -> Iterator[Any]:
        """Yields the items of all pages."""
        query = dict(query)
        while True:
            page = self.request("GET", path, query=query)
            yield from page[name]
            if not page["next_cursor"]:
                return
            query["cursor"] = page["next_cursor"]


def _path(*parts: str) -> str:
    return "/".join(["/v1", *(quote(p, safe="") for p in parts)])


def _given(**query: str | None) -> dict[str, str]:
    return {name: value for name, value in query.items() if value is not None}
