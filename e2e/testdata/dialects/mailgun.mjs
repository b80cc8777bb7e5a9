// Sends mail with mailgun.js and with nodemailer-mailgun-transport, and reads events and suppressions. The subject of
// each mail names its case. It prints a line for each case.
import FormData from 'form-data';
import Mailgun from 'mailgun.js';
import nodemailer from 'nodemailer';
import transport from 'nodemailer-mailgun-transport';

const {URL: url, KEY: key, DOMAIN: domain} = process.env;
const mg = new Mailgun(FormData).client({username: 'api', key, url});
const from = `Größe & Co <shop@${domain}>`;
const pdf = Buffer.from('%PDF-1.4 größe\n');

const answer = await mg.messages.create(domain, {
	from, subject: 'html', to: ['html@demo.test'], text: 'text', html: '<p>Grüße & {{x}}</p>',
	'o:tag': ['a b', 'größe/2'], 'v:order': {id: 7},
});
console.log('html', answer.status, answer.id, answer.message);
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
