// Sends the corpus with postmark.js. The subject of each mail names its case. It prints a line for each case.
import {ServerClient} from 'postmark';

const {URL: url, KEY: key, DOMAIN: domain} = process.env;
const client = new ServerClient(key, {requestHost: url.replace('http://', ''), useHttps: false});
const from = `Größe & Co <shop@${domain}>`;
const show = (name, r) => console.log(name, r.ErrorCode, r.Message, r.To, r.MessageID);

const plain = await client.sendEmail({From: from, To: 'plain@demo.test', Subject: 'plain', TextBody: 'Hällo {{you}}'});
show('plain', plain);
const details = await client.getOutboundMessageDetails(plain.MessageID);
console.log('details', details.Subject, details.Recipients[0], details.TextBody);
const off = {Suppressions: [{EmailAddress: 'off@demo.test'}]};
for (const r of [await client.createSuppressions('outbound', off), await client.deleteSuppressions('outbound', off),
	await client.createSuppressions('outbound', off)]) {
	console.log('suppression', r.Suppressions[0].EmailAddress, r.Suppressions[0].Status);
}
console.log('suppressed', (await client.getSuppressions('outbound')).Suppressions.map(s => s.EmailAddress + ' ' + s.SuppressionReason).join());
show('html', await client.sendEmail({
	From: from, To: 'Ann <html@demo.test>, bob@demo.test', Cc: 'cc@demo.test', ReplyTo: 'help@demo.test', Subject: 'html',
	HtmlBody: '<p>Grüße & {{x}}</p><img src="cid:logo">', Headers: [{Name: 'X-Order', Value: '№ 7'}], Tag: 'welcome',
	Metadata: {order: '7'}, MessageStream: 'outbound', TrackOpens: true, TrackLinks: 'None',
	Attachments: [{Name: 'Größe a.pdf', Content: Buffer.from('%PDF').toString('base64'), ContentType: 'application/pdf', ContentID: null},
		{Name: 'l.png', Content: Buffer.from('png').toString('base64'), ContentType: 'image/png', ContentID: 'cid:logo'}],
}));
const many = Array.from({length: 100}, (_, i) => ({From: from, To: `many${i}@demo.test`, Subject: 'many', TextBody: `t${i}`}));
const results = await client.sendEmailBatch([...many, {...many[0], To: 'unknown'}]);
console.log('many', results.filter(r => r.ErrorCode === 0).length, results[100].ErrorCode);
for (const wrong of [{To: 'unknown'}, {To: 'a@demo.test', TextBody: ''}]) {
	try {
		await client.sendEmail({From: from, Subject: 'wrong', TextBody: 't', ...wrong});
	} catch (e) {
		console.log('wrong', e.name, e.statusCode, e.code, e.message);
	}
}
try {
	await new ServerClient('wrong', {requestHost: url.replace('http://', ''), useHttps: false}).sendEmail({From: from, To: 'a@b.de'});
} catch (e) {
	console.log('wrong', e.name, e.statusCode, e.code);
}
