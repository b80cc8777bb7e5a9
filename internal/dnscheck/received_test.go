package dnscheck

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/providers"
)

// TestReceived: a mail has both header fields of one-click unsubscribing, and one of its signatures covers both, or it
// is said what is missing. The signature of the second case is that of a report about SendGrid of 2019.
func TestReceived(t *testing.T) {
	t.Parallel()
	fields := "List-Unsubscribe: <https://x.test/u>\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
	both := "DKIM-Signature: v=1; a=rsa-sha256; d=example.com; s=s1;\r\n" +
		"\th=From:To:list-unsubscribe:\r\n\t List-Unsubscribe-Post:Subject; bh=x; b=h=a\r\n"
	one := "DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d=nodebb.org;\r\n" +
		" h=content-transfer-encoding:content-type:from:mime-version:list-id:\r\n list-unsubscribe:subject:to; s=s1; bh=x; " +
		"b=y\r\n"
	for name, c := range map[string]struct {
		header string
		about  []string
		state  providers.State
		text   string
	}{
		"both":     {fields + both, []string{"DKIM"}, providers.OK, "of example.com covers List-Unsubscribe and List-Unsubscribe-Post"},
		"one":      {fields + one, []string{"DKIM"}, providers.Wrong, "of nodebb.org does not cover List-Unsubscribe-Post"},
		"two":      {one + fields + both, []string{"DKIM"}, providers.OK, "of example.com covers"},
		"unsigned": {fields, []string{"DKIM"}, providers.Wrong, "the mail has no signature"},
		"no field": {both, []string{"List-Unsubscribe", "List-Unsubscribe-Post", "DKIM"}, providers.Wrong, "no such field"},
	} {
		found, err := Received(
			strings.NewReader("From: a@example.com\r\n" + c.header + "\r\nDKIM-Signature: in the body\r\n"),
		)
		require.NoError(t, err)
		var about []string
		for _, f := range found {
			about = append(about, f.About)
		}
		require.Equal(t, c.about, about, name)
		require.Equal(t, c.state, found[0].State, name)
		require.Contains(t, found[0].Text, c.text, name)
		require.Equal(t, c.state == providers.Wrong, found[0].ToDo != "", name)
	}
	_, err := Received(strings.NewReader("<html>"))
	require.ErrorContains(t, err, "this is no mail with its header")
}
