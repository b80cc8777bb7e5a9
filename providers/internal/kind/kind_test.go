package kind

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// TestWriter: what is written is read by encoding/json as it was, also names and control characters.
func TestWriter(t *testing.T) {
	t.Parallel()
	odd := "a\"b\\c\n\r\t\x00\x1f\u2028<&>ü🎉"
	var w Writer
	w.Begin('{').Field("a", odd).Pair(odd, "x").Optional("none", "").Optional("some", "y")
	w.Key("list").Begin('[').String("1").String("2").Begin('{').End('}').End(']')
	w.Base64("file", []byte{0, 255, 1}).End('}')
	var got map[string]any
	require.NoError(t, json.Unmarshal(w, &got), "%s", w)
	require.Equal(t, map[string]any{"a": odd, odd: "x", "some": "y", "list": []any{"1", "2", map[string]any{}},
		"file": "AP8B"}, got)
}

// TestPath: a URL that the API gave for the next page gets the key only below the API.
func TestPath(t *testing.T) {
	t.Parallel()
	b := Base[string]{queries: "https://api.test"}
	path, err := b.Path("https://api.test/v3/x?page=2")
	require.NoError(t, err)
	require.Equal(t, "/v3/x?page=2", path)
	for _, url := range []string{"", "/v3", "http://api.test/v3", "https://api.test.evil/v3", "https://api.test@evil/v3",
		"https://api.testing/v3"} {
		_, err := b.Path(url)
		require.ErrorIs(t, err, models.ErrInvalid, url)
	}
}

// TestMeaning: the rules of a kind come before the usual ones, and all that a rule names must fit.
func TestMeaning(t *testing.T) {
	t.Parallel()
	rules := []Rule{
		{Status: 403, Code: "quota", Class: models.Throttled},
		{Status: 403, Words: regexp.MustCompile(`verified`), Class: models.AccountClass, Reason: models.SenderNotVerified},
	}
	soon := time.Now().Add(time.Minute)
	for _, c := range []struct {
		status     int
		code, said string
		at         time.Time
		class      models.Class
		reason     models.Reason
	}{
		{403, "quota", "not verified", time.Time{}, models.Throttled, ""},
		{403, "", "not verified", time.Time{}, models.AccountClass, models.SenderNotVerified},
		{403, "", "", time.Time{}, models.AccountClass, ""},
		{413, "quota", "", time.Time{}, models.RejectedHereClass, models.TooLarge},
		{302, "", "", time.Time{}, models.AccountClass, ""},
		{418, "", "", time.Time{}, models.RejectedHereClass, ""},
		{418, "", "", soon, models.Throttled, ""},
		{500, "quota", "", soon, models.Unknown, ""},
		{100, "", "", time.Time{}, models.Unknown, ""},
	} {
		a := Answer{Answer: transport.Answer{Status: c.status}, Code: c.code, Said: c.said, RetryAt: c.at,
			Call: providertest.SampleCall(2)}
		class, reason := a.Meaning(rules)
		require.Equal(t, c.class, class, "%+v", c)
		require.Equal(t, c.reason, reason, "%+v", c)
		require.Equal(t, class == models.Throttled && !c.at.IsZero(), !a.Whole(class, reason)[0].RetryAt.IsZero(), "%+v", c)
	}
}

// TestBounce: only a permanent bounce, of any sub type, says that a mailbox is invalid.
func TestBounce(t *testing.T) {
	t.Parallel()
	for kind, want := range map[parse.Str]models.Reason{
		"Permanent": models.MailboxInvalid, "Transient": models.BounceUnknown, "Undetermined": models.BounceUnknown,
	} {
		ev := models.Event{Kind: models.Bounced}
		(&Bounce{Type: kind, SubType: "NoEmail", Server: "smtp; 550 5.1.1 unknown"}).Explain(&ev, "", models.BounceUnknown)
		require.Equal(t, want, ev.Reason, kind)
	}
}

// TestListErrors: a list that the key may not read is ErrNoLists, and an address that is on no list is no error.
func TestListErrors(t *testing.T) {
	t.Parallel()
	require.NoError(t, listError("l", nil))
	for status, want := range map[int]error{401: models.ErrNoLists, 403: models.ErrNoLists, 400: models.ErrInvalid} {
		require.ErrorIs(t, listError("l", &transport.RefusedError{Status: status}), want)
	}
	err := listError("l", &transport.RefusedError{Status: http.StatusInternalServerError})
	require.False(t, errors.Is(err, models.ErrNoLists) || errors.Is(err, models.ErrInvalid))
	status, _ := Status(err)
	require.Equal(t, http.StatusInternalServerError, status)
}

// TestQueriesBeside: queries go to the provider's other host, unless another server has the whole API.
func TestQueriesBeside(t *testing.T) {
	t.Parallel()
	for root, want := range map[string]string{
		"https://send.api.x.test":  "https://x.test",
		"https://bulk.api.x.test":  "https://x.test",
		"https://x.test":           "https://x.test",
		"http://127.0.0.1:8025/mt": "http://127.0.0.1:8025/mt",
		"https://notx.test":        "https://notx.test",
		"https://x.test.evil.test": "https://x.test.evil.test",
	} {
		require.Equal(t, want, queriesBeside(root, "https://x.test"), root)
		require.Equal(t, root, queriesBeside(root, ""))
	}
}
