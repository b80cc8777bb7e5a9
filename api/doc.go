// Package api is the entrance for users: HTTP on Gin. It checks, stores durably and
// answers; it changes no state of a log.
package api
