package mailgun

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// A form without our variables, as old domains post it, has message id and recipient.
func TestUnnamedLegacyEvent(t *testing.T) {
	form := url.Values{
		"event":      {"delivered"},
		"recipient":  {"ann@rcpt.test"},
		"Message-Id": {"<20260101120000.1.ABC@mg.sender.test>"},
		"timestamp":  {"1795262400"},
		"token":      {"t"},
		"signature":  {"00"},
	}
	got := adapter(t, "").Parse([]byte(form.Encode()))
	require.Empty(t, got.Events)
	require.Empty(t, got.Skipped)
	require.Len(t, got.Unnamed, 1)
	require.Equal(t, "20260101120000.1.ABC@mg.sender.test", got.Unnamed[0].MessageID)
	require.Equal(t, "ann@rcpt.test", got.Unnamed[0].Address)
	require.Equal(t, models.Delivered, got.Unnamed[0].Event.Kind)
}
