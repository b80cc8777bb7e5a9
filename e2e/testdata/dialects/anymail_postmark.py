# Sends mail with django-anymail by the API of Postmark. The subject of each mail names its case.
import os

from django.conf import settings

url, key, domain = os.environ["URL"], os.environ["KEY"], os.environ["DOMAIN"]
settings.configure(EMAIL_BACKEND="anymail.backends.postmark.EmailBackend",
                   ANYMAIL={"POSTMARK_API_URL": url + "/", "POSTMARK_SERVER_TOKEN": key})
import django

django.setup()
import requests
from anymail.exceptions import AnymailRecipientsRefused, AnymailRequestsAPIError
from django.core.mail import EmailMultiAlternatives

sender = f"Größe & Co <shop@{domain}>"
m = EmailMultiAlternatives("django", "Hällo {{you}}", sender, ["Ann <django@demo.test>", "bob@demo.test"], cc=["cc2@demo.test"])
m.attach("Größe.pdf", b"%PDF", "application/pdf")
m.tags, m.metadata = ["welcome"], {"order": 7}
m.send()
print("django", {a: r.status for a, r in m.anymail_status.recipients.items()})
m = EmailMultiAlternatives("merge", "Hi", sender, ["merge1@demo.test", "merge2@demo.test"])
m.merge_data, m.merge_metadata = {}, {"merge1@demo.test": {"order": "A"}}
m.send()
print("merge", sorted(m.anymail_status.status), len(m.anymail_status.message_id))
requests.post(url + "/v1/suppressions", json={"email": "gone@demo.test"}, headers={"Authorization": "Bearer " + key}).raise_for_status()
m = EmailMultiAlternatives("partly", "Hi", sender, ["partly@demo.test", "Gone <GONE@demo.test>"])
m.send()
print("partly", {a: r.status for a, r in m.anymail_status.recipients.items()})
try:
    EmailMultiAlternatives("wrong", "t", sender, ["a@-.test"]).send()
except (AnymailRecipientsRefused, AnymailRequestsAPIError) as e:
    print("wrong", type(e).__name__)
