package sns

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // signatures of version 1 are made so
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

const (
	topic   = "arn:aws:sns:eu-central-1:123456789012:mail"
	pemURL  = "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0a1b.pem"
	confirm = "https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=" + topic + "&Token=t"
)

var now = time.Unix(1795262400, 0)

// A notary has a root, an authority below it and a certificate of Amazon SNS, and answers as Amazon does.
type notary struct {
	key           *rsa.PrivateKey
	root          *x509.Certificate
	leaf, between []byte // PEM
	answer        func(req *http.Request) (int, []byte)
	asked         []string
}

func (n *notary) RoundTrip(req *http.Request) (*http.Response, error) {
	n.asked = append(n.asked, req.URL.String())
	status, body := n.answer(req)
	return &http.Response{StatusCode: status, Header: http.Header{"Location": {pemURL}}, Request: req,
		Body: io.NopCloser(bytes.NewReader(body))}, nil
}

// keys are made once, because that takes long.
var keys = sync.OnceValue(func() (out [3]*rsa.PrivateKey) {
	for i := range out {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			panic(err)
		}
		out[i] = key
	}
	return out
})

func newNotary(t *testing.T) (*notary, *Verifier) {
	t.Helper()
	issue := func(
		name string, ca bool, key *rsa.PrivateKey, by *x509.Certificate, byKey *rsa.PrivateKey,
	) ([]byte, *x509.Certificate) {
		c := &x509.Certificate{
			SerialNumber:          big.NewInt(1),
			Subject:               pkix.Name{CommonName: name},
			NotBefore:             now.Add(-time.Hour),
			NotAfter:              now.Add(1000 * time.Hour),
			IsCA:                  ca,
			BasicConstraintsValid: true,
		}
		if by == nil {
			by = c
		}
		der, err := x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, byKey)
		require.NoError(t, err)
		parsed, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), parsed
	}
	keys := keys()
	n := &notary{key: keys[2]}
	_, n.root = issue("root", true, keys[0], nil, keys[0])
	var ca *x509.Certificate
	n.between, ca = issue("authority", true, keys[1], n.root, keys[0])
	n.leaf, _ = issue("sns.amazonaws.com", false, keys[2], ca, keys[1])
	n.answer = func(*http.Request) (int, []byte) { return 200, slices.Concat(n.leaf, n.between) }
	v := New("https://email.eu-central-1.amazonaws.com")
	v.Client.Transport, v.Roots = n, x509.NewCertPool()
	v.Roots.AddCert(n.root)
	return n, v
}

// sign returns a signed post.
func (n *notary) sign(t *testing.T, version string, post map[string]string) *models.Webhook {
	t.Helper()
	for name, value := range map[string]string{
		"Type": "Notification", "MessageId": "1-2", "TopicArn": topic, "Message": "m",
		"Timestamp": "2026-11-21T12:00:00.000Z", "SignatureVersion": version, "SigningCertURL": pemURL} {
		if _, ok := post[name]; !ok {
			post[name] = value
		}
	}
	text := ""
	for _, name := range []string{"Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token",
		"TopicArn", "Type"} {
		if value, ok := post[name]; ok {
			text += name + "\n" + value + "\n"
		}
	}
	hash, sum := crypto.SHA256, sha256.Sum256([]byte(text))
	digest := sum[:]
	if version == "1" {
		old := sha1.Sum([]byte(text)) //nolint:gosec // see above
		hash, digest = crypto.SHA1, old[:]
	}
	signature, err := rsa.SignPKCS1v15(nil, n.key, hash, digest)
	require.NoError(t, err)
	post["Signature"] = base64.StdEncoding.EncodeToString(signature)
	body, err := json.Marshal(post)
	require.NoError(t, err)
	return &models.Webhook{Header: http.Header{"X-Amz-Sns-Topic-Arn": {topic}}, Body: body, At: now}
}

// refused requires that a post is refused with a status.
func refused(t *testing.T, v *Verifier, w *models.Webhook, status int, name string) {
	t.Helper()
	var refusal *models.WebhookError
	_, err := v.Verify(t.Context(), w)
	require.ErrorAs(t, err, &refusal, name)
	require.Equal(t, status, refusal.Status, name)
}

// TestVersions: the version of a signature says how it is made, and a subject is signed if there is one. The
// certificate is read once.
func TestVersions(t *testing.T) {
	n, v := newNotary(t)
	for _, version := range []string{"1", "2"} {
		for _, post := range []map[string]string{{}, {"Subject": "s"}, {"Subject": ""}} {
			got, err := v.Verify(t.Context(), n.sign(t, version, post))
			require.NoError(t, err)
			require.Equal(t, models.Verified{Replay: "1-2"}, got)
		}
		w := n.sign(t, version, map[string]string{})
		w.Body = bytes.Replace(w.Body, []byte(`{`), []byte(`{"Subject":null,`), 1)
		_, err := v.Verify(t.Context(), w)
		require.NoError(t, err, "a subject that is null is none")
	}
	require.Equal(t, []string{pemURL}, n.asked)
	refused(t, v, n.sign(t, "3", map[string]string{}), 403, "version 3")
	refused(t, v, n.sign(t, "2", map[string]string{"MessageId": "1\nTimestamp"}), 403, "an id of two lines")
	refused(t, v, n.sign(t, "2", map[string]string{"Type": "Another"}), 403, "another type")
}

// TestForeignTopic: the text that is signed has no quotes. So the message of a stranger's topic could hold our topic,
// and the rest of his post could be its type. That type is refused, although Amazon has signed the text.
func TestForeignTopic(t *testing.T) {
	n, v := newNotary(t)
	const rest = "n\nMessageId\n1-2\nTimestamp\n2026-11-21T12:00:00.000Z\nTopicArn\ntheirs\nType\nNotification"
	refused(t, v, n.sign(t, "2", map[string]string{"SubscribeURL": "", "Token": "", "Type": rest}), 403, "")
}

// TestCertificateURL: a certificate is read only from Amazon, by HTTPS, at the path that they have there.
func TestCertificateURL(t *testing.T) {
	n, v := newNotary(t)
	for _, url := range []string{
		"", "http://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0a.pem",
		"https://sns.eu-central-1.amazonaws.com.evil.test/SimpleNotificationService-0a.pem",
		"https://evil.test/sns.eu-central-1.amazonaws.com/SimpleNotificationService-0a.pem",
		"https://evil.test/?sns.eu-central-1.amazonaws.com/SimpleNotificationService-0a.pem",
		"https://sns.eu-central-1.amazonaws.com@evil.test/SimpleNotificationService-0a.pem",
		"https://sns.eu-central-1.amazonaws.com:8443/SimpleNotificationService-0a.pem",
		"https://u:p@sns.eu-central-1.amazonaws.com/SimpleNotificationService-0a.pem",
		"https://sns.evil.eu-central-1.amazonaws.com/SimpleNotificationService-0a.pem",
		"https://sns.s3-eu-west-1.amazonaws.com/SimpleNotificationService-0a.pem",
		"https://s3.amazonaws.com/evil/SimpleNotificationService-0a.pem",
		"https://sns.eu-central-1.amazonaws.com/evil/SimpleNotificationService-0a.pem",
		"https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0a.pem?x=.pem",
		"https://sns.eu-central-1.amazonaws.com/?x=/SimpleNotificationService-0a.pem",
		"https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0a.pem#x",
		"https://sns.eu-central-1.amazonaws.com/%53impleNotificationService-0a.pem",
		"https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-0a.pem/",
		"https://sns.eu-central-1.amazonaws.com\n/SimpleNotificationService-0a.pem",
	} {
		refused(t, v, n.sign(t, "2", map[string]string{"SigningCertURL": url}), 403, url)
	}
	require.Empty(t, n.asked)
	for _, url := range []string{pemURL, "https://sns.cn-north-1.amazonaws.com.cn/SimpleNotificationService-0a.pem"} {
		_, err := v.Verify(t.Context(), n.sign(t, "2", map[string]string{"SigningCertURL": url}))
		require.NoError(t, err)
	}
}

// TestCertificates: what Amazon answers must be a certificate that leads to a root. All other answers may pass, so that
// the post is repeated.
func TestCertificates(t *testing.T) {
	for name, answer := range map[string]func(n *notary) (int, []byte){
		"404":           func(n *notary) (int, []byte) { return 404, n.leaf },
		"a redirect":    func(n *notary) (int, []byte) { return 302, n.leaf },
		"no PEM":        func(*notary) (int, []byte) { return 200, []byte("<html>") },
		"too long":      func(n *notary) (int, []byte) { return 200, append(bytes.Repeat([]byte("x"), 16<<10), n.leaf...) },
		"another chain": func(n *notary) (int, []byte) { return 200, slices.Concat(n.leaf, n.leaf) },
	} {
		n, v := newNotary(t)
		n.answer = func(*http.Request) (int, []byte) { return answer(n) }
		refused(t, v, n.sign(t, "2", map[string]string{}), 503, name)
		require.Len(t, n.asked, 1, name)
	}
	n, v := newNotary(t)
	w := n.sign(t, "2", map[string]string{"Timestamp": "2027-01-21T12:00:00.000Z"})
	w.At = now.Add(1500 * time.Hour)
	refused(t, v, w, 503, "the certificate is too old")
	n.answer = func(*http.Request) (int, []byte) { return 200, n.leaf }
	v.Roots = x509.NewCertPool()
	_, err := v.Verify(t.Context(), n.sign(t, "2", map[string]string{}))
	require.NoError(t, err, "a file with one certificate is trusted because it came from Amazon")
}

// TestConfirm: a subscription is confirmed if its post is genuine and its URL is Amazon's, and the answer says so.
func TestConfirm(t *testing.T) {
	n, v := newNotary(t)
	post := func(url string) *models.Webhook {
		return n.sign(t, "1", map[string]string{"Type": "SubscriptionConfirmation", "Token": "t", "SubscribeURL": url})
	}
	got, err := v.Verify(t.Context(), post(confirm))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, got.Status)
	require.Equal(t, []string{pemURL, confirm}, n.asked)
	for _, url := range []string{"", "http://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=" + topic,
		"https://evil.test/?Action=ConfirmSubscription&TopicArn=" + topic,
		"https://sns.eu-central-1.amazonaws.com/?Action=Publish&TopicArn=" + topic,
		"https://sns.eu-central-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=arn:aws:sns:eu-central-1:1:theirs"} {
		refused(t, v, post(url), 503, url)
	}
	require.Len(t, n.asked, 2)
	w := post(confirm)
	w.Body = bytes.Replace(w.Body, []byte("Token"), []byte("Taken"), 1)
	refused(t, v, w, 403, "forged")
	require.Len(t, n.asked, 2)
	n.answer = func(*http.Request) (int, []byte) { return 500, nil }
	refused(t, v, post(confirm), 503, "Amazon does not confirm")
}

// TestCallsAreFew: strangers cannot make us ask Amazon without end.
func TestCallsAreFew(t *testing.T) {
	n, v := newNotary(t)
	n.answer = func(*http.Request) (int, []byte) { return 404, nil }
	for range 30 {
		refused(t, v, n.sign(t, "2", map[string]string{}), 503, "")
	}
	require.Len(t, n.asked, callsPerMinute)
}

// TestStale: an old post may be one that our clock misjudges, so that it is repeated.
func TestStale(t *testing.T) {
	n, v := newNotary(t)
	for _, at := range []string{"2026-11-20T10:00:00.000Z", "2026-11-21T14:00:00.000Z", "yesterday", ""} {
		refused(t, v, n.sign(t, "2", map[string]string{"Timestamp": at}), 503, at)
	}
}

// TestHeader: only known topics count, and a post without an envelope is refused.
func TestHeader(t *testing.T) {
	for name, c := range map[string]struct {
		header http.Header
		ok     bool
	}{
		"known":   {http.Header{"X-Amz-Sns-Topic-Arn": {topic}}, true},
		"unknown": {http.Header{"X-Amz-Sns-Topic-Arn": {topic + "2"}}, false},
		"none":    {http.Header{}, false},
		"raw":     {http.Header{"X-Amz-Sns-Topic-Arn": {topic}, "X-Amz-Sns-Rawdelivery": {"true"}}, false},
	} {
		err := Header([]string{topic}, &models.Webhook{Header: c.header})
		var refusal *models.WebhookError
		require.Equal(t, c.ok, err == nil, name)
		require.Equal(t, !c.ok, errors.As(err, &refusal) && refusal.Status == 403, name)
	}
}

// TestStandIn: only an API on this machine is asked in place of Amazon SNS, for the same paths.
func TestStandIn(t *testing.T) {
	n, _ := newNotary(t)
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path)
		_, _ = w.Write(n.leaf)
	}))
	defer server.Close()
	_, err := New(server.URL+"/ses").Verify(t.Context(), n.sign(t, "2", map[string]string{}))
	require.NoError(t, err)
	require.Equal(t, []string{"/ses/SimpleNotificationService-0a1b.pem"}, asked)
	for _, root := range []string{"https://email.eu-central-1.amazonaws.com", "http://10.0.0.1",
		"http://localhost.evil.test",
		"http://127.0.0.1.evil.test", "::"} {
		require.False(t, New(root).stand, root)
	}
	for _, root := range []string{"http://localhost:1", "http://[::1]:1", "http://127.0.0.2"} {
		require.True(t, New(root).stand, root)
	}
}
