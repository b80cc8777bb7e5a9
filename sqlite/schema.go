package sqlite

import (
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/safedelivr/safedelivr/store"
)

// migrate creates the tables that are missing in a new database, or one with an older form. Errors: a newer form.
func migrate(c *conn) error {
	version, err := schemaVersion(c)
	if err != nil {
		return err
	}
	if version > store.Form {
		return fmt.Errorf("the database has schema %d and this program knows %d: a newer version wrote it", version,
			store.Form)
	}
	if version == store.Form {
		return nil
	}
	text := []string{"BEGIN IMMEDIATE"}
	for _, t := range store.Tables() {
		text = append(text, newStatements(t).ddl)
	}
	text = append(text, fmt.Sprintf("PRAGMA user_version = %d", store.Form), "COMMIT")
	if err := c.script(strings.Join(text, ";\n")); err != nil {
		_, _ = c.exec("ROLLBACK") // the failure may have ended the transaction
		return fmt.Errorf("create tables: %w", err)
	}
	return nil
}

// schemaVersion returns the form of the tables, or 0 if there are none.
func schemaVersion(c *conn) (version int, err error) {
	err = c.query("PRAGMA user_version", func(row []driver.Value) error {
		version = int(row[0].(int64))
		return nil
	})
	return version, err
}
