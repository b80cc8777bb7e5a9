package sqlite

import (
	"database/sql/driver"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// migrate brings the database to the newest schema. Every numbered file that is not
// applied yet runs in its own transaction, which also records its number. It is an
// error if a newer program wrote the database.
func migrate(c *conn) error {
	files, err := fs.Glob(schemaFiles, "schema/*.sql")
	if err != nil {
		return fmt.Errorf("list schema files: %w", err)
	}
	version, err := schemaVersion(c)
	if err != nil {
		return err
	}
	if version > len(files) {
		return fmt.Errorf("the database has schema %d and this program knows %d: a newer version wrote it", version,
			len(files))
	}
	for n := version + 1; n <= len(files); n++ { // named 001_…, so in the order of their numbers
		text, err := schemaFiles.ReadFile(files[n-1])
		if err != nil {
			return fmt.Errorf("read schema %d: %w", n, err)
		}
		if err := c.script("BEGIN IMMEDIATE;\n" + string(text) + "\nPRAGMA user_version = " + strconv.Itoa(n) +
			";\nCOMMIT;"); err != nil {
			_, _ = c.exec("ROLLBACK") // the failure may have ended the transaction
			return fmt.Errorf("apply %s: %w", files[n-1], err)
		}
	}
	return nil
}

// schemaVersion returns the number of the newest applied file.
func schemaVersion(c *conn) (version int, err error) {
	err = c.query("PRAGMA user_version", func(row []driver.Value) error {
		version = int(row[0].(int64))
		return nil
	})
	return version, err
}
