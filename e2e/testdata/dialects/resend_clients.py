# Sends mail with the SDK of Resend and with django-anymail, which uses its API. The subject of each mail names its case.
import os

import resend
from django.conf import settings

url, key, domain = os.environ["URL"], os.environ["KEY"], os.environ["DOMAIN"]
resend.api_url, resend.api_key = url, key
sender = f"Größe & Co <shop@{domain}>"

mail = {"from": sender, "to": ["python@demo.test"], "subject": "python", "html": "<p>Grüße</p>",
        "attachments": [{"filename": "a.pdf", "content": list(b"%PDF")}]}
one = resend.Emails.send(mail, {"idempotency_key": "k1"})
print("same", resend.Emails.send(mail, {"idempotency_key": "k1"})["id"] == one["id"])
print("read", resend.Emails.get(one["id"])["subject"])
print("batch", len(resend.Batch.send([{**mail, "subject": "batch", "attachments": []}] * 2)["data"]))
try:
    resend.Emails.send({**mail, "to": ["unknown"], "subject": "wrong"})
except resend.exceptions.ValidationError as e:
    print("wrong", e.code)

settings.configure(EMAIL_BACKEND="anymail.backends.resend.EmailBackend",
                   ANYMAIL={"RESEND_API_URL": url + "/", "RESEND_API_KEY": key})
import django

django.setup()
from django.core.mail import EmailMultiAlternatives

m = EmailMultiAlternatives("anymail", "Hällo {{you}}", sender, ["Ann <anymail@demo.test>"], cc=["cc2@demo.test"], reply_to=["help@demo.test"])
m.attach("Größe.pdf", b"%PDF", "application/pdf")
m.tags, m.metadata = ["welcome"], {"order": 7}
m.send()
print("anymail", sorted(m.anymail_status.status), bool(m.anymail_status.message_id))
