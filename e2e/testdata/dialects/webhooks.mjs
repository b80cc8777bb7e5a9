// Reads posts.json with the libraries that services publish for their webhooks. It prints a line for each post.
import { readFileSync } from "node:fs";
import { Resend } from "resend";
import { Webhook } from "svix";
import { EventWebhook } from "@sendgrid/eventwebhook";

const keys = JSON.parse(process.env.KEYS);
for (const { shape, header, body } of JSON.parse(readFileSync("posts.json"))) {
  if (shape === "resend") {
    const headers = { id: header["Svix-Id"], timestamp: header["Svix-Timestamp"], signature: header["Svix-Signature"] };
    const verify = payload => new Resend("re_x").webhooks.verify({ payload, headers, webhookSecret: keys.resend });
    console.log("resend", verify(body).type);
    new Webhook(keys.resend).verify(body, Object.fromEntries(Object.entries(header).map(([n, v]) => [n.toLowerCase(), v])));
    try { verify(body.replace("{", "{ ")); console.log("forged"); } catch { /* as it should be */ }
  } else if (shape === "sendgrid") {
    const hook = new EventWebhook(), key = hook.convertPublicKeyToECDSA(keys.sendgrid);
    const verify = payload => hook.verifySignature(key, payload, header["X-Twilio-Email-Event-Webhook-Signature"],
      header["X-Twilio-Email-Event-Webhook-Timestamp"]);
    if (verify(body + " ")) console.log("forged");
    if (verify(body)) console.log("sendgrid", JSON.parse(body)[0].event);
  }
}
