package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
)

//go:embed static
var staticFiles embed.FS

// types maps extensions to media types. Files with other extensions are not served.
var types = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// asset is a file in memory.
type asset struct {
	kind, tag     string
	plain, packed []byte // packed is compressed with gzip
}

// assets serves static files under names with a hash of their content, so that
// browsers can cache them permanently.
type assets struct {
	files map[string]asset  // by hashed name
	urls  map[string]string // plain name to path
}

func loadAssets() (*assets, error) {
	a := &assets{files: map[string]asset{}, urls: map[string]string{}}
	return a, fs.WalkDir(staticFiles, "static", func(name string, e fs.DirEntry, err error) error {
		kind := types[path.Ext(name)]
		if err != nil || e.IsDir() || kind == "" {
			return err
		}
		raw, err := staticFiles.ReadFile(name)
		if err != nil {
			return err
		}
		var packed bytes.Buffer
		z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		if err == nil {
			_, err = z.Write(raw)
		}
		if err == nil {
			err = z.Close()
		}
		if err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		sum := sha256.Sum256(raw)
		hash := hex.EncodeToString(sum[:6])
		base := path.Base(name)
		ext := path.Ext(base)
		hashed := strings.TrimSuffix(base, ext) + "." + hash + ext
		a.files[hashed] = asset{kind: kind, tag: `"` + hash + `"`, plain: raw, packed: packed.Bytes()}
		a.urls[base] = "/assets/" + hashed
		return nil
	})
}

// url returns the path of a file. Templates call it; an unknown name fails the
// template.
func (a *assets) url(name string) (string, error) {
	u, ok := a.urls[name]
	if !ok {
		return "", fmt.Errorf("no asset %s", name)
	}
	return u, nil
}

// ServeHTTP implements http.Handler.
func (a *assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("ETag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.kind)
	body := f.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = f.packed
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the browser may be gone
}
