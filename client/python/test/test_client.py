"""Runs against a server with simulated providers: SAFEDELIVR_URL and KEY say which."""

import os
import queue
import threading
import unittest
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from standardwebhooks import WebhookVerificationError

from safedelivr import Event, Safedelivr, SafedelivrError, verify
from safedelivr.schema import MessageChange, NewBatch

URL, KEY = os.environ["SAFEDELIVR_URL"], os.environ["KEY"]


def batch_to(*addresses: str) -> NewBatch:
    return {
        "from": "shop@example.com",
        "subject": "Your code, {{name}}",
        "text": "Hello",
        "to": [{"email": a, "name": "Ann"} for a in addresses],
    }


class ClientTest(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Safedelivr(URL, KEY)
        self.addCleanup(self.client.close)

    def ended(self, batch: str, count: int) -> dict[str, str]:
        """Reads the updates of a batch until each of its logs has ended."""
        states: dict[str, str] = {}
        for update in self.client.updates(batch=batch, wait="30s"):
            if update["state"] != "queued":
                states[update["log"]] = update["state"]
                if len(states) == count:
                    break
        return states

    def test_what_became_of_a_batch_is_told(self) -> None:
        to = ["ann@example.com", "hardbounce+py@sim.test", "eve@example.com"]
        self.assertEqual(self.client.plan(batch_to(*to))["recipients"], 3)
        accepted = self.client.send(batch_to(*to))
        self.assertEqual(accepted["recipients"], 3)
        states = self.ended(accepted["id"], 3)
        self.assertEqual(sorted(states.values()), ["delivered", "delivered", "failed"])
        logs = list(self.client.logs(accepted["id"], limit=1))
        self.assertEqual([log["email"] for log in logs], to)
        [failed] = [log for log, state in states.items() if state == "failed"]
        self.assertEqual(self.client.log(failed)["reason"], "mailbox_invalid")
        self.assertEqual(self.client.batch(accepted["id"])["recipients"], 3)
        self.assertIn(accepted["id"], [b["id"] for b in self.client.batches(limit=1)])

    def test_a_request_whose_answer_is_lost_is_repeated_and_sends_once(self) -> None:
        ids: list[str] = []

        class Flaky(httpx.HTTPTransport):
            def handle_request(self, request: httpx.Request) -> httpx.Response:
                response = super().handle_request(request)
                response.read()
                ids.append(response.json()["id"])
                if len(ids) == 1:
                    raise httpx.ReadError("the connection was lost")
                return response

        with Safedelivr(URL, KEY, transport=Flaky()) as flaky:
            accepted = flaky.send(batch_to("once@example.com"))
        self.assertEqual(ids, [accepted["id"]] * 2)

    def test_a_repeat_by_the_same_key_is_the_same_batch(self) -> None:
        one, two = (self.client.send(batch_to("key@example.com"), idempotency_key="python-1") for _ in range(2))
        self.assertEqual(one["id"], two["id"])

    def test_a_server_that_is_not_ready_is_asked_again(self) -> None:
        tries = 0

        def away(_: httpx.Request) -> httpx.Response:
            nonlocal tries
            tries += 1
            return httpx.Response(503, json={"code": "unavailable"}, headers={"Retry-After": "0.01"})

        with Safedelivr(URL, KEY, transport=httpx.MockTransport(away), repeats=2) as client:
            with self.assertRaises(SafedelivrError) as raised:
                client.batch("x")
            self.assertEqual((raised.exception.status, raised.exception.code, tries), (503, "unavailable", 3))
            with self.assertRaises(SafedelivrError):
                client.request("POST", "/v1/batches", json={})  # it has no Idempotency-Key
            self.assertEqual(tries, 4)

    def test_mistakes_are_told_with_their_places(self) -> None:
        with self.assertRaises(SafedelivrError) as raised:
            self.client.send({"from": "shop", "subject": "s", "text": "t", "to": ["bob"]})
        e = raised.exception
        self.assertEqual((e.status, e.code), (422, "invalid_request"))
        self.assertEqual(sorted(f["pointer"] for f in e.errors), ["/from", "/to/0"])
        self.assertIn("/to/0", str(e))
        self.assertTrue(e.request_id)
        with Safedelivr(URL, "sd_wrong") as stranger, self.assertRaises(SafedelivrError) as raised:
            stranger.batch("x")
        self.assertEqual(raised.exception.status, 401)

    def test_messages_are_changed_by_ids_of_the_senders_own(self) -> None:
        record: MessageChange = {
            "id": "py/1",
            "to": "ann@example.com",
            "from": "shop@example.com",
            "subject": "s",
            "text": "t",
            "deliver_at": (datetime.now(UTC) + timedelta(days=1)).isoformat(),
        }
        self.assertEqual([r["status"] for r in self.client.put_messages([record])], ["accepted"])
        self.assertEqual([r["status"] for r in self.client.put_messages([record])], ["unchanged"])
        cancel: list[MessageChange] = [{"id": "py/1", "action": "cancel"}, {"id": "py/2", "action": "cancel"}]
        results = self.client.put_messages(cancel)
        self.assertEqual([r.get("code", r["status"]) for r in results], ["cancelled", "not_found"])
        self.assertEqual(self.client.message("py/1")["log"]["state"], "cancelled")

    def test_a_reader_of_updates_goes_on_where_it_was(self) -> None:
        batch = self.client.send(batch_to(*(f"r{n}@example.com" for n in range(5))))["id"]
        self.ended(batch, 5)
        every = [(u["log"], u["number"]) for u in self.client.updates(batch=batch)]
        parts: list[tuple[str, int]] = []
        cursor: dict[str, str] = {}
        while len(parts) < len(every):
            reader = self.client.updates(batch=batch, limit=2, **cursor)
            for n, u in enumerate(reader):
                if n == 2:  # the first one of the next page: it comes again
                    break
                parts.append((u["log"], u["number"]))
            cursor = {"cursor": reader.cursor}
        self.assertEqual(parts, every)

    def test_posts_are_verified(self) -> None:
        posts: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                posts.put((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        threading.Thread(target=server.serve_forever).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        body = {"url": f"http://127.0.0.1:{server.server_port}/hook", "batch": True}
        endpoint = self.client.request("POST", "/v1/endpoints", json=body, idempotency_key="py-endpoint")
        batch = self.client.send(batch_to("hook@example.com"))["id"]

        def tells(event: Event) -> bool:
            return event["type"] == "log.delivered" and event["data"]["batch"] == batch

        while True:
            headers, post = posts.get(timeout=60)
            if any(tells(event) for event in verify(endpoint["secret"], headers, post)):
                break
        with self.assertRaises(WebhookVerificationError):
            verify("whsec_" + "eHh4" * 8, headers, post)
        with self.assertRaises(WebhookVerificationError):
            verify(endpoint["secret"], headers, post + b" ")
        self.client.request("DELETE", f"/v1/endpoints/{endpoint['id']}")

    def test_nothing_goes_to_a_suppressed_address(self) -> None:
        self.client.suppress({"email": "stop-py@example.com", "reason": "manual"})
        self.assertEqual(self.client.send(batch_to("stop-py@example.com"))["suppressed"], 1)


if __name__ == "__main__":
    unittest.main()
