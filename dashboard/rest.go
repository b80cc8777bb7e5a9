package dashboard

import (
	"embed"
	"html/template"
	"io/fs"

	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/web"
)

//go:embed resthtml/*.html
var files embed.FS

var rest = func() *web.Templates {
	room, err := fs.Sub(files, "resthtml")
	if err != nil {
		panic(err)
	}
	return web.NewTemplates(room, template.FuncMap{
		"spark":   chart.Sparkline,
		"eachDay": eachDay,
	})
}()
