package api

import (
	_ "embed"
	"net/http"

	"github.com/gin-gonic/gin"
)

//go:generate go run ../internal/apigen

//go:embed openapi.yaml
var openAPI []byte

// openapi is GET /v1/openapi.yaml. It needs no key.
func (s *Server) openapi(c *gin.Context) { c.Data(http.StatusOK, "application/yaml", openAPI) }
