import { Webhook } from "standardwebhooks";
import type { components } from "./schema.js";

type Schemas = components["schemas"];
/** What is told of one update or, at endpoints of the installation, notice; or a test. */
export type Event = Schemas["UpdatePost"] | Schemas["NoticePost"] | Schemas["TestPost"];

/**
 * Returns the events of a post to your endpoint, or throws an error unless it was made with the secret of the endpoint
 * within the last five minutes. `body` is the body as it came, before it is parsed.
 */
export function verify(secret: string, headers: Record<string, string | undefined> | Headers, body: string): Event[] {
  const plain: Record<string, string> = {};
  const entries = headers instanceof Headers ? headers.entries() : Object.entries(headers);
  for (const [name, value] of entries) if (value !== undefined) plain[name.toLowerCase()] = value;
  const post = new Webhook(secret).verify(body, plain) as Event | Schemas["BatchPost"];
  return post.type === "batch" ? post.data : [post];
}
