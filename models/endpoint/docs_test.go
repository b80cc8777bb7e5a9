//go:build full

package endpoint

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestVerificationOfDocs: the code of docs/endpoints.md accepts a post, and neither a changed one nor an old one.
// Languages that this machine does not have are left out; Go is always there.
func TestVerificationOfDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/endpoints.md")
	require.NoError(t, err)
	for _, c := range []struct {
		language, command, file, main, mainFile string
		needs                                   []string // arguments with which the command finds out if Ed25519 is there
	}{
		{"python", "python3", "hook.py", `
import json, sys
from hook import verify
secret, headers, body = json.load(sys.stdin)
verify(secret, headers, body.encode())
`, "main.py", []string{"-c", "import cryptography"}},
		{"javascript", "node", "hook.mjs", `
import { readFileSync } from "node:fs";
import { verify } from "./hook.mjs";
const [secret, headers, body] = JSON.parse(readFileSync(0));
verify(secret, headers, Buffer.from(body));
`, "main.mjs", nil},
		{"php", "php", "hook.php", `<?php
require "hook.php";
verify(...json_decode(file_get_contents("php://stdin"), true));
`, "main.php", []string{"-r", "exit(extension_loaded('sodium') ? 0 : 1);"}},
		{"ruby", "ruby", "hook.rb", `
require "json"
require_relative "hook"
verify(*JSON.parse($stdin.read))
`, "main.rb", nil},
		{"go", "go", "hook/hook.go", `
package main

import (
	"encoding/json"
	"net/http"
	"os"

	"test/hook"
)

func main() {
	var in [3]json.RawMessage
	var secret, body string
	var headers map[string]string
	if json.NewDecoder(os.Stdin).Decode(&in) != nil || json.Unmarshal(in[0], &secret) != nil ||
		json.Unmarshal(in[1], &headers) != nil || json.Unmarshal(in[2], &body) != nil {
		os.Exit(3)
	}
	h := http.Header{}
	for name, value := range headers {
		h.Set(name, value)
	}
	if hook.Verify(secret, h, []byte(body)) != nil {
		os.Exit(1)
	}
}
`, "main.go", nil},
	} {
		for n, signature := range []string{client.SignatureHMAC, client.SignatureEd25519} { // in the order of the page
			t.Run(c.language+" "+signature, func(t *testing.T) {
				t.Parallel()
				command, err := exec.LookPath(c.command)
				if err != nil {
					t.Skip("not installed: " + c.command)
				}
				if signature == client.SignatureEd25519 && c.needs != nil {
					if exec.CommandContext(t.Context(), command, c.needs...).Run() != nil { //nolint:gosec // a test
						t.Skip("not installed: what " + c.command + " needs for Ed25519")
					}
				}
				found := regexp.MustCompile("(?s)```"+c.language+"\n(.*?)```").FindAllSubmatch(page, -1)
				require.Len(t, found, 2)
				dir := t.TempDir()
				for name, text := range map[string]string{
					c.file: string(found[n][1]), c.mainFile: c.main, "go.mod": "module test\n\ngo 1.24\n",
				} {
					require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
					require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
				}
				args := []string{c.mainFile}
				if c.command == "go" {
					build := exec.CommandContext(t.Context(), command, "build", "-o", "program", ".") //nolint:gosec // a test
					build.Dir = dir
					out, err := build.CombinedOutput()
					require.NoError(t, err, "%s", out)
					command, args = filepath.Join(dir, "program"), nil
				}
				accepts(t, signature, func(input []byte) error {
					cmd := exec.CommandContext(t.Context(), command, args...) //nolint:gosec // a test
					cmd.Dir, cmd.Stdin = dir, bytes.NewReader(input)
					out, err := cmd.CombinedOutput()
					t.Logf("%s", out)
					return err
				})
			})
		}
	}
}

// accepts checks code that gets a key, the header fields and the body of a post as JSON, and returns an error if it
// does not accept the post.
func accepts(t *testing.T, signature string, run func(input []byte) error) {
	t.Helper()
	other := client.SignatureHMAC
	if signature == client.SignatureHMAC {
		other = client.SignatureEd25519
	}
	until := time.Now().Add(time.Hour)
	e := Endpoint{Secrets: []Secret{NewSecret(signature)}}
	e.Rotate(NewSecret(signature), until)
	changed := Endpoint{Secrets: e.Secrets[:1]}
	changed.Rotate(NewSecret(other), until)
	post := func(e *Endpoint, secret Secret, signedAt time.Time, body, sent string) error {
		headers := map[string]string{}
		for name, values := range e.Header("msg_1", signedAt, []byte(body)) {
			headers[strings.ToLower(name)] = values[0]
		}
		in, err := json.Marshal([]any{secret.String() + secret.Public(), headers, sent})
		require.NoError(t, err)
		return run(in)
	}
	now := time.Now()
	require.NoError(t, post(&e, e.Secrets[0], now, `{"a": "ü"}`, `{"a": "ü"}`))
	require.NoError(t, post(&e, e.Secrets[1], now, "x", "x"))
	require.NoError(t, post(&changed, changed.Secrets[1], now, "x", "x"))
	require.Error(t, post(&e, e.Secrets[0], now, "x", "y"))
	require.Error(t, post(&e, e.Secrets[0], now.Add(-time.Hour), "x", "x"))
	require.Error(t, post(&e, NewSecret(signature), now, "x", "x"))
}
