package api

import (
	"maps"
	"net/url"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models/nearest"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/problem"
)

// flags are the parameters that are true or false.
var flags = map[string]bool{"dry_run": true, "everyone": true}

// parameters maps routes to the parameters that their queries may have. The queries of other routes must be empty.
var parameters = map[string][]string{
	"POST /v1/batches":      {"dry_run", "mode"},
	"PUT /v1/messages":      {"dry_run", "mode"},
	"PATCH /v1/batches/:id": {"dry_run"},

	"POST /v1/suppressions/import": {"everyone"},
	"GET /v1/suppressions/export":  {"everyone"},
}

// checkQuery refuses a query that cannot be decoded, and parameters that are repeated or that the route does not have.
func (s *Server) checkQuery(c *gin.Context) {
	raw := c.Request.URL.RawQuery
	if raw == "" {
		return
	}
	query, err := url.ParseQuery(raw)
	if err != nil {
		s.fail(c, service.Fail(service.Malformed, "invalid_query", "The query is not encoded correctly."))
		return
	}
	known := s.parameters[c.Request.Method+" "+c.FullPath()]
	var wrong problem.Mistakes
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch at := problem.Pointer(name); {
		case !slices.Contains(known, name):
			wrong.Wrong(at, "unknown_field", "There is no query parameter %s.%s", problem.Quote(name),
				nearest.Meant(name, known))
		case len(query[name]) > 1:
			wrong.Wrong(at, "repeated", "The query parameter %s is repeated.", name)
		case query[name][0] == "":
			wrong.Wrong(at, "invalid_value", "%s has no value. Leave it out, or give it one.", name)
		case s.flags[name] && query[name][0] != "true" && query[name][0] != "false":
			wrong.Wrong(at, "invalid_value", "%s must be true or false.", name)
		}
	}
	if err := wrong.In(invalidQuery()); err != nil {
		s.fail(c, err)
		return
	}
	if query.Get("everyone") == "true" {
		who := caller(c)
		who.Everyone = true
		c.Set(callerKey, who)
	}
}

func invalidQuery() *service.Error {
	return service.Fail(service.Malformed, "invalid_query", "The parameters of the request are not valid: see errors.")
}
