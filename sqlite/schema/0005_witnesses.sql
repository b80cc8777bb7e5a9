-- The oldest post of each key. Those of whose posts all are old are dropped, by
-- the day of the newest, or of when that was recorded.
CREATE TABLE witnesses (
	key    TEXT NOT NULL PRIMARY KEY,
	post   BLOB NOT NULL,
	digest TEXT NOT NULL,
	day    INTEGER NOT NULL -- since 1970
) WITHOUT ROWID;
INSERT INTO witnesses (key, post, digest, day) SELECT key, post, digest, day FROM witness WHERE true
	ON CONFLICT DO UPDATE SET day = max(day, excluded.day), post = min(post, excluded.post),
		digest = iif(excluded.post < post, excluded.digest, digest);
CREATE INDEX witnesses_by_day ON witnesses (day);
DROP TABLE witness;
