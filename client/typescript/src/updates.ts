import type { Client } from "openapi-fetch";
import { dataOf } from "./requests.js";
import type { components, operations, paths } from "./schema.js";

type Update = components["schemas"]["Update"];

export type UpdatePage = operations["listUpdates"]["responses"][200]["content"]["application/json"];

/**
 * Which updates are read. `cursor` is where to begin; the default is the oldest one that is kept. With `wait`, like
 * `30s`, each request waits for an update, and the reader does not end.
 */
export type UpdateOptions = NonNullable<operations["listUpdates"]["parameters"]["query"]> & { signal?: AbortSignal };

/**
 * Reads updates one after the other: `for await (const update of client.updates({ wait: "30s" }))`. It may be iterated
 * again, also after an error: it goes on behind the last update that it has yielded.
 */
export class Updates implements AsyncIterable<Update> {
  /**
   * The place behind the last page whose updates were all yielded. Store it: a reader that begins with it yields the
   * next update, and before it those of the present page again.
   */
  cursor: string;
  /** No update before this time follows behind the present page; undefined if nothing was ever written. */
  completeUntil: string | undefined;

  readonly #http: Client<paths>;
  readonly #options: UpdateOptions;
  #page: Update[] = []; // those that were read and not yielded
  #next = ""; // the cursor behind #page; "" if no page was read
  #more = false;

  constructor(http: Client<paths>, options: UpdateOptions) {
    this.#http = http;
    this.#options = options;
    this.cursor = options.cursor ?? "";
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Update> {
    for (;;) {
      for (let update; (update = this.#page.shift()); ) yield update;
      if (this.#next) {
        this.cursor = this.#next;
        this.#next = "";
        const { to, wait } = this.#options;
        const ended = to && this.completeUntil && Date.parse(this.completeUntil) >= Date.parse(to);
        if (!this.#more && (!wait || ended)) return;
      }
      await this.#read();
    }
  }

  async #read(): Promise<void> {
    const { signal, ...query } = this.#options;
    const page = dataOf(
      await this.#http.GET("/v1/updates", {
        params: { query: { limit: 1000, ...query, ...(this.cursor ? { cursor: this.cursor } : {}) } },
        querySerializer: { array: { style: "form", explode: false } },
        headers: { Accept: "application/json" },
        ...(signal ? { signal } : {}),
      }),
    ) as UpdatePage; // of JSON
    [this.#page, this.#next, this.#more] = [page.updates, page.next_cursor, page.more];
    this.completeUntil = page.complete_until;
  }
}
