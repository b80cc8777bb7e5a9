// Sends the corpus with mailgun.js and with nodemailer-mailgun-transport, and reads back what it can. The subject of each
// mail names its case. It prints a line for each case.
import FormData from 'form-data';
import Mailgun from 'mailgun.js';
import nodemailer from 'nodemailer';
import transport from 'nodemailer-mailgun-transport';

const {URL: url, KEY: key, DOMAIN: domain} = process.env;
const mg = new Mailgun(FormData).client({username: 'api', key, url});
const from = `Größe & Co <shop@${domain}>`;
const pdf = Buffer.from('%PDF-1.4 größe\n');
const vars = Object.fromEntries(Array.from({length: 1000}, (_, i) => [`many${i}@demo.test`, {name: `P<${i}>`, n: i}]));

const cases = {
	plain: {to: 'plain@demo.test', text: 'Hällo {{you}}\n100% %recipient.x%'},
	html: {to: ['html@demo.test'], text: 'text', html: '<p>Grüße & {{x}}</p>', 'h:X-Order': '№ 7', 'o:tag': ['a b', 'größe/2'], 'v:order': {id: 7}},
	attachment: {to: 'attachment@demo.test', text: 't', attachment: [{filename: 'Größe a.pdf', data: pdf}, {filename: 'b.txt', data: 'b'}]},
	inline: {to: 'inline@demo.test', html: '<img src="cid:logo.png">', inline: {filename: 'logo.png', data: pdf}},
	calendar: {to: 'calendar@demo.test', text: 't', attachment: {filename: 'a.ics', data: Buffer.from('BEGIN:VCALENDAR'), contentType: 'text/calendar; method=REQUEST; charset=utf-8'}},
	many: {to: Object.keys(vars), 'recipient-variables': JSON.stringify(vars), html: '<b>%recipient.name%</b> %recipient.n%'},
	scheduled: {to: 'scheduled@demo.test', text: 't', 'o:deliverytime': new Date(Date.now() + 3600_000).toUTCString()},
	together: {to: ['Ann <ann@demo.test>', 'bob@demo.test'], cc: 'cc@demo.test', bcc: 'bcc@demo.test', text: 't'},
};
for (const [name, message] of Object.entries(cases)) {
	const answer = await mg.messages.create(domain, {from, subject: name, ...message});
	console.log(name, answer.status, answer.id, answer.message);
}
const raw = `From: shop@${domain}\r\nTo: mime@demo.test\r\nSubject: mime\r\nMessage-ID: <m7@app.test>\r\n\r\nHällo {{x}}\r\n`;
console.log('mime', (await mg.messages.create(domain, {to: ['mime@demo.test'], message: raw})).id);

for (const wrong of [{to: 'unknown', text: 't'}, {to: 'a@demo.test'}]) {
	try {
		await mg.messages.create(domain, {from, subject: 'wrong', ...wrong});
	} catch (e) {
		console.log('wrong', e.status, e.details);
	}
}
const mailer = nodemailer.createTransport(transport({auth: {api_key: key, domain}, host: '127.0.0.1', protocol: 'http:', port: new URL(url).port}));
console.log('transport', (await mailer.sendMail({
	from, to: 'transport@demo.test', subject: 'transport', html: '<img src="cid:pic">', headers: {'X-A': 'b'},
	attachments: [{filename: 'p.png', content: pdf, cid: 'pic'}],
})).id);

let events = 0, page = await mg.events.get(domain, {ascending: 'yes', limit: 300, event: 'delivered', tags: 'a b'});
while (page.items.length === 0) {
	await new Promise(done => setTimeout(done, 200));
	page = await mg.events.get(domain, {ascending: 'yes', page: page.pages.next.page});
}
for (; page.items.length > 0; page = await mg.events.get(domain, {page: page.pages.next.page})) {
	for (const e of page.items) {
		console.log('event', e.event, e.recipient, e.tags.join('|'), e['user-variables'].order);
		events++;
	}
}
await mg.suppressions.create(domain, 'bounces', {address: 'gone@demo.test'});
console.log('bounce', (await mg.suppressions.get(domain, 'bounces', 'gone@demo.test')).address);
console.log('destroyed', (await mg.suppressions.destroy(domain, 'bounces', 'gone@demo.test')).status);
console.log('events', events);
