// Command site builds the documents of the project into a folder of web pages that need no network, and checks their
// links. With -write it writes the tables of docs/configuration.md from the code.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	out := flag.String("out", "bin/site", "folder for the pages")
	write := flag.Bool("write", false, "write the tables of docs/configuration.md, and build nothing")
	flag.Parse()
	if err := run(*out, *write); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func run(out string, write bool) error {
	if write {
		raw, err := os.ReadFile(configurationPage)
		if err != nil {
			return err
		}
		text, err := withTables(string(raw))
		if err != nil {
			return err
		}
		return os.WriteFile(configurationPage, []byte(text), 0o644) //nolint:gosec // no secret
	}
	site, err := build(".")
	if err != nil {
		return err
	}
	if broken := site.broken(); len(broken) > 0 {
		return fmt.Errorf("broken links:\n%w", errors.Join(broken...))
	}
	if err := site.write(out); err != nil {
		return err
	}
	fmt.Printf("%d pages in %s\n", len(site.pages), out)
	return nil
}
