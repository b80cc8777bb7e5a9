import type { components } from "./schema.js";

type Problem = components["schemas"]["Problem"];

/** An answer that is not a success: a problem as RFC 9457 describes it. */
export class SafedelivrError extends Error {
  override readonly name = "SafedelivrError";
  /** HTTP status. */
  readonly status: number;
  /** What is wrong, in one stable word; "" if the answer is not from Safedelivr. All are in docs/errors.md. */
  readonly code: string;
  /** The mistakes in the request, each with a JSON pointer. */
  readonly errors: NonNullable<Problem["errors"]>;
  /** Names the request in the server's log. */
  readonly requestId: string;
  /** Seconds to wait before a repeat; 0 if the server does not say. */
  readonly retryAfter: number;

  constructor(status: number, problem: Partial<Problem>, requestId: string, retryAfter: number) {
    const fields = problem.errors ?? [];
    super([`${status} ${problem.code ?? ""}: ${problem.detail ?? "no description"}`,
      ...fields.map((f) => `${f.pointer}: ${f.detail}`)].join("; "));
    this.status = status;
    this.code = problem.code ?? "";
    this.errors = fields;
    this.requestId = problem.request_id ?? requestId;
    this.retryAfter = retryAfter;
  }
}

function errorFrom(response: Response, body: unknown): SafedelivrError {
  const problem = typeof body === "object" && body !== null ? (body as Partial<Problem>) : { detail: String(body) };
  return new SafedelivrError(response.status, problem, response.headers.get("X-Request-Id") ?? "", secondsOf(response));
}

/** Returns what a request has answered, or throws the problem. */
export function dataOf<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.error !== undefined || !answer.response.ok) throw errorFrom(answer.response, answer.error);
  return answer.data as T;
}

export interface Repeats {
  /** How often a request is repeated at most. Default: 4. */
  repeats?: number;
  /** What makes requests. Default: the global `fetch`. */
  fetch?: (request: Request) => Promise<Response>;
}

/**
 * Returns a fetch that repeats a request that got no answer, or one that says to come again: 5xx, or that the same
 * request is still running. It waits as long as the server says, else half a second, and twice as long each time. A
 * POST without an Idempotency-Key is not repeated.
 */
export function repeating({ repeats = 4, fetch = globalThis.fetch }: Repeats): (request: Request) => Promise<Response> {
  return async (request) => {
    const may = request.method !== "POST" || request.headers.has("Idempotency-Key");
    for (let n = 0; ; n++) {
      const last = !may || n >= repeats;
      let wait = 500 * 2 ** n;
      try {
        const response = await fetch(last ? request : request.clone());
        if (last || !(response.status >= 500 || (await isRunning(response)))) return response;
        wait = secondsOf(response) * 1000 || wait;
      } catch (error) {
        if (last || request.signal.aborted) throw error;
      }
      await pause(wait, request.signal);
    }
  };
}

async function isRunning(response: Response): Promise<boolean> {
  if (response.status !== 409) return false;
  const problem = (await response.clone().json().catch(() => ({}))) as Partial<Problem>;
  return problem.code === "request_running";
}

function secondsOf(response: Response): number {
  const seconds = Number(response.headers.get("Retry-After"));
  return seconds > 0 ? seconds : 0;
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
  });
}
