package sqlite

import (
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/safedelivr/safedelivr/store"
)

// form is the number of the form of the tables. A program refuses a database with a newer one.
const form = 1

// migrate creates the tables in a new database. It is an error if a newer program wrote the database.
func migrate(c *conn) error {
	version, err := schemaVersion(c)
	if err != nil {
		return err
	}
	if version > form {
		return fmt.Errorf("the database has schema %d and this program knows %d: a newer version wrote it", version, form)
	}
	if version == form {
		return nil
	}
	text := []string{"BEGIN IMMEDIATE"}
	for _, t := range store.Tables() {
		text = append(text, newStatements(t).ddl)
	}
	text = append(text, fmt.Sprintf("PRAGMA user_version = %d", form), "COMMIT")
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
