// Sends the corpus with the SDK of Resend, and reads back what it can. The subject of each mail names its case.
import {Resend} from 'resend';

const {URL: url, KEY: key, DOMAIN: domain} = process.env;
const resend = new Resend(key, {baseUrl: url});
const from = `Größe & Co <shop@${domain}>`;
const show = (name, {data, error}) => console.log(name, data ? data.id : `${error.statusCode} ${error.name} ${error.message}`);

show('plain', await resend.emails.send({from, to: 'plain@demo.test', subject: 'plain', text: 'Hällo {{you}}'}));
const html = await resend.emails.send({
	from, to: ['html@demo.test'], replyTo: 'help@demo.test', subject: 'html', html: '<p>Grüße & {{x}}</p><img src="cid:logo">',
	headers: {'X-Order': '№ 7'}, tags: [{name: 'kind', value: 'welcome'}],
	attachments: [{filename: 'Größe a.pdf', content: Buffer.from('%PDF')}, {filename: 'l.png', content: 'cG5n', contentId: 'logo', contentType: 'image/png'}],
});
show('html', html);
show('together', await resend.emails.send({from, to: ['ann@demo.test', 'bob@demo.test'], cc: 'cc@demo.test', subject: 'together', text: 't'}));
for (let i = 0; i < 2; i++) {
	show('key', await resend.emails.send({from, to: 'key@demo.test', subject: 'key', text: 't'}, {idempotencyKey: 'welcome/1'}));
}
const later = await resend.emails.send({from, to: 'later@demo.test', subject: 'later', text: 't', scheduledAt: 'in 1 hour'});
console.log('moved', (await resend.emails.update({id: later.data.id, scheduledAt: new Date(Date.now() + 7200_000).toISOString()})).data.id === later.data.id);
console.log('cancelled', (await resend.emails.cancel(later.data.id)).data.object);
const many = Array.from({length: 100}, (_, i) => ({from, to: `many${i}@demo.test`, subject: 'many', text: `t${i}`}));
console.log('many', (await resend.batch.send(many)).data.data.length);
const some = await resend.batch.send([{...many[0], subject: 'some'}, {...many[1], to: 'unknown', subject: 'some'}], {batchValidation: 'permissive'});
console.log('some', some.data.data.length, some.data.errors[0].index);
show('wrong', await resend.emails.send({from, to: 'unknown', subject: 'wrong', text: 't'}));
show('wrong', await resend.emails.get('01937b5a-8c4e-7a31-9f00-1b2c00000000'));
let read;
do {
	await new Promise(done => setTimeout(done, 200));
	read = (await resend.emails.get(html.data.id)).data;
} while (read.last_event !== 'delivered');
console.log('read', read.last_event, read.to.join(), read.reply_to.join(), read.tags[0].value);
const list = (await resend.emails.list({limit: 100})).data;
console.log('list', list.data.length, list.has_more, (await resend.emails.list({limit: 100, after: list.data[99].id})).data.data.length);
