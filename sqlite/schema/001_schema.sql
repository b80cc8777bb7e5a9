-- IDs are blobs of 16 bytes, which sort by time. Moments are milliseconds since
-- 1970. Values are the stored forms of package codec.

CREATE TABLE users (
	id      TEXT NOT NULL PRIMARY KEY,
	name    TEXT NOT NULL UNIQUE,
	created INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE keys (
	hash    TEXT NOT NULL PRIMARY KEY,
	user    TEXT NOT NULL,
	id      TEXT NOT NULL,
	name    TEXT NOT NULL,
	created INTEGER NOT NULL,
	revoked INTEGER,      -- NULL: valid
	options TEXT NOT NULL -- JSON: what the key may be used for
) WITHOUT ROWID;
CREATE INDEX keys_by_user ON keys (user, created, id);

-- A batch with its first chunk: most have no other, so that is one row.
-- A head of NULL says that the batch was abandoned and can never exist.
CREATE TABLE batches (
	id    BLOB NOT NULL PRIMARY KEY,
	head  BLOB,
	first BLOB
) WITHOUT ROWID;

CREATE TABLE user_batches (
	user TEXT NOT NULL,
	id   BLOB NOT NULL,
	PRIMARY KEY (user, id)
) WITHOUT ROWID;

-- The recipients of every chunk but the first.
CREATE TABLE chunks (
	id         BLOB NOT NULL PRIMARY KEY,
	recipients BLOB NOT NULL
) WITHOUT ROWID;

-- The bytes of attachments, once for each hash of a batch, and under "rejected" the recipients that were left out.
CREATE TABLE pieces (
	batch  BLOB NOT NULL,
	sha256 TEXT NOT NULL,
	number INTEGER NOT NULL, -- from 0
	piece  BLOB NOT NULL,
	PRIMARY KEY (batch, sha256, number)
);

CREATE TABLE ledger (
	chunk  BLOB NOT NULL,
	number INTEGER NOT NULL,
	entry  BLOB NOT NULL,
	PRIMARY KEY (chunk, number)
) WITHOUT ROWID;

CREATE TABLE facts (
	chunk BLOB NOT NULL,
	key   TEXT NOT NULL,
	fact  BLOB NOT NULL,
	PRIMARY KEY (chunk, key)
) WITHOUT ROWID;

CREATE TABLE summaries (
	user    TEXT NOT NULL,
	chunk   BLOB NOT NULL,
	version INTEGER NOT NULL,
	sum     BLOB NOT NULL,
	PRIMARY KEY (user, chunk)
) WITHOUT ROWID;

-- Of two sums with the same version the one that counted more is the newer:
-- chunks that nothing has happened to yet count for version 0.
CREATE TABLE nodes (
	user     TEXT NOT NULL,
	level    INTEGER NOT NULL, -- index in models.Levels
	start    INTEGER NOT NULL,
	version  INTEGER NOT NULL,
	accepted INTEGER NOT NULL,
	sum      BLOB NOT NULL,
	PRIMARY KEY (user, level, start)
) WITHOUT ROWID;

CREATE TABLE agenda (
	shard  INTEGER NOT NULL,
	due    INTEGER NOT NULL,
	kind   TEXT NOT NULL,
	id     BLOB NOT NULL,
	user   TEXT NOT NULL,
	chunks INTEGER NOT NULL,
	round  INTEGER NOT NULL,
	lane   TEXT NOT NULL,
	missed INTEGER NOT NULL,
	unsent INTEGER NOT NULL,
	PRIMARY KEY (shard, due, kind, id)
) WITHOUT ROWID;

CREATE TABLE agenda_marks (
	shard INTEGER NOT NULL PRIMARY KEY,
	mark  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE inbox (
	id       BLOB NOT NULL PRIMARY KEY,
	provider TEXT NOT NULL,
	replay   TEXT NOT NULL,
	body     BLOB NOT NULL
) WITHOUT ROWID;

-- The posts that are not processed yet.
CREATE TABLE inbox_open (
	shard    INTEGER NOT NULL,
	id       BLOB NOT NULL,
	provider TEXT NOT NULL,
	PRIMARY KEY (shard, id)
) WITHOUT ROWID;

-- The oldest post of each key. A key is dropped by the day of its newest post,
-- or by the day on which that was recorded if it is later.
CREATE TABLE replay_guards (
	key    TEXT NOT NULL PRIMARY KEY,
	post   BLOB NOT NULL,
	digest TEXT NOT NULL,
	day    INTEGER NOT NULL -- since 1970
) WITHOUT ROWID;
CREATE INDEX replay_guards_by_day ON replay_guards (day);

-- Values with a TTL.
CREATE TABLE transients (
	kind  TEXT NOT NULL,
	name  TEXT NOT NULL,
	value BLOB NOT NULL,
	until INTEGER NOT NULL,
	PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- The command log. Its numbers only grow.
CREATE TABLE commands (
	number  INTEGER NOT NULL PRIMARY KEY,
	command BLOB NOT NULL
);

-- The rules that the commands up to a number make: one row. Commands below the number
-- may have been removed.
CREATE TABLE rules (
	one    INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
	number INTEGER NOT NULL,
	rules  BLOB NOT NULL
);

-- Idempotency keys and the answers to their requests.
CREATE TABLE claims (
	key    TEXT NOT NULL PRIMARY KEY,
	id     BLOB NOT NULL,
	hash   TEXT NOT NULL,
	at     INTEGER NOT NULL,
	answer BLOB,
	until  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX claims_by_until ON claims (until);

-- Batches with mail whose time is to come, by user and time: see models.Due.
CREATE TABLE dues (
	user  TEXT NOT NULL,
	id    BLOB NOT NULL,    -- carries the time
	batch BLOB NOT NULL,
	after INTEGER NOT NULL, -- 0: no earlier time is known
	PRIMARY KEY (user, id)
) WITHOUT ROWID;

-- Fingerprints of the addresses of each chunk, by user and hour.
CREATE TABLE address_index (
	user         TEXT NOT NULL,
	hour         INTEGER NOT NULL, -- since 1970
	chunk        BLOB NOT NULL,
	fingerprints BLOB NOT NULL,
	PRIMARY KEY (user, hour, chunk)
) WITHOUT ROWID;

-- The entries of the suppression lists: one row for an address, a category and a reason.
CREATE TABLE suppressions (
	list     TEXT NOT NULL, -- a user, or * for everyone's
	hash     BLOB NOT NULL, -- of the address
	category TEXT NOT NULL,
	reason   TEXT NOT NULL,
	at       INTEGER NOT NULL, -- an entry with a lower one changes nothing
	entry    BLOB NOT NULL,
	PRIMARY KEY (list, hash, category, reason)
) WITHOUT ROWID;

-- The numbered log of the addresses that were ever added to each list.
CREATE TABLE suppression_additions (
	list   TEXT NOT NULL,
	number INTEGER NOT NULL,
	token  BLOB NOT NULL,
	marks  BLOB NOT NULL,
	PRIMARY KEY (list, number)
) WITHOUT ROWID;

-- The numbered feeds of updates. Old entries are removed, the newest never is.
CREATE TABLE feed (
	user   TEXT NOT NULL,
	number INTEGER NOT NULL,
	token  BLOB NOT NULL,
	entry  BLOB NOT NULL,
	PRIMARY KEY (user, number)
);

-- What the feeds have told of each chunk, up to an entry.
CREATE TABLE told (
	chunk BLOB NOT NULL PRIMARY KEY,
	entry INTEGER NOT NULL, -- a lower one changes nothing
	told  BLOB NOT NULL
) WITHOUT ROWID;

-- Named values of a user: see models.DocumentStore.
CREATE TABLE documents (
	owner   TEXT NOT NULL,
	kind    TEXT NOT NULL,
	key     TEXT NOT NULL,
	version INTEGER NOT NULL,
	value   BLOB NOT NULL,
	PRIMARY KEY (owner, kind, key)
) WITHOUT ROWID;
