/**
 * Client of the API of Safedelivr.
 *
 * Requests that may be repeated are repeated when no answer arrives, or when the server says that it cannot answer now.
 * A request that sends mail has an Idempotency-Key, so that a repeat never sends it twice.
 */
import createClient, { type Client } from "openapi-fetch";
import { dataOf, repeating, type Repeats } from "./requests.js";
import type { components, operations, paths } from "./schema.js";
import { Updates, type UpdateOptions } from "./updates.js";

export { SafedelivrError } from "./requests.js";
export type { components, operations, paths } from "./schema.js";
export { Updates, type UpdateOptions, type UpdatePage } from "./updates.js";
export { verify, type Event } from "./webhook.js";

type Schemas = components["schemas"];
type Query<O extends keyof operations> = Omit<
  NonNullable<operations[O]["parameters"]["query"]>,
  "cursor"
>;

export type NewBatch = Schemas["NewBatch"];
export type Recipient = Schemas["Recipient"];
export type Accepted = Schemas["Accepted"];
export type DryRun = Schemas["DryRun"];
export type Batch = Schemas["Batch"];
export type Log = Schemas["Log"];
export type ListedLog = operations["listLogs"]["responses"][200]["content"]["application/json"]["logs"][number];
export type MessageChange = Schemas["MessageChange"];
export type ChangeResult = Schemas["ChangeResult"];
export type Message = Schemas["Message"];
export type NewSuppression = Schemas["NewSuppression"];
export type Suppression = Schemas["Suppression"];
export type Update = Schemas["Update"];

export interface Options extends Repeats {
  /** Address of the server, like `https://mail.example.com`. */
  url: string;
  /** API key. */
  key: string;
}

/** Options of a request. */
export interface Call {
  signal?: AbortSignal;
}

/** Options of a request that sends mail. */
export interface SendCall extends Call {
  /**
   * Names the request, like `order-1017`. The same key with the same content sends once within a day, whoever repeats
   * it. Without it, only the repeats of this call are known to be the same.
   */
  idempotencyKey?: string;
  /** `permissive` leaves out recipients that have mistakes. The default refuses the batch. */
  mode?: "strict" | "permissive";
}

export class Safedelivr {
  /** Makes any request of the API, typed by its description: `http.GET("/v1/providers")`. It does not throw errors of the API. */
  readonly http: Client<paths>;

  constructor(options: Options) {
    this.http = createClient<paths>({
      baseUrl: options.url.replace(/\/+$/, ""),
      headers: { Authorization: `Bearer ${options.key}` },
      fetch: repeating(options),
    });
  }

  /** Sends a batch. When it returns, the batch is stored and will be sent. */
  async send(batch: NewBatch, call: SendCall = {}): Promise<Accepted> {
    const answer = await this.http.POST("/v1/batches", {
      body: batch,
      params: {
        query: call.mode ? { mode: call.mode } : {},
        header: { "Idempotency-Key": call.idempotencyKey ?? crypto.randomUUID() },
      },
      ...signalOf(call),
    });
    return dataOf(answer) as Accepted; // of a batch
  }

  /** Says what would happen to a batch. Nothing is stored or sent. */
  async plan(batch: NewBatch, call: Omit<SendCall, "idempotencyKey"> = {}): Promise<DryRun> {
    const answer = await this.http.POST("/v1/batches", {
      body: batch,
      params: { query: { dry_run: true, ...(call.mode ? { mode: call.mode } : {}) } },
      ...signalOf(call),
    });
    return dataOf(answer) as DryRun;
  }

  /** Returns a batch with its counts. */
  async batch(id: string, call: Call = {}): Promise<Batch> {
    return dataOf(await this.http.GET("/v1/batches/{id}", { params: { path: { id } }, ...signalOf(call) }));
  }

  /** Lists batches, newest first. */
  async *batches(query: Query<"listBatches"> = {}, call: Call = {}): AsyncGenerator<Batch> {
    yield* items(async (cursor) => {
      const page = dataOf(
        await this.http.GET("/v1/batches", { params: { query: { ...query, ...cursor } }, ...signalOf(call) }),
      );
      return [page.batches, page.next_cursor];
    });
  }

  /** Lists the logs of a batch, one for each recipient. */
  async *logs(batch: string, query: Query<"listLogs"> = {}, call: Call = {}): AsyncGenerator<ListedLog> {
    yield* items(async (cursor) => {
      const page = dataOf(
        await this.http.GET("/v1/batches/{id}/logs", {
          params: { path: { id: batch }, query: { ...query, ...cursor } },
          ...signalOf(call),
        }),
      );
      return [page.logs, page.next_cursor];
    });
  }

  /** Returns a log with all that happened to the mail. */
  async log(id: string, call: Call = {}): Promise<Log> {
    return dataOf(await this.http.GET("/v1/logs/{id}", { params: { path: { id } }, ...signalOf(call) }));
  }

  /**
   * Creates, updates and cancels messages by ids of your own. There is a result for each record, in order. The same
   * records again change nothing, so this may be repeated after any error.
   */
  async putMessages(
    records: MessageChange[],
    call: Call & { mode?: "strict" | "permissive" } = {},
  ): Promise<ChangeResult[]> {
    const answer = await this.http.PUT("/v1/messages", {
      body: records,
      params: { query: call.mode ? { mode: call.mode } : {} },
      ...signalOf(call),
    });
    return dataOf(answer).results;
  }

  /** Returns a message by your own id, with its log and its versions. */
  async message(id: string, call: Call = {}): Promise<Message> {
    return dataOf(await this.http.GET("/v1/messages/{id}", { params: { path: { id } }, ...signalOf(call) }));
  }

  /** Returns a reader of updates. It makes no request. */
  updates(options: UpdateOptions = {}): Updates {
    return new Updates(this.http, options);
  }

  /** Puts an address on your suppression list: no mail of yours goes to it any more. */
  async suppress(suppression: NewSuppression, call: Call = {}): Promise<Suppression> {
    return dataOf(
      await this.http.POST("/v1/suppressions", {
        body: suppression,
        params: { header: { "Idempotency-Key": crypto.randomUUID() } },
        ...signalOf(call),
      }),
    );
  }
}

/** Yields the items of all pages. */
async function* items<T>(read: (cursor: { cursor?: string }) => Promise<[T[], string]>): AsyncGenerator<T> {
  for (let cursor = ""; ; ) {
    const [page, next] = await read(cursor ? { cursor } : {});
    yield* page;
    if (!next) return;
    cursor = next;
  }
}

function signalOf(call: Call): { signal?: AbortSignal } {
  return call.signal ? { signal: call.signal } : {};
}
