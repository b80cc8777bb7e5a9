// Package api serves the HTTP API for users. It checks requests, stores them durably and
// answers. It never changes the state of a log.
package api
