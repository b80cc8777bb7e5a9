import os
from email.mime.image import MIMEImage

import django
from django.conf import settings

settings.configure(
    EMAIL_BACKEND="myproject.safedelivr.SafedelivrBackend",
    SAFEDELIVR_URL=os.environ["SAFEDELIVR_URL"],
    SAFEDELIVR_KEY=os.environ["KEY"],
)
django.setup()

from django.core.mail import EmailMultiAlternatives, send_mail  # noqa: E402

mail = EmailMultiAlternatives(
    "Invoice {{x}}",
    "Dear {{x}}",
    "Shop <shop@demo.test>",
    ["Ann <ann@demo.test>"],
    cc=["cc@demo.test"],
    bcc=["bcc@demo.test"],
    reply_to=["help@demo.test"],
)
mail.attach_alternative('<p>Dear Ann<img src="cid:logo@demo.test"></p>', "text/html")
mail.attach("invoice.txt", "42.00", "text/plain")
logo = MIMEImage(b"GIF89a", "gif")
logo.add_header("Content-ID", "<logo@demo.test>")
mail.attach(logo)
mail.send()
send_mail("To several", "Text", "shop@demo.test", ["one@demo.test", "two@demo.test"])
