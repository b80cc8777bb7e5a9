"""A server of aiosmtpd that gives odd answers. The name of an address chooses the answer: of a recipient that to RCPT,
of the sender that to DATA or to the end of the content.

Arguments: port, mode, file. The words of the mode choose what holds for whole sessions. The file gets a line for each
mail that the server took: sender, recipients, and the content in base64."""

import asyncio
import base64
import json
import ssl
import sys

from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import MISSING, SMTP, AuthResult

RCPT = {
    "bad": "550 5.1.1 no such user",
    "plain": "550 no such user here",  # no enhanced code
    "lines": "550-5.1.1 The account that you tried to reach\r\n550-5.1.1 does not exist.\r\n550 5.1.1 gsmtp",
    "bare": "550",  # no text
    "eightbit": b"550 5.1.1 Empf\xe4nger unbekannt, Postfach gel\xf6scht",  # ISO 8859-1
    "grey": "450 4.2.0 greylisted",
    "full": "452 4.2.2 mailbox full",
    "stops": "421 4.3.2 the server stops",
}
DATA = {"no354": "250 2.0.0 go on", "refused": "554 5.5.1 no valid recipients", "busy": "451 4.3.0 no room"}
END = {
    "lines": "250-2.0.0 the mail\r\n250-2.0.0 is\r\n250 2.0.0 queued as ABC",
    "bare": "250",
    "eightbit": b"250 2.0.0 Nachricht f\xfcr Sie \xff angenommen",
    "long": "250 2.0.0 " + "x" * 1500,
    "spam": "554-5.7.1 This looks like spam\r\n554 5.7.1 ask postmaster",
    "plainspam": "554 this is spam",
    "stops": "421 4.3.2 the server stops",
    "later": "451 4.7.1 later",
}
CUT = {"half": b"25", "firstline": b"250-2.0.0 the mail\r\n", "othercode": b"250-2.0.0 the mail\r\n550 5.0.0 no\r\n"}


def name(address):
    return (address or "").split("@")[0]


class Odd:
    """What both protocols have in common."""

    mode = ""

    async def push(self, status):
        if "packets" not in self.mode:
            return await super().push(status)
        reply = (status.encode() if isinstance(status, str) else status) + b"\r\n"
        for i in range(len(reply)):  # a packet for each byte: asyncio sets TCP_NODELAY
            self._writer.write(reply[i : i + 1])
            await self._writer.drain()
            await asyncio.sleep(0.001)

    async def smtp_STARTTLS(self, arg):
        if self.mode == "nostarttls":
            return await self.push("454 4.7.0 TLS is not available now")
        await super().smtp_STARTTLS(arg)

    async def smtp_DATA(self, arg):
        sender = name(self.envelope.mail_from)
        if sender in DATA:
            return await self.push(DATA[sender])
        if sender == "cutdata":
            return self.transport.close()
        await super().smtp_DATA(arg)


class OddSMTP(Odd, SMTP):
    pass


class OddLMTP(Odd, LMTP):
    pass


class Handler:
    def __init__(self, file):
        self.file = file

    async def handle_EHLO(self, server, session, envelope, hostname, responses):
        session.host_name = hostname
        return responses[:-1] + ["250-PIPELINING"] * ("pipelined" in server.mode) + responses[-1:]

    async def handle_RCPT(self, server, session, envelope, address, options):
        if name(address) in RCPT:
            return RCPT[name(address)]
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 ok"

    async def handle_DATA(self, server, session, envelope):
        sender = name(envelope.mail_from)
        if any(name(to) == "badend" for to in envelope.rcpt_tos):
            return "550 5.1.1 no such user"
        with open(self.file, "a") as f:
            content = base64.b64encode(envelope.original_content).decode()
            f.write(json.dumps({"From": envelope.mail_from, "To": envelope.rcpt_tos, "Content": content}) + "\n")
        if sender == "late":
            await asyncio.sleep(60)
        if sender == "cut":
            server.transport.abort()
        if sender in CUT:
            server._writer.write(CUT[sender])
            await server._writer.drain()
            server.transport.close()
        return END.get(sender, "250 2.0.0 queued")

    async def handle_AUTH(self, server, session, envelope, args):
        return "454 4.7.0 Temporary authentication failure" if server.mode == "auth454" else MISSING


def authenticate(server, session, envelope, mechanism, data):
    return AuthResult(success=data.login == b"ann" and data.password == b"s3cret", handled=False)


async def main(port, mode, file):
    options = {"hostname": "odd.test", "enable_SMTPUTF8": True}
    if mode.startswith(("starttls", "nostarttls")):
        options["tls_context"] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        options["require_starttls"] = True
        if mode.startswith("starttls"):
            options["tls_context"].load_cert_chain("cert", "key")
    if mode.startswith("auth"):
        options.update(auth_required=True, auth_require_tls=False, authenticator=authenticate)
        options["auth_exclude_mechanism"] = {"authlogin": ["PLAIN"]}.get(mode, [])
    if "small" in mode:
        options["data_size_limit"] = 100
    Odd.mode = mode
    protocol = OddLMTP if "lmtp" in mode else OddSMTP
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(Handler(file), **options), "127.0.0.1", int(port)
    )
    await server.serve_forever()


asyncio.run(main(*sys.argv[1:]))
