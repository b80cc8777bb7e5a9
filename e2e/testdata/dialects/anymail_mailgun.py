# Sends mail with django-anymail and with Mailgun's own client for Python, and reads events with the latter. The subject of
# each mail names its case. It prints a line for each case.
import os

from django.conf import settings

url, key, domain = os.environ["URL"], os.environ["KEY"], os.environ["DOMAIN"]
settings.configure(
    EMAIL_BACKEND="anymail.backends.mailgun.EmailBackend",
    ANYMAIL={"MAILGUN_API_URL": url + "/v3", "MAILGUN_API_KEY": key, "MAILGUN_SENDER_DOMAIN": domain},
)
import django

django.setup()
from anymail.exceptions import AnymailRequestsAPIError
from django.core.mail import EmailMultiAlternatives
from mailgun.client import Client

sender = f"Größe & Co <shop@{domain}>"


def show(name, message):
    message.send()
    status = message.anymail_status
    print(name, sorted(status.status), all(r.message_id == status.message_id for r in status.recipients.values()))


m = EmailMultiAlternatives("django", "Hällo {{you}}", sender, ["Ann <django@demo.test>"], cc=["cc2@demo.test"], reply_to=["help@demo.test"])
m.attach_alternative("<p>Grüße</p>", "text/html")
m.attach("Größe.pdf", b"%PDF", "application/pdf")
m.tags, m.metadata = ["größe 2"], {"order": 7}
show("django", m)
m = EmailMultiAlternatives("merge", "Hi %recipient.name%", sender, ["merge1@demo.test", "merge2@demo.test"])
m.merge_data = {"merge1@demo.test": {"name": "<Ann>"}, "merge2@demo.test": {"name": "Bo"}}
m.merge_metadata = {"merge1@demo.test": {"order": "A"}, "merge2@demo.test": {"order": "B"}}
m.merge_headers = {"merge1@demo.test": {"X-Own": "one"}, "merge2@demo.test": {"X-Own": "two"}}
show("merge", m)
try:
    EmailMultiAlternatives("wrong", "t", sender, ["a@-.test"]).send()
except AnymailRequestsAPIError as e:
    print("wrong", e.status_code)

client = Client(auth=("api", key), api_url=url + "/")
answer = client.messages.create(data={"from": sender, "to": ["official@demo.test"], "subject": "official", "text": "t"}, domain=domain)
print("official", answer.status_code, answer.json()["message"])
print("events", client.events.get(domain=domain, filters={"limit": 1, "ascending": "yes"}).status_code)
