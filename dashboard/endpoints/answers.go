package endpoints

import (
	"fmt"
	"strings"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models/endpoint"
)

// answerWords says how an endpoint answered a post. text is why there is no answer, if there is none.
func answerWords(status int, text string) string {
	a := endpoint.Attempt{Status: status, Answer: text}
	switch {
	case a.OK():
		return fmt.Sprintf("Accepted (%d)", status)
	case status == 0:
		return strings.TrimSuffix("No answer: "+text, ": ")
	}
	return strings.TrimSuffix(web.Sentence(a.Words()), ".")
}
