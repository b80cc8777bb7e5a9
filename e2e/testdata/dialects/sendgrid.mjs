// Sends the corpus with @sendgrid/mail. The subject of each mail names its case. It prints a line for each case.
import {Client} from '@sendgrid/client';
import sgMail from '@sendgrid/mail';

const {URL: url, KEY: key, DOMAIN: domain} = process.env;
const client = new Client();
client.setApiKey(key);
client.setDefaultRequest('baseUrl', url);
sgMail.setClient(client);
const from = {email: `shop@${domain}`, name: 'Größe & Co'};

let [answer] = await sgMail.send({from, to: 'plain@demo.test', subject: 'plain', text: 'Hällo {{you}}'});
console.log('plain', answer.statusCode, answer.headers['x-message-id']);
[answer] = await sgMail.send({
	from, to: ['Ann <html@demo.test>', 'bob@demo.test'], cc: 'cc@demo.test', replyTo: 'help@demo.test', subject: 'html',
	html: '<p>Grüße & {{x}}</p><img src="cid:logo">', headers: {'X-Order': '№ 7'}, categories: ['welcome'], customArgs: {order: '7'},
	attachments: [{filename: 'Größe a.pdf', type: 'application/pdf', content: Buffer.from('%PDF').toString('base64'), disposition: 'attachment'},
		{filename: 'l.png', type: 'image/png', content: 'cG5n', disposition: 'inline', content_id: 'logo'}],
});
console.log('html', answer.statusCode);
await sgMail.sendMultiple({from, to: Array.from({length: 100}, (_, i) => `many${i}@demo.test`), subject: 'many', text: 't'});
for (const wrong of [{to: 'unknown'}, {to: 'a@demo.test', templateId: 'd-none'}]) {
	try {
		await sgMail.send({from, subject: 'wrong', text: 't', ...wrong});
	} catch (e) {
		console.log('wrong', e.code, e.response.body.errors[0].field);
	}
}
