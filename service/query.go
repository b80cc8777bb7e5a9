package service

import (
	"github.com/safedelivr/safedelivr/service/operation"
)

// Page is operation.Page. The zero value selects the first page with the default size.
type Page = operation.Page
