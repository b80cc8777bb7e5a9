package endpoint

import (
	"fmt"
	"net/http"
)

// answerWords says how an endpoint answered a post that it did not accept, and what that means.
func answerWords(status int) string {
	var meaning string
	switch {
	case status/100 == 3:
		meaning = "the address has moved, and redirects are not followed"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		meaning = "the endpoint does not allow the post; check its secret and its access rules"
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		meaning = "nothing takes posts at this address"
	case status == http.StatusGone:
		meaning = "the address is gone"
	case status == http.StatusRequestEntityTooLarge:
		meaning = "the post is too large for the endpoint"
	case status == http.StatusTooManyRequests:
		meaning = "the endpoint asks for fewer posts"
	case status/100 == 4:
		meaning = "the endpoint refused the post"
	case status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout:
		meaning = "the endpoint is not available"
	default:
		meaning = "the endpoint has an error"
	}
	return fmt.Sprintf("it answered %d: %s", status, meaning)
}
