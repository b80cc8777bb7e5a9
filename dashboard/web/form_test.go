package web

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLocalPath(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"/batches?state=done":   "/batches?state=done",
		"/%2f%2fevil.example":   "/%2f%2fevil.example",
		"":                      "/",
		"https://evil.example/": "/",
		"//evil.example":        "/",
		"/\\evil.example":       "/",
		"javascript:alert(1)":   "/",
		"/login?to=/":           "/",
		"batches":               "/",
		"/a\r\nb":               "/",
		"/live/overview":        "/",
	} {
		require.Equal(t, want, LocalPath(in), in)
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a\nb\n\nc\ufffd\ufffdd", Lines("a\r\nb\r\rc\xff\x00d"))
}
