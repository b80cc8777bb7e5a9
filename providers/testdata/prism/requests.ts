// The requests of vendors, as the types of their own clients for TypeScript describe them. TestVendorsTypes turns them
// into JSON schemas.
/// <reference path="./stubs.d.ts" />
import type { Brevo } from "@getbrevo/brevo"
import type { SendEmailV3_1 } from "node-mailjet"
import type { Message } from "postmark"
import type { CreateBatchOptions, CreateEmailOptions } from "resend"
import type { BatchSendRequest } from "./node_modules/mailtrap/dist/types/mailtrap.js" // which its index leaves out

export type BrevoMail = Brevo.SendTransacEmailRequest
export type MailjetMails = SendEmailV3_1.Body
export type MailtrapMails = BatchSendRequest
export type PostmarkMails = Message[]
export type ResendMail = CreateEmailOptions
export type ResendMails = CreateBatchOptions

export interface Requests {
  brevo: BrevoMail
  mailjet: MailjetMails
  mailtrap: MailtrapMails
  postmark: PostmarkMails
  resend: ResendMail
  resends: ResendMails
}
