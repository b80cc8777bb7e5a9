# Sends the corpus with aiosmtplib by one connection, and by both ports a mail with a wrong key. Then it sends a
# thousand mails by ten connections at once.
import asyncio
import os
import ssl
from email.message import EmailMessage

import aiosmtplib

import letters

host, key, secure = os.environ["HOST"], os.environ["KEY"], ssl.create_default_context(cafile=os.environ["CA"])
ports = [{"port": int(os.environ["PORT"]), "start_tls": True}, {"port": int(os.environ["SSL_PORT"]), "use_tls": True}]


def connection(port, password=key):
    return aiosmtplib.SMTP(hostname=host, **port, tls_context=secure, username="apikey", password=password)


async def many(part):
    async with connection(ports[part % 2]) as smtp:
        for i in range(part, 1000, 10):
            m = EmailMessage()
            m["From"], m["To"], m["Subject"] = "shop@demo.test", f"many{i}@demo.test", "many"
            m.set_content(f"Hi P<{i}>")
            await smtp.send_message(m)


async def main():
    async with connection(ports[0]) as smtp:
        for letter, message in letters.read():
            to = letter["to"] + (letter["cc"] or []) + (letter["bcc"] or [])
            errors, reply = await smtp.send_message(message, recipients=to)
            print("sent", len(errors), reply)
        try:
            await smtp.sendmail("shop@demo.test", ["a@-.test"], "Subject: wrong\r\n\r\nt")
        except aiosmtplib.SMTPRecipientsRefused as e:
            print("wrong", e.recipients[0].code)
    for port in ports:
        try:
            await connection(port, "wrong").connect()
        except aiosmtplib.SMTPAuthenticationError as e:
            print("refused", e.code)
    await asyncio.gather(*(many(part) for part in range(10)))


asyncio.run(main())
