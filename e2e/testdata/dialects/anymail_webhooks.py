# Sends mail with django-anymail by four APIs, and reads the posts in their shapes with its webhook views.
# It prints a line for each mail. With the argument read it reads posts.json, and prints a line for each event.
import json
import os
import sys
import warnings

from django.conf import settings

warnings.simplefilter("ignore")
url, key, domain = os.environ.get("URL", ""), os.environ.get("KEY", ""), os.environ.get("DOMAIN", "")
keys = json.loads(os.environ.get("KEYS", "{}"))
settings.configure(ALLOWED_HOSTS=["*"], ANYMAIL={
    "MAILGUN_API_URL": url + "/v3", "MAILGUN_API_KEY": key, "MAILGUN_SENDER_DOMAIN": domain,
    "MAILGUN_WEBHOOK_SIGNING_KEY": keys.get("mailgun", "x"),
    "SENDGRID_API_URL": url + "/v3/", "SENDGRID_API_KEY": key, "SENDGRID_TRACKING_WEBHOOK_VERIFICATION_KEY": keys.get("sendgrid"),
    "POSTMARK_API_URL": url + "/", "POSTMARK_SERVER_TOKEN": key,
    "RESEND_API_URL": url + "/", "RESEND_API_KEY": key, "RESEND_SIGNING_SECRET": keys.get("resend"),
    "WEBHOOK_SECRET": "anymail:secret",
})
import django

django.setup()
from anymail.exceptions import AnymailWebhookValidationFailure
from anymail.signals import tracking
from anymail.webhooks import mailgun, postmark, resend, sendgrid
from django.core.mail import EmailMultiAlternatives, get_connection
from django.test import RequestFactory

outcomes = ["click", "hardbounce", "mailboxfull", "defer-then-deliver", "complain", "unsubscribe"]
if "read" not in sys.argv:
    for name in ["mailgun", "sendgrid", "postmark", "resend"]:
        with get_connection(f"anymail.backends.{name}.EmailBackend") as backend:
            for outcome in outcomes:
                m = EmailMultiAlternatives(outcome, "text", f"Größe & Co <shop@{domain}>",
                                           [f"Ann <{outcome}+{name}@sim.test>"], connection=backend)
                m.attach_alternative("<a href='https://example.com'>a</a>", "text/html")
                m.tags, m.metadata, m.track_clicks, m.track_opens = ["größe 2"], {"order": "7"}, True, True
                if name == "resend":  # it has no such settings for a mail
                    del m.track_clicks, m.track_opens
                m.send()
                print("sent", name, outcome, m.anymail_status.message_id)
    sys.exit()

views = {
    "mailgun": mailgun.MailgunTrackingWebhookView, "sendgrid": sendgrid.SendGridTrackingWebhookView,
    "postmark": postmark.PostmarkTrackingWebhookView, "resend": resend.ResendTrackingWebhookView,
}


def show(sender, event, esp_name, **_):
    outcome, name = event.recipient.removesuffix("@sim.test").split("+")
    if name == esp_name.lower():  # other events are of mail that came by another API
        print("event", name, outcome, event.event_type, event.reject_reason, event.message_id, event.tags, event.metadata,
              bool(event.timestamp), bool(event.event_id) or name == "postmark")


tracking.connect(show)
for post in json.load(open("posts.json")):
    request = RequestFactory().generic("POST", "/", post["body"], content_type="application/json", headers=post["header"])
    assert views[post["shape"]].as_view()(request).status_code == 200
    for name in ["X-Twilio-Email-Event-Webhook-Timestamp", "Svix-Timestamp", "Authorization"]:
        if name in post["header"]:
            forged = post["header"] | {name: "1"}
            request = RequestFactory().generic("POST", "/", post["body"], content_type="application/json", headers=forged)
            try:
                views[post["shape"]].as_view()(request)
                print("forged", name)
            except AnymailWebhookValidationFailure:
                pass
    print("read", post["shape"])
