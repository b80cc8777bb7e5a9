-- IDs are blobs of 16 bytes, which sort by time; moments are milliseconds since
-- 1970; values are the stored forms of package models.

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
	revoked INTEGER -- NULL: valid
) WITHOUT ROWID;
CREATE INDEX keys_of_user ON keys (user, created, id);

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

-- Of two sums of the same version the one with more in it is the newer: chunks
-- that nothing has happened to yet count for version 0.
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
	PRIMARY KEY (shard, due, kind, id)
) WITHOUT ROWID;

CREATE TABLE agenda_marks (
	shard INTEGER NOT NULL PRIMARY KEY,
	mark  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE inbox (
	id      BLOB NOT NULL PRIMARY KEY,
	provider TEXT NOT NULL,
	replay  TEXT NOT NULL,
	body    BLOB NOT NULL
) WITHOUT ROWID;

-- The posts that are not worked off.
CREATE TABLE inbox_open (
	shard   INTEGER NOT NULL,
	id      BLOB NOT NULL,
	provider TEXT NOT NULL,
	PRIMARY KEY (shard, id)
) WITHOUT ROWID;

-- The oldest post of each key and day; whole days are dropped.
CREATE TABLE witness (
	day    INTEGER NOT NULL, -- since 1970, of the post's ID
	key    TEXT NOT NULL,
	post   BLOB NOT NULL,
	digest TEXT NOT NULL,
	PRIMARY KEY (day, key)
) WITHOUT ROWID;

CREATE TABLE leases (
	name   TEXT NOT NULL PRIMARY KEY,
	holder TEXT NOT NULL,
	until  INTEGER NOT NULL
) WITHOUT ROWID;

-- What processes say about themselves.
CREATE TABLE reports (
	kind  TEXT NOT NULL,
	name  TEXT NOT NULL,
	value BLOB NOT NULL,
	until INTEGER NOT NULL,
	PRIMARY KEY (kind, name)
) WITHOUT ROWID;
