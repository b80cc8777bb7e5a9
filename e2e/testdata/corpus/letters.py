# Reads the corpus as messages of Python's standard library.
import base64
import json
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime


def read():
    return [(letter, message(letter)) for letter in json.load(open("corpus.json"))]


def message(letter):
    m = EmailMessage()
    m["From"] = Address(letter["name"], addr_spec=letter["from"])
    m["To"], m["Subject"] = ", ".join(letter["to"]), letter["subject"]
    for field, value in [("Cc", ", ".join(letter["cc"] or [])), ("Reply-To", letter["reply_to"]),
                         ("Message-ID", letter["message_id"])]:
        if value:
            m[field] = value
    if letter["at"]:
        m["X-Mailgun-Deliver-By"] = format_datetime(datetime.fromisoformat(letter["at"].replace("Z", "+00:00")))
    for field, value in (letter["headers"] or {}).items():
        m[field] = value
    if letter["text"]:
        m.set_content(letter["text"])
    if letter["html"]:
        add = m.add_alternative if letter["text"] else m.set_content
        add(letter["html"], subtype="html")
    for file in letter["files"] or []:
        main, sub = file["type"].split("/")
        add, more = m.add_attachment, {"params": file["params"] or {}}
        if file["content_id"]:
            add, more = m.add_related, {"cid": "<" + file["content_id"] + ">", "disposition": "inline"}
        add(base64.b64decode(file["content"]), maintype=main, subtype=sub, filename=file["name"], **more)
    return m


if __name__ == "__main__":
    for i, (_, message) in enumerate(read()):
        with open(f"{i}.eml", "wb") as file:
            file.write(message.as_bytes())
