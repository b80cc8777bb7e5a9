-- What it takes to announce an entry without looking at it.
ALTER TABLE agenda ADD COLUMN lane TEXT NOT NULL DEFAULT '';
ALTER TABLE agenda ADD COLUMN missed INTEGER NOT NULL DEFAULT 0;
