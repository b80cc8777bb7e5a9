"""Requests, repeats and errors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx


class SafedelivrError(Exception):
    """An answer that is not a success: a problem as RFC 9457 describes it."""

    def __init__(self, response: httpx.Response) -> None:
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "code" not in problem:
            problem = {"detail": response.text[:1000]}
        #: HTTP status.
        self.status = response.status_code
        #: What is wrong, in one stable word; "" if the answer is not from Safedelivr. All are in docs/errors.md.
        self.code: str = problem.get("code", "")
        #: What is wrong, for people. It may change.
        self.detail: str = problem.get("detail", "")
        #: The mistakes in the request, each with a JSON pointer.
        self.errors: list[dict[str, str]] = problem.get("errors", [])
        #: Names the request in the server's log.
        self.request_id: str = problem.get("request_id", response.headers.get("X-Request-Id", ""))
        #: Seconds to wait before a repeat; 0 if the server does not say.
        self.retry_after = seconds_of(response)
        fields = [f"{e['pointer']}: {e['detail']}" for e in self.errors]
        super().__init__("; ".join([f"{self.status} {self.code}: {self.detail}", *fields]))


def seconds_of(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", 0)))
    except ValueError:
        return 0.0


def request(
    http: httpx.Client,
    method: str,
    path: str,
    *,
    json: Any = None,
    query: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    repeats: int,
) -> Any:
    """
    Makes a request and returns its answer. It repeats a request that got no answer, or one that says to come again:
    5xx, or that the same request is still running. It waits as long as the server says, else half a second, and twice
    as long each time. A POST without an Idempotency-Key is not repeated.
    """
    headers = dict(headers or {})
    may = method != "POST" or "Idempotency-Key" in headers
    for n in range(repeats + 1):
        last = not may or n == repeats
        wait = 0.5 * 2**n
        try:
            response = http.request(method, path, json=json, params=query, headers=headers)
        except httpx.TransportError:
            if last:
                raise
        else:
            if response.is_success:
                return response.json() if response.content else None
            error = SafedelivrError(response)
            if last or not (error.status >= 500 or error.code == "request_running"):
                raise error
            wait = error.retry_after or wait
        time.sleep(wait)
    raise AssertionError("the last request returns or raises")
