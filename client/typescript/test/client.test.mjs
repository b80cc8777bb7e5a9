// Runs against a server with simulated providers: SAFEDELIVR_URL and KEY say which.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import test from "node:test";
import { Safedelivr, SafedelivrError, verify } from "safedelivr";

const options = { url: process.env.SAFEDELIVR_URL, key: process.env.KEY };
const client = new Safedelivr(options);
const content = { from: "shop@example.com", subject: "Your code, {{name}}", text: "Hello" };

/** Reads the updates of a batch until each of its logs has ended. */
async function ended(batch, count) {
  const states = {};
  for await (const update of client.updates({ batch, wait: "30s" })) {
    if (update.state === "queued") continue;
    states[update.log] = update.state;
    if (Object.keys(states).length === count) return states;
  }
}

test("a batch is sent, and what became of it is told", async () => {
  const to = ["ann@example.com", "hardbounce+ts@sim.test", "eve@example.com"].map((email) => ({ email, name: "Ann" }));
  const batch = { ...content, to };
  assert.equal((await client.plan(batch)).recipients, 3);
  const accepted = await client.send(batch);
  assert.equal(accepted.recipients, 3);
  const states = await ended(accepted.id, 3);
  assert.deepEqual(Object.values(states).sort(), ["delivered", "delivered", "failed"]);

  const logs = [];
  for await (const log of client.logs(accepted.id, { limit: 1 })) logs.push(log.email);
  assert.deepEqual(logs, to.map((r) => r.email));
  const [failed] = Object.keys(states).filter((id) => states[id] === "failed");
  assert.equal((await client.log(failed)).reason, "mailbox_invalid");
  assert.equal((await client.batch(accepted.id)).recipients, 3);
  const ids = [];
  for await (const b of client.batches({ limit: 1 })) ids.push(b.id);
  assert.ok(ids.includes(accepted.id));
});

test("a request whose answer is lost is repeated, and sends once", async () => {
  const ids = [];
  const flaky = new Safedelivr({
    ...options,
    fetch: async (request) => {
      const response = await fetch(request);
      ids.push((await response.clone().json()).id);
      if (ids.length === 1) throw new TypeError("the connection was lost");
      return response;
    },
  });
  const accepted = await flaky.send({ ...content, to: [{ email: "once@example.com", name: "Once" }] });
  assert.deepEqual(ids, [accepted.id, accepted.id]);
});

test("a repeat by the same key is the same batch", async () => {
  const batch = { ...content, to: [{ email: "key@example.com", name: "Key" }] };
  const one = await client.send(batch, { idempotencyKey: "typescript-1" });
  assert.equal((await client.send(batch, { idempotencyKey: "typescript-1" })).id, one.id);
});

test("a server that is not ready is asked again, and an aborted request is not", async () => {
  let tries = 0;
  const away = async () => {
    tries++;
    return Response.json({ code: "unavailable", detail: "Come again." }, { status: 503, headers: { "Retry-After": "0.01" } });
  };
  await assert.rejects(new Safedelivr({ ...options, fetch: away, repeats: 2 }).batch("x"), { status: 503, code: "unavailable" });
  assert.equal(tries, 3);
  const stop = new AbortController();
  const slow = new Safedelivr({ ...options, fetch: async () => (stop.abort(new Error("stopped")), away()) });
  await assert.rejects(slow.batch("x", { signal: stop.signal }), /stopped/);
});

test("mistakes are told with their places", async () => {
  await assert.rejects(client.send({ ...content, from: "shop", to: ["bob"] }), (error) => {
    assert.ok(error instanceof SafedelivrError);
    assert.equal(error.status, 422);
    assert.equal(error.code, "invalid_request");
    assert.deepEqual(error.errors.map((e) => `${e.pointer} ${e.code}`).sort(), ["/from invalid_address", "/to/0 invalid_address"]);
    assert.match(error.message, /\/to\/0/);
    assert.ok(error.requestId);
    return true;
  });
  await assert.rejects(new Safedelivr({ ...options, key: "sd_wrong" }).batch("x"), { status: 401 });
});

test("messages are changed by ids of the sender's own", async () => {
  const record = { id: "ts/1", to: "ann@example.com", name: "Ann", ...content, deliver_at: new Date(Date.now() + 86_400_000).toISOString() };
  assert.deepEqual((await client.putMessages([record])).map((r) => r.status), ["accepted"]);
  assert.deepEqual((await client.putMessages([record])).map((r) => r.status), ["unchanged"]);
  const results = await client.putMessages([{ id: "ts/1", action: "cancel" }, { id: "ts/2", action: "cancel" }]);
  assert.deepEqual(results.map((r) => r.code ?? r.status), ["cancelled", "not_found"]);
  assert.equal((await client.message("ts/1")).log.state, "cancelled");
});

test("a reader of updates goes on where it was", async () => {
  const { id } = await client.send({ ...content, to: [1, 2, 3, 4, 5].map((n) => ({ email: `r${n}@example.com`, name: "R" })) });
  await ended(id, 5);
  const all = [];
  for await (const u of client.updates({ batch: id })) all.push(`${u.log} ${u.number}`);
  const parts = [];
  for (let cursor; parts.length < all.length; ) {
    const reader = client.updates({ batch: id, limit: 2, ...(cursor ? { cursor } : {}) });
    let page = 0;
    for await (const u of reader) {
      if (page++ === 2) break; // the first one of the next page: it comes again
      parts.push(`${u.log} ${u.number}`);
    }
    cursor = reader.cursor;
  }
  assert.deepEqual(parts, all);
});

test("posts are verified", async () => {
  const posts = [];
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request.setEncoding("utf8")) body += piece;
    posts.push({ headers: request.headers, body });
    server.emit("posted");
    response.writeHead(204).end();
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  try {
    const { data: endpoint, error } = await client.http.POST("/v1/endpoints", {
      body: { url: `http://127.0.0.1:${server.address().port}/hook`, batch: true },
      params: { header: { "Idempotency-Key": "ts-endpoint" } },
    });
    assert.equal(error, undefined);
    const { id } = await client.send({ ...content, to: [{ email: "hook@example.com", name: "Hook" }] });
    await ended(id, 1);
    const told = () => posts.flatMap((p) => verify(endpoint.secret, p.headers, p.body));
    while (!told().some((e) => e.type === "log.delivered" && e.data.batch === id)) await once(server, "posted");
    assert.throws(() => verify("whsec_" + btoa("x".repeat(32)), posts[0].headers, posts[0].body));
    assert.throws(() => verify(endpoint.secret, posts[0].headers, posts[0].body + " "));
    await client.http.DELETE("/v1/endpoints/{id}", { params: { path: { id: endpoint.id } } });
  } finally {
    server.close();
    server.closeAllConnections();
  }
});

test("nothing goes to a suppressed address", async () => {
  await client.suppress({ email: "stop-ts@example.com", reason: "manual" });
  const accepted = await client.send({ ...content, to: [{ email: "stop-ts@example.com", name: "Stop" }] });
  assert.equal(accepted.suppressed, 1);
});
