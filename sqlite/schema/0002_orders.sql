-- What a key may be used for, as JSON; NULL: the ordinary.
ALTER TABLE keys ADD COLUMN options TEXT;

-- The journal of orders, which only grows.
CREATE TABLE controls (
	number INTEGER NOT NULL PRIMARY KEY,
	line   BLOB NOT NULL
);

-- Idempotency keys, and what was answered.
CREATE TABLE claims (
	key    TEXT NOT NULL PRIMARY KEY,
	id     BLOB NOT NULL,
	hash   TEXT NOT NULL,
	at     INTEGER NOT NULL,
	answer BLOB,
	until  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX claims_by_end ON claims (until);

-- Fingerprints of the addresses of each chunk, by user and hour.
CREATE TABLE prints (
	user  TEXT NOT NULL,
	hour  INTEGER NOT NULL, -- since 1970
	chunk BLOB NOT NULL,
	marks BLOB NOT NULL,
	PRIMARY KEY (user, hour, chunk)
) WITHOUT ROWID;
