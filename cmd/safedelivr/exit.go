package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

// exitCode is how the program ends. As an error it ends the program without a message.
type exitCode int

// The exit codes, as scripts see them. exitCodes describes each.
const (
	exitGood        exitCode = 0
	exitFailed      exitCode = 1
	exitUsage       exitCode = 2
	exitMissing     exitCode = 3
	exitUnreachable exitCode = 4
)

// exitCodes describes the exit codes, for --help and docs/commands.md.
var exitCodes = []struct {
	code exitCode
	text string
}{
	{exitGood, "the command did what it says"},
	{exitFailed, "it failed, or found a mistake: a failed recipient, a difference, a server that is not ready"},
	{exitUsage, "the command line is wrong; nothing was done"},
	{exitMissing, "the thing that the command names does not exist"},
	{exitUnreachable, "the data folder, the store, the broker or the server cannot be reached"},
}

// exitHelp is the part of --help about exit codes.
func exitHelp() string {
	var b strings.Builder
	b.WriteString("\n\nExit codes:\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "  %d  %s\n", e.code, e.text)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// codedError is an error that ends the program with an exit code other than 1.
type codedError struct {
	error
	code exitCode
}

func (e codedError) Unwrap() error { return e.error }

// exitWith gives an error an exit code, unless it has one. It returns nil for nil.
func exitWith(code exitCode, err error) error {
	var has codedError
	var quiet exitCode
	if err == nil || errors.As(err, &has) || errors.As(err, &quiet) {
		return err
	}
	return codedError{err, code}
}

// wrongUsage returns an error about the command line.
func wrongUsage(format string, args ...any) error {
	return exitWith(exitUsage, fmt.Errorf(format, args...))
}

// isMissing returns an error about a thing that does not exist.
func isMissing(what, name string) error {
	return exitWith(exitMissing, fmt.Errorf("there is no %s %s", what, name))
}

// codeOf returns the exit code of an error. An error from before the command began is one of the command line.
func (c *cli) codeOf(err error) exitCode {
	var coded codedError
	switch {
	case errors.As(err, &coded):
		return coded.code
	case !c.began:
		return exitUsage
	}
	return exitFailed
}

// codeOfStatus returns the exit code for the status of an answer that is not a success.
func codeOfStatus(status int) exitCode {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusUnsupportedMediaType:
		return exitUsage
	case http.StatusNotFound:
		return exitMissing
	case http.StatusServiceUnavailable:
		return exitUnreachable
	}
	return exitFailed
}

// noteBegin has each command check its arguments and then note that it began: what cobra refuses before is a mistake of
// the command line.
func (c *cli) noteBegin(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		sub.Args = takes
		c.noteBegin(sub)
	}
	if do := cmd.RunE; do != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			c.began = true
			return do(cmd, args)
		}
	}
}
