package ses

import (
	"bytes"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" // as Amazon SNS does it, unless a topic has version 2
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// notary returns the key of the imitated Amazon SNS and its certificate.
var notary = sync.OnceValues(func() (*rsa.PrivateKey, string) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err) // the system has no randomness
	}
	c := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sns.amazonaws.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, &c, &c, &key.PublicKey, key)
	if err != nil {
		panic(err) // the key does not fit
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
})

// post returns the post of an event as Amazon SNS makes it, signed with version 1.
func post(a *provider.Account, p provider.Post) ([]byte, http.Header, error) {
	id := a.Token(p, 32)
	id = id[:8] + "-" + id[8:12] + "-5" + id[13:16] + "-a" + id[17:20] + "-" + id[20:]
	const host = "https://sns.us-east-1.amazonaws.com/"
	out := map[string]string{"Type": "Notification", "MessageId": id, "TopicArn": Topic + a.Name,
		"Subject": "Amazon SES Email Event Notification", "Message": string(p.Body) + "\n",
		"Timestamp": time.Unix(p.Time, 0).UTC().Format("2006-01-02T15:04:05.000Z"), "SignatureVersion": "1",
		"SigningCertURL": host + certFile, "UnsubscribeURL": host + "?Action=Unsubscribe"}
	h := sha1.New()
	for _, name := range []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"} {
		h.Write([]byte(name + "\n" + out[name] + "\n"))
	}
	key, _ := notary()
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA1, h.Sum(nil))
	if err != nil {
		return nil, nil, err
	}
	out["Signature"] = base64.StdEncoding.EncodeToString(p.Forge(signature))
	body, err := json.Marshal(out)
	return body, http.Header{"Content-Type": {"text/plain; charset=UTF-8"}, "X-Amz-Sns-Message-Type": {out["Type"]},
		"X-Amz-Sns-Message-Id": {id}, "X-Amz-Sns-Topic-Arn": {out["TopicArn"]},
		"X-Amz-Sns-Subscription-Arn": {out["TopicArn"] + ":" + id},
		"User-Agent":                 {"Amazon Simple Notification Service Agent"}}, err
}

var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 ` +
	`Credential=([^/]+)/((\d{8})/([a-z0-9-]+)/ses/aws4_request), ` +
	`SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})$`)

// named reports whether a request names the ID of a key.
func named(key string, r *http.Request) bool {
	m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	id, _, _ := strings.Cut(key, ":")
	return m != nil && m[1] == id
}

// signed reports whether a request has a signature of version 4 that fits, and is not older than 5 minutes. The key is
// ID:SECRET.
func signed(key string, r *http.Request, body string) bool {
	m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	at := r.Header.Get("X-Amz-Date")
	when, err := time.Parse("20060102T150405Z", at)
	if m == nil || err != nil || time.Since(when).Abs() > 5*time.Minute || !strings.HasPrefix(at, m[3]) {
		return false
	}
	_, secret, _ := strings.Cut(key, ":")
	var text bytes.Buffer
	query := strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20")
	path, _, _ := strings.Cut(r.RequestURI, "?") // as it was signed, with the parts that were cut off before
	text.WriteString(r.Method + "\n" + escape(path) + "\n" + query + "\n")
	covered := map[string]bool{}
	for name := range strings.SplitSeq(m[5], ";") {
		value := strings.Join(r.Header.Values(name), ",")
		if name == "host" {
			value = r.Host
		}
		covered[name] = true
		text.WriteString(name + ":" + strings.Join(strings.Fields(value), " ") + "\n")
	}
	sum := sha256.Sum256([]byte(body))
	text.WriteString("\n" + m[5] + "\n" + hex.EncodeToString(sum[:]))
	whole := sha256.Sum256(text.Bytes())
	mac := []byte("AWS4" + secret)
	for _, part := range []string{m[3], m[4], "ses", "aws4_request",
		"AWS4-HMAC-SHA256\n" + at + "\n" + m[2] + "\n" + hex.EncodeToString(whole[:])} {
		h := hmac.New(sha256.New, mac)
		h.Write([]byte(part))
		mac = h.Sum(nil)
	}
	return covered["host"] && covered["x-amz-date"] && hex.EncodeToString(mac) == m[6]
}

// escape encodes all of a path but letters, digits, '-', '.', '_', '~' and '/'.
func escape(path string) string {
	var b strings.Builder
	for _, c := range []byte(path) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~/", c) >= 0 {
			b.WriteByte(c)
		} else {
			b.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
		}
	}
	return b.String()
}
