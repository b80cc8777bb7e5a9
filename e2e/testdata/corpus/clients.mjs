// Sends the corpus with the library that CLIENT names, then a thousand mails in as few calls as it allows, each with
// a value of its own. It prints a line for each mail, and one for a wrong key.
import {readFileSync} from 'fs';

const {URL: url, KEY: key, CLIENT: name, HOST, PORT, SSL_PORT, CA} = process.env;
const letters = JSON.parse(readFileSync('corpus.json'));
const people = Array.from({length: 1000}, (_, i) => ({email: `many${i}@demo.test`, value: `P<${i}>`}));
const chunks = size => Array.from({length: people.length / size}, (_, i) => people.slice(i * size, i * size + size));
const plain = people => people.map(p => ({
	from: 'shop@demo.test', to: p.email, subject: 'many', text: `Hi ${p.value}`,
}));
const type = file => Object.entries(file.params ?? {}).reduce((all, [k, v]) => `${all}; ${k}=${v}`, file.type);
const from = l => `${l.name} <${l.from}>`;
const headers = l => ({...l.headers, ...(l.message_id && {'Message-ID': l.message_id})});
const files = (l, f) => (l.files ?? []).map(file => f(file, Buffer.from(file.content, 'base64')));
const or = text => text || undefined;

const clients = {
	async 'mailgun.js'(key) {
		const {default: Mailgun} = await import('mailgun.js');
		const {default: FormData} = await import('form-data');
		const mg = new Mailgun(FormData).client({username: 'api', key, url});
		const send = async m => (await mg.messages.create('demo.test', m)).id;
		return {
			send: l => send({
				from: from(l), to: l.to, cc: l.cc ?? undefined, bcc: l.bcc ?? undefined, subject: l.subject,
				text: or(l.text), html: or(l.html), 'h:Reply-To': or(l.reply_to),
				...Object.fromEntries(Object.entries(headers(l)).map(([k, v]) => ['h:' + k, v])),
				'o:deliverytime': l.at ? new Date(l.at).toUTCString() : undefined,
				attachment: files(l, (f, data) => !f.content_id && {filename: f.name, data, contentType: type(f)})
					.filter(f => f),
				inline: files(l, (f, data) => f.content_id && {filename: f.content_id, data, contentType: f.type})
					.filter(f => f),
			}),
			many: () => send({
				from: 'shop@demo.test', to: people.map(p => p.email), subject: 'many', text: 'Hi %recipient.value%',
				'recipient-variables': JSON.stringify(Object.fromEntries(people.map(p => [p.email, {value: p.value}]))),
			}),
			status: e => e.status,
		};
	},
	async resend(key) {
		const {Resend} = await import('resend');
		const resend = new Resend(key, {baseUrl: url});
		const must = ({data, error}) => {
			if (error) throw error;
			return data;
		};
		return {
			send: async l => {
				const {id} = must(await resend.emails.send({
					from: from(l), to: l.to, cc: l.cc ?? undefined, bcc: l.bcc ?? undefined, subject: l.subject,
					text: or(l.text), html: or(l.html), replyTo: or(l.reply_to), headers: headers(l), scheduledAt: l.at ?? undefined,
					attachments: files(l, (f, content) => ({
						filename: f.name, content, contentType: type(f), contentId: or(f.content_id),
					})),
				}));
				return must(await resend.emails.get(id)).subject;
			},
			many: async () => {
				for (const part of chunks(100)) must(await resend.batch.send(plain(part)));
			},
			status: e => e.statusCode,
		};
	},
	async postmark(key) {
		const {ServerClient} = await import('postmark');
		const client = new ServerClient(key, {requestHost: url.replace('http://', ''), useHttps: false});
		return {
			send: async l => (await client.sendEmail({
				From: from(l), To: l.to.join(', '), Cc: l.cc?.join(', '), Bcc: l.bcc?.join(', '),
				Subject: l.subject, TextBody: or(l.text), HtmlBody: or(l.html), ReplyTo: or(l.reply_to),
				Headers: Object.entries(headers(l)).map(([Name, Value]) => ({Name, Value})),
				Attachments: files(l, (f, content) => ({
					Name: f.name, Content: content.toString('base64'), ContentType: type(f),
					ContentID: f.content_id ? 'cid:' + f.content_id : null,
				})),
			})).MessageID,
			many: async () => {
				for (const part of chunks(500)) {
					await client.sendEmailBatch(plain(part).map(m => ({
						From: m.from, To: m.to, Subject: m.subject, TextBody: m.text,
					})));
				}
			},
			status: e => e.statusCode,
		};
	},
	async '@sendgrid/mail'(key) {
		const {default: mail} = await import('@sendgrid/mail');
		const {Client} = await import('@sendgrid/client/src/classes/client.js').then(m => ({Client: m.default}));
		const client = new Client();
		client.setApiKey(key);
		client.setDefaultRequest('baseUrl', url);
		mail.setClient(client);
		return {
			send: async l => (await mail.send({
				from: {email: l.from, name: l.name}, to: l.to, cc: l.cc ?? undefined, bcc: l.bcc ?? undefined,
				subject: l.subject, text: or(l.text), html: or(l.html), replyTo: or(l.reply_to), headers: headers(l),
				sendAt: l.at ? Date.parse(l.at) / 1000 : undefined,
				attachments: files(l, (f, content) => ({
					filename: f.name, type: type(f), content: content.toString('base64'),
					...(f.content_id ? {disposition: 'inline', content_id: f.content_id} : {disposition: 'attachment'}),
				})),
			}))[0].headers['x-message-id'],
			many: () => mail.send({
				from: 'shop@demo.test', subject: 'many', text: 'Hi -value-', substitutionWrappers: ['-', '-'],
				personalizations: people.map(p => ({to: p.email, substitutions: {value: p.value}})),
			}),
			status: e => e.code,
		};
	},
	async nodemailer(key) {
		const {default: nodemailer} = await import('nodemailer');
		const tls = {ca: readFileSync(CA)}, auth = {user: 'apikey', pass: key};
		const ways = [{port: +PORT, requireTLS: true}, {port: +SSL_PORT, secure: true}]
			.map(at => nodemailer.createTransport({host: HOST, ...at, tls, auth, pool: true}));
		let n = 0;
		return {
			send: async l => (await ways[n++ % 2].sendMail({
				from: {name: l.name, address: l.from}, to: l.to, cc: l.cc, bcc: l.bcc, subject: l.subject,
				text: or(l.text), html: or(l.html), replyTo: or(l.reply_to), messageId: or(l.message_id),
				headers: {...l.headers, ...(l.at && {'X-Mailgun-Deliver-By': new Date(l.at).toUTCString()})},
				attachments: files(l, (f, content) => ({filename: f.name, content, contentType: type(f), cid: or(f.content_id)})),
			})).response,
			many: async () => {
				await Promise.all(plain(people).map(m => ways[1].sendMail(m)));
				ways.forEach(way => way.close());
			},
			status: e => e.responseCode,
		};
	},
};
const {send, many} = await clients[name](key);
for (const letter of letters) console.log('sent', await send(letter));
await many();
const wrong = await clients[name]('wrong');
try {
	await wrong.send(letters[0]);
} catch (e) {
	console.log('refused', wrong.status(e));
}
