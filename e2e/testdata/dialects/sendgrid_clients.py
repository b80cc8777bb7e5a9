# Sends mail with the library of SendGrid for Python. The subject of each mail names its case.
import json
import os

from sendgrid import SendGridAPIClient
from sendgrid.helpers.mail import Mail, Personalization, Substitution, To

url, key, domain = os.environ["URL"], os.environ["KEY"], os.environ["DOMAIN"]
client = SendGridAPIClient(key, host=url)
mail = Mail(from_email=f"shop@{domain}", subject="python", html_content="<p>-name-</p>")
for i in range(3):
    p = Personalization()
    p.add_to(To(f"python{i}@demo.test"))
    p.add_substitution(Substitution("-name-", f"P{i}"))
    mail.add_personalization(p)
answer = client.send(mail)
print("python", answer.status_code, len(answer.headers["X-Message-Id"]))
api = client.client
print("unsubscribe", api.asm.suppressions._("global").post(request_body={"recipient_emails": ["off@demo.test"]}).status_code)
print("unsubscribes", [e["email"] for e in json.loads(api.suppression.unsubscribes.get(query_params={"limit": 10}).body)])
print("deleted", api.asm.suppressions._("global")._("off@demo.test").delete().status_code)
try:
    client.send(Mail(from_email=f"shop@{domain}", to_emails="a@-.test", subject="wrong", html_content="t"))
except Exception as e:
    print("wrong", e.status_code, e.to_dict["errors"][0]["field"])
