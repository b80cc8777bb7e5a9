// Sends a newsletter with Ghost's own code: its email provider, its client of Mailgun and the fetching of its analytics
// job. What Ghost does around them is imitated: batches of members, repeats after an error, and its database.
const {readFileSync} = require('fs');
const services = './ghost/package/core/server/services/';
const EmailProvider = require(services + 'email-service/mailgun-email-provider');
const Client = require(services + 'lib/mailgun-client');
const {normalizeMailgunMessageId} = require(services + 'lib/mailgun-message-id');
const {fetchMailgunEvents} = require(services + 'email-analytics/fetch-mailgun-events');

const mailgun = {};
for (const [, name, value] of readFileSync('recipe.txt', 'utf8').matchAll(/^bulkEmail__mailgun__(\w+)=(.*)$/gm)) {
	mailgun[name] = value === 'KEY' ? process.env.KEY : value;
}
const ids = process.argv[2] === 'ids'; // each member has a Message-Id of its own
const config = {get: key => ({bulkEmail: {mailgun}, 'bulkEmail:perRecipientMessageId': ids})[key]};
const settings = {get: () => undefined};
const client = new Client({config, settings});
const provider = new EmailProvider({mailgunClient: client, config});
const {members, emailId} = JSON.parse(readFileSync('members.json', 'utf8'));
const begin = new Date(Date.now() - 60_000);

async function send(batch) {
	const recipients = batch.map(email => ({email, replacements: [
		{id: 'name', token: /%%\{name\}%%/g, value: `<${email}>`},
		{id: 'list_unsubscribe', token: /%%\{list_unsubscribe\}%%/g, value: `https://blog.test/off?m=${email}`},
	]}));
	for (let repeat = 0; ; repeat++) {
		try {
			return await provider.send({
				subject: 'News {{of}} the week', from: '"Größe" <blog@demo.test>', replyTo: 'help@demo.test', emailId, recipients,
				html: '<p>Hi %%{name}%%</p>', plaintext: 'Hi %%{name}%%',
				replacementDefinitions: [
					{id: 'name', token: /%%\{name\}%%/g, trusted: false},
					{id: 'list_unsubscribe', token: /%%\{list_unsubscribe\}%%/g, trusted: true},
				],
			}, {openTrackingEnabled: true, clickTrackingEnabled: false});
		} catch (e) {
			if (repeat === 6) throw e;
			console.log('repeat', e.context);
		}
	}
}

// automation sends a mail of an automation, as that of a new member. Ghost finds it by the id of the answer.
async function automation() {
	const tags = ['automation-email'];
	const mail = {subject: 'Welcome', html: '<p>Hi</p>', plaintext: 'Hi', from: 'blog@demo.test', tags};
	const {id} = await client.send(mail, {'new@demo.test': {}}, []);
	const found = [];
	for (let n = 0; n < 400 && !found.length; n++) {
		const is = e => normalizeMailgunMessageId(e.providerId) === normalizeMailgunMessageId(id);
		const batchHandler = events => found.push(...events.filter(is));
		await fetchMailgunEvents({config, settings, tags, batchHandler, begin, end: new Date()});
		await new Promise(done => setTimeout(done, 200));
	}
	console.log('automation', found[0].type, found[0].recipientEmail);
}

async function main() {
	for (let i = 0; i < members.length; i += provider.getMaximumRecipients()) {
		const {id} = await send(members.slice(i, i + provider.getMaximumRecipients()));
		console.log('sent', id);
	}
	const last = {};
	const handle = events => {
		for (const e of events) {
			if (e.emailId === emailId && !(e.type === 'failed' && e.severity === 'temporary')) {
				last[e.recipientEmail] = e.type + (e.type === 'failed' ? ' ' + e.error.code : '');
			}
		}
	};
	const complained = members.filter(m => m.startsWith('complain'));
	const missing = () => members.some(m => !last[m]) || complained.some(m => last[m] === 'delivered');
	for (let n = 0; n < 400 && missing(); n++) {
		await fetchMailgunEvents({config, settings, tags: ['bulk-email'], batchHandler: handle, begin, end: new Date()});
		await new Promise(done => setTimeout(done, 500));
	}
	const counts = {};
	Object.values(last).forEach(state => counts[state] = (counts[state] ?? 0) + 1);
	console.log('events', JSON.stringify(counts));
	for (const m of complained) {
		const removed = [await client.removeBounce(m), await client.removeComplaint(m), await client.removeUnsubscribe(m)];
		console.log('on again', ...removed);
	}
}
process.argv[2] === 'automation' ? automation() : main();
