# Sends the corpus with Django and a backend, by the settings in recipe.py. With a backend that has merging it sends a
# mail to a thousand recipients with values of their own.
import base64
import json
import os
from datetime import datetime
from email.mime.base import MIMEBase
from email.encoders import encode_base64
from email.utils import format_datetime

from django.conf import settings

key, name = os.environ["KEY"], os.environ["BACKEND"]
backend = "django.core.mail.backends.smtp" if name == "smtp" else "anymail.backends." + name


def configured(KEY):
    found = {"KEY": KEY}
    exec(open("recipe.py").read(), found)
    return {k: v for k, v in found.items() if k.startswith(("EMAIL_", "ANYMAIL"))}


settings.configure(EMAIL_BACKEND=backend + ".EmailBackend", **configured(key))
import django

django.setup()
from django.core.mail import EmailMultiAlternatives, get_connection


def attachment(file):
    main, sub = file["type"].split("/")
    params = file["params"] or {}
    if main == "text":
        params["charset"] = "utf-8"  # without it, anymail drops the other parameters
    part = MIMEBase(main, sub, **params)
    part.set_payload(base64.b64decode(file["content"]))
    encode_base64(part)
    part.add_header("Content-Disposition", "inline" if file["content_id"] else "attachment", filename=file["name"])
    if file["content_id"]:
        part["Content-ID"] = f"<{file['content_id']}>"
    return part


def message(letter, connection):
    at = letter["at"] and datetime.fromisoformat(letter["at"].replace("Z", "+00:00"))
    headers = letter["headers"] or {}
    if letter["message_id"]:
        headers["Message-ID"] = letter["message_id"]
    if at and name == "smtp":
        headers["X-Mailgun-Deliver-By"] = format_datetime(at)
    m = EmailMultiAlternatives(letter["subject"], letter["text"], f"{letter['name']} <{letter['from']}>", letter["to"],
                               letter["bcc"], connection, headers=headers, cc=letter["cc"],
                               reply_to=[letter["reply_to"]] if letter["reply_to"] else None)
    if letter["html"] and letter["text"]:
        m.attach_alternative(letter["html"], "text/html")
    elif letter["html"]:
        m.body, m.content_subtype = letter["html"], "html"
    for file in letter["files"] or []:
        m.attach(attachment(file))
    if at and name != "smtp":
        m.send_at = at
    return m


with get_connection() as connection:
    for letter in json.load(open("corpus.json")):
        m = message(letter, connection)
        assert m.send() == 1
        print("sent", *(sorted(m.anymail_status.status) if name != "smtp" else []))
    if name in ["mailgun", "sendgrid"]:
        field = {"mailgun": "%recipient.name%", "sendgrid": "-name-"}[name]
        to = [f"many{i}@demo.test" for i in range(1000)]
        m = EmailMultiAlternatives("many", "Hi " + field, "shop@demo.test", to, connection=connection)
        m.merge_data = {address: {"name": f"P<{i}>"} for i, address in enumerate(to)}
        if name == "sendgrid":
            m.esp_extra = {"merge_field_format": "-{}-"}
        m.send()
        print("many", len(m.anymail_status.recipients))
for k, v in configured("wrong").items():
    setattr(settings, k, v)
try:
    message(letter, get_connection()).send()
except Exception as e:
    print("refused", getattr(e, "smtp_code", None) or e.status_code)
