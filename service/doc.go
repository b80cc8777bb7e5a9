// Package service holds the use cases that the API, the dashboard and the command
// line share: accepting batches, reading, keys, control. It knows nothing of HTTP;
// every error that a person may see is an *Error.
package service
