# Sends the corpus to a mail server on this machine, then a signed message, and a mail to 120 addresses.
import os
import smtplib
from email.message import EmailMessage
from email.policy import SMTP

import letters

with smtplib.SMTP(os.environ["HOST"], int(os.environ["PORT"])) as smtp:
    for letter, message in letters.read():
        to = letter["to"] + (letter["cc"] or []) + (letter["bcc"] or [])
        smtp.sendmail("shop@demo.test", to, message.as_bytes(policy=SMTP))  # send_message changes lines with From
    signed = "Subject: signed\r\nFrom: shop@demo.test\r\nContent-Type: multipart/signed; boundary=b\r\n\r\n--b\r\n\r\nt"
    smtp.sendmail("shop@demo.test", ["wrong@demo.test"], signed)
    many = EmailMessage()
    many["From"], many["To"], many["Subject"] = "shop@demo.test", "undisclosed-recipients:;", "many"
    many.set_content("Hello")
    smtp.send_message(many, to_addrs=[f"many{i}@demo.test" for i in range(120)])
