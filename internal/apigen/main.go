// Command apigen writes three files from the table of operations: the description of the API, the calls of the Go
// client, and the help of the command line's flags. Run it as "go generate ./api". A test fails if its output is not up
// to date.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/safedelivr/safedelivr/service"
)

func main() {
	if err := write(".."); err != nil { // go generate runs it in the folder api
		fmt.Fprintln(os.Stderr, "apigen:", err)
		os.Exit(1)
	}
}

// write writes all files below the folder of the module.
func write(root string) error {
	files, err := generate(root)
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join(root, name), text, 0o644) //nolint:gosec // sources may be read by everyone
		}
	}
	return err
}

// generate returns the files, by their paths below the folder of the module.
func generate(root string) (map[string][]byte, error) {
	ops := service.Operations(new(service.Service))
	words := comments{root: root}
	api, err := openAPI(root, ops, &words)
	if err != nil {
		return nil, err
	}
	calls, err := goClient(ops)
	if err != nil {
		return nil, err
	}
	texts, err := flagTexts(ops, &words)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"api/openapi.yaml": api, "client/calls.go": calls, "cmd/safedelivr/comments.go": texts},
		words.err
}
