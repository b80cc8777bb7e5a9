# Sends the corpus with the library that CLIENT names, then a thousand mails in as few calls as it allows, each with a
# value of its own. It prints a line for each mail, and one for a wrong key.
import base64
import json
import os
import smtplib
import ssl
from datetime import datetime
from email.policy import SMTP
from email.utils import format_datetime

import letters

url, name = os.environ["URL"], os.environ["CLIENT"]
people = [(f"many{i}@demo.test", f"P<{i}>") for i in range(1000)]


def kind(file):
    return "; ".join([file["type"], *(f"{k}={v}" for k, v in (file["params"] or {}).items())])


def when(letter):
    return datetime.fromisoformat(letter["at"].replace("Z", "+00:00"))


def headers(letter):
    return (letter["headers"] or {}) | ({"Message-ID": letter["message_id"]} if letter["message_id"] else {})


class Resend:
    def __init__(self, key):
        import resend

        self.resend = resend
        resend.api_url, resend.api_key = url, key

    def send(self, l, _):
        mail = {"from": f"{l['name']} <{l['from']}>", "to": l["to"], "cc": l["cc"] or [], "bcc": l["bcc"] or [],
                "subject": l["subject"], "text": l["text"], "html": l["html"], "headers": headers(l), "attachments": [
                    {"filename": f["name"], "content": list(base64.b64decode(f["content"])), "content_type": kind(f),
                     **({"content_id": f["content_id"]} if f["content_id"] else {})} for f in l["files"] or []]}
        if l["reply_to"]:
            mail["reply_to"] = l["reply_to"]
        if l["at"]:
            mail["scheduled_at"] = l["at"]
        return self.resend.Emails.get(self.resend.Emails.send(mail)["id"])["subject"]

    def many(self):
        for n in range(0, 1000, 100):
            self.resend.Batch.send([{"from": "shop@demo.test", "to": [to], "subject": "many", "text": "Hi " + value}
                                    for to, value in people[n:n + 100]])


class SendGrid:
    def __init__(self, key):
        import sendgrid

        self.client = sendgrid.SendGridAPIClient(key, host=url)

    def send(self, l, _):
        from sendgrid.helpers.mail import (Attachment, Bcc, Cc, ContentId, Disposition, FileContent, FileName, FileType,
                                           From, Header, Mail, ReplyTo, SendAt, To)

        mail = Mail(From(l["from"], l["name"]), [To(a) for a in l["to"]], l["subject"], l["text"] or None,
                    l["html"] or None)
        for address in l["cc"] or []:
            mail.add_cc(Cc(address))
        for address in l["bcc"] or []:
            mail.add_bcc(Bcc(address))
        if l["reply_to"]:
            mail.reply_to = ReplyTo(l["reply_to"])
        for field, value in headers(l).items():
            mail.add_header(Header(field, value))
        if l["at"]:
            mail.send_at = SendAt(int(when(l).timestamp()))
        for f in l["files"] or []:
            a = Attachment(FileContent(f["content"]), FileName(f["name"]), FileType(kind(f)), Disposition("attachment"))
            if f["content_id"]:
                a.disposition, a.content_id = Disposition("inline"), ContentId(f["content_id"])
            mail.add_attachment(a)
        return self.client.send(mail).headers["X-Message-Id"]

    def many(self):
        from sendgrid.helpers.mail import Mail, Personalization, Substitution, To

        mail = Mail("shop@demo.test", subject="many", plain_text_content="Hi -value-")
        for to, value in people:
            p = Personalization()
            p.add_to(To(to))
            p.add_substitution(Substitution("-value-", value))
            mail.add_personalization(p)
        self.client.send(mail)


class Mailgun:
    def __init__(self, key):
        from mailgun.client import Client

        self.client = Client(auth=("api", key), api_url=url + "/")

    def create(self, data, files=None):
        answer = self.client.messages.create(data=data, files=files, domain="demo.test")
        answer.raise_for_status()
        return answer.json()["id"]

    def send(self, l, _):
        data = {"from": f"{l['name']} <{l['from']}>", "to": l["to"], "cc": l["cc"], "bcc": l["bcc"],
                "subject": l["subject"], "text": l["text"], "html": l["html"], "h:Reply-To": l["reply_to"]}
        data |= {"h:" + field: value for field, value in headers(l).items()}
        if l["at"]:
            data["o:deliverytime"] = format_datetime(when(l))
        files = [("inline" if f["content_id"] else "attachment",
                  (f["content_id"] or f["name"], base64.b64decode(f["content"]), kind(f))) for f in l["files"] or []]
        return self.create({field: value for field, value in data.items() if value}, files or None)

    def many(self):
        self.create({"from": "shop@demo.test", "to": [to for to, _ in people], "subject": "many",
                     "text": "Hi %recipient.value%",
                     "recipient-variables": json.dumps({to: {"value": value} for to, value in people})})


class Smtplib:
    def __init__(self, key):
        secure = ssl.create_default_context(cafile=os.environ["CA"])
        self.ways = [smtplib.SMTP(os.environ["HOST"], int(os.environ["PORT"])),
                     smtplib.SMTP_SSL(os.environ["HOST"], int(os.environ["SSL_PORT"]), context=secure)]
        self.ways[0].starttls(context=secure)
        self.n = 0
        for way in self.ways:
            way.login("apikey", key)

    def send(self, l, message):
        self.n += 1
        way = self.ways[self.n % 2]
        # send_message would change a line that begins with From.
        way.sendmail(l["from"], l["to"] + (l["cc"] or []) + (l["bcc"] or []), message.as_bytes(policy=SMTP))
        return ""

    def many(self):
        for to, value in people:
            mail = f"From: shop@demo.test\r\nTo: {to}\r\nSubject: many\r\n\r\nHi {value}"
            self.ways[1].sendmail("shop@demo.test", to, mail)


clients = {"resend": Resend, "sendgrid": SendGrid, "mailgun": Mailgun, "smtplib": Smtplib}
client, corpus = clients[name](os.environ["KEY"]), letters.read()
for letter, message in corpus:
    print("sent", client.send(letter, message))
client.many()
try:
    clients[name]("wrong").send(*corpus[0])
except Exception as e:
    code = getattr(e, "smtp_code", None) or getattr(e, "code", None) or getattr(e, "status_code", None)
    print("refused", code or e.response.status_code)
