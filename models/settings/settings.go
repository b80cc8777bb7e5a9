// Package settings declares the settings that several rooms use, each once: its name, meaning, range and default.
//
// A room has a configuration that embeds what it needs. The loader (package config) reads the settings that have a
// name, and docs/configuration.md is made from their comments and tags:
//
//   - koanf: the name; a field without one cannot be set by users
//   - range: the numbers that a setting may have
//   - oneof: the words that a setting may have
//   - unit: what a number counts
//   - default: the value if the setting is not set
package settings

import "time"

// Limits bounds requests, connections and retries.
type Limits struct {
	// size of a batch
	Recipients int `koanf:"recipients" range:"1..1048576000" unit:"recipients" default:"1000000"`
	// size of subject, text and HTML of a batch
	Content int64 `koanf:"content" range:">0" unit:"bytes" default:"5242880"`
	// size of a request
	Body int64 `koanf:"body" range:">0" unit:"bytes" default:"1073741824"`
	// memory of a worker for the attachments of its calls, which take three times their size; each provider has an equal
	// part, and at least 75 MB
	AttachmentMemory int64 `koanf:"attachment_memory" range:">0" unit:"bytes" default:"268435456"`
	// retries per recipient. Mail that all its providers refuse for a temporary reason waits beyond that, until it
	// expires
	Retries int `koanf:"retries" range:"0..1000" unit:"attempts" default:"10"`
	// share of a batch's recipients that may fail because the mailbox does not exist. If there are more, the batch is
	// stopped once, when at least 100 were tried; its user or an operator may resume it. 0: it is never stopped
	Bounces float64 `koanf:"bounces" range:"0..100" unit:"percent" default:"5"`
	// highest complaint rate of a user's mail that was accepted on a UTC day and delivered. Above it, operators get the
	// notice `complaints.high`, once for the user and day. 0: they never do
	Complaints float64 `koanf:"complaints" range:"0..100" unit:"percent" default:"0.1"`
	// mails of a user and day that must be delivered before there is such a notice
	ComplaintsFrom int64 `koanf:"complaints_from" range:">0" unit:"mails" default:"1000"`
	// mails in a row that no provider could deliver to an address, because its mailbox is full or its server does not take
	// them. Then the address is suppressed for `TIMES_SOFT_BOUNCE_EXPIRY`. 0: it never is
	SoftBounces int `koanf:"soft_bounces" range:"0..100" unit:"mails" default:"5"`
	// a batch of up to this size is urgent
	UrgentUpTo int `koanf:"urgent_up_to" range:">0" unit:"recipients" default:"100"`
	// open HTTP connections; more wait
	Connections int `koanf:"connections" range:">0" unit:"connections" default:"4096"`
	// open HTTP connections of one address; more are closed. Of a client behind a trusted proxy: open requests
	AddressConnections int `koanf:"address_connections" range:">0" unit:"connections" default:"1024"`
	// while the disk of `DATA_DIR` has less free space, batches, imports, templates, drafts and endpoints are refused
	// (503), and all that was accepted goes on. With less than four times as much, the users are refused who have
	// stored more than is free above the reserve. 0: no reserve
	DiskReserve int64 `koanf:"disk_reserve" range:"0.." unit:"bytes" default:"268435456"`
}

// Times holds durations. One of them bounds each state of a log.
type Times struct {
	// mail that is not sent within this time after acceptance fails as `expired`
	ExpireAfter time.Duration `koanf:"expire_after" range:">0" default:"168h"`
	// a call must begin within this time after it was recorded
	StartBy time.Duration `koanf:"start_by" range:">0" default:"10s"`
	// how long an unknown outcome waits for evidence, from its answer or the latest end of its call
	EvidenceWindow time.Duration `koanf:"evidence_window" range:">0" default:"15m"`
	// how long accepted mail waits for a final event
	FinalEvent time.Duration `koanf:"final_event" range:">0" default:"100h"`
	// interval at which the agenda reconciles unfinished work
	Recheck time.Duration `koanf:"recheck" range:">0" default:"1m"`
	// pause after a rejected key or quota
	Hold time.Duration `koanf:"hold" range:">0" default:"5m"`
	// first pause after failed calls. It doubles with each failed probe, up to 3× (calls refused), 12× (time-outs, no
	// other provider) or 360× (time-outs, others available)
	BreakerOpen time.Duration `koanf:"breaker_open" range:">0" default:"5s"`
	// minimum time without any report before a provider that accepts mail is suspended
	Silence time.Duration `koanf:"silence" range:">0" default:"1m"`
	// age at which chunks of an unfinished upload are removed; storing one may take a quarter of it
	IntakeGrace time.Duration `koanf:"intake_grace" range:">0" default:"1h"`
	// how long idempotency keys and their answers are kept
	Idempotency time.Duration `koanf:"idempotency" range:">0" default:"24h"`
	// how long content and recipients are kept at least. They are removed when the batch has expired and the wait for
	// final events is over, too. States and timelines stay, without addresses
	KeepContent time.Duration `koanf:"keep_content" range:">0" default:"2160h"`
	// how long batches, logs and commands are kept, at least `KEEP_CONTENT`. Then batches answer 404, and only the sums of
	// days stay. Idempotency keys are found by their batches for 24 hours, so wait as long before you set less than that
	KeepLogs time.Duration `koanf:"keep_logs" range:">0" default:"9600h"`
	// how long updates can be read from `GET /v1/updates`
	KeepUpdates time.Duration `koanf:"keep_updates" range:">0" default:"720h"`
	// how long raw webhooks are kept (embedded store)
	InboxKeep time.Duration `koanf:"inbox_keep" range:">0" default:"168h"`
	// how often the suppression lists that the providers keep are read; 0: never
	ProviderLists time.Duration `koanf:"provider_lists" range:"0.." default:"1h"`
	// how long an address is suppressed after `LIMITS_SOFT_BOUNCES`, from the newest bounce on
	SoftBounceExpiry time.Duration `koanf:"soft_bounce_expiry" range:">0" default:"168h"`
	// how long a shutdown waits for calls in flight
	StopGrace time.Duration `koanf:"stop_grace" range:">0" default:"35s"`
}

// Pace has the intervals of a worker. Only tests change them.
type Pace struct {
	// how often summaries are renewed
	Renewal time.Duration `default:"500ms"`
	// how often the agenda is read
	AgendaPoll time.Duration `default:"1s"`
	// how long a silent worker keeps its shards of the agenda
	Lease time.Duration `default:"15s"`
	// age at which an unprocessed post is announced again
	InboxAge time.Duration `default:"30s"`
	// how often workers write heartbeats
	Heartbeat time.Duration `default:"1s"`
	// a longer call counts as failed if other providers answer much faster
	SlowCall time.Duration `default:"10s"`
	// how often silent providers are detected
	SilencePoll time.Duration `default:"5s"`
	// pause before a look-up that follows a failed one, or one that found events
	LookUpPause time.Duration `default:"30s"`
	// how often the newest sums are recounted
	SumsPoll time.Duration `default:"1m"`
	// how often the history of the providers is stored
	HistoryPoll time.Duration `default:"5s"`
	// how often the age of the queues is read
	QueuePoll time.Duration `default:"5s"`
	// how often addresses with many soft bounces are checked
	SoftBouncePoll time.Duration `default:"10s"`
}
