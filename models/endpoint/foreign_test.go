package endpoint

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestKeyOfSecret: a secret has the same key of P-256 for ever, because receivers keep the public one.
func TestKeyOfSecret(t *testing.T) {
	t.Parallel()
	s := Secret{Key: bytes.Repeat([]byte{7}, 24), Signature: client.SignatureHMAC}
	require.Equal(t, "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE65MENEl4o0K+49v6asLNxZuGDhNo76j9zHmkiGLH9ygJlmjPLzXydAqV3F5pSK5Qh"+
		"/d39knIrzcclpPksbPMng==", s.publicP256())
	other := NewSecret(client.SignatureHMAC)
	require.NotEqual(t, s.publicP256(), other.publicP256())
}

// TestUnsignedRequests: an endpoint without secrets has no signature in any shape, so that a request can be shown.
func TestUnsignedRequests(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"": `{"a":1}`, client.ShapeStandard: `{"a":1}`, client.ShapeMailgun: `{"event-data":{"a":1}}`,
		client.ShapeSendGrid: `[{"a":1}]`, client.ShapePostmark: `{"a":1}`, client.ShapeResend: `{"a":1}`,
	} {
		e := Endpoint{EndpointSettings: client.EndpointSettings{Shape: name}}
		h, body := e.Request("msg_1", time.Unix(1700000000, 0), []byte(`{"a":1}`))
		require.Equal(t, want, string(body), name)
		for _, header := range []string{"Webhook-Signature", "Svix-Signature", sendGridPrefix + "Signature"} {
			require.NotContains(t, h, http.CanonicalHeaderKey(header), name)
		}
		e.Secrets = []Secret{NewSecret(client.SignatureHMAC)}
		signed, body := e.Request("msg_1", time.Unix(1700000000, 0), []byte(`{"a":1}`))
		more := len(signed) + len(body) - len(h) - len(want)
		require.Equal(t, name != client.ShapePostmark, more > 0, name)
	}
}
