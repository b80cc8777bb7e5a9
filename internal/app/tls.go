package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// certificateCheck is how often the files of a certificate are compared with the one in use.
const certificateCheck = time.Second

// certificate is a certificate that is read again when its files change.
type certificate struct {
	setting   string // that names the files
	cert, key string // files
	now       atomic.Pointer[tls.Certificate]

	mu   sync.Mutex
	read []byte // what load read last; nil: it could not read the files
	err  error  // why the certificate in use is not that in the files
}

// load reads the files. The certificate in use stays if they cannot be used. changed is false if load found the same
// before.
func (c *certificate) load() (changed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cert, err := os.ReadFile(c.cert)
	if err == nil {
		var key []byte
		if key, err = os.ReadFile(c.key); err == nil {
			return c.use(cert, key)
		}
	}
	changed = c.read != nil || c.err == nil
	c.read, c.err = nil, withoutPath(err)
	return changed, c.err
}

// use makes the content of the files the certificate in use.
func (c *certificate) use(cert, key []byte) (changed bool, err error) {
	read := bytes.Join([][]byte{cert, key}, []byte{0})
	if bytes.Equal(read, c.read) {
		return false, c.err
	}
	c.read = read
	pair, err := tls.X509KeyPair(cert, key)
	if err == nil && time.Now().After(pair.Leaf.NotAfter) {
		err = fmt.Errorf("the certificate expired at %s", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if c.err = err; err == nil {
		c.now.Store(&pair)
	}
	return true, err
}

// serverConfig returns the configuration of a server with this certificate.
func (c *certificate) serverConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.now.Load(), nil
		},
	}
}

// clientCertificate returns the certificate for a new connection to a server: that in the files, or the last one that
// could be used.
func (c *certificate) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	_, _ = c.load()
	return c.now.Load(), nil
}

// loadCertificates reads the certificates of the listeners.
func (a *App) loadCertificates(context.Context) (err error) {
	if a.certs, err = newCertificate("SAFEDELIVR_TLS_CERT", a.cfg.TLS.Cert, a.cfg.TLS.Key); err != nil {
		return err
	}
	if a.smtpCerts = a.certs; a.cfg.SMTP.TLSCert != "" {
		a.smtpCerts, err = newCertificate("SAFEDELIVR_SMTP_TLS_CERT", a.cfg.SMTP.TLSCert, a.cfg.SMTP.TLSKey)
	}
	return err
}

// newCertificate reads the certificate that a setting names. It returns nil if the setting is empty.
func newCertificate(setting, cert, key string) (*certificate, error) {
	if cert == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	c := &certificate{setting: setting, cert: cert, key: key}
	if _, err := c.load(); err != nil {
		return nil, c.unusable(err)
	}
	return c, nil
}

// unusable returns an error for a certificate that cannot be used.
func (c *certificate) unusable(err error) error {
	return fmt.Errorf("cannot use the certificate (%s, _KEY): %w", c.setting, err)
}

// listened returns the certificates of the listeners, each once.
func (a *App) listened() (out []*certificate) {
	if a.certs != nil {
		out = append(out, a.certs)
	}
	if a.smtpCerts != nil && a.smtpCerts != a.certs {
		out = append(out, a.smtpCerts)
	}
	return out
}

// watchCertificates reads the certificates again when their files change.
func (a *App) watchCertificates(ctx context.Context) {
	if len(a.listened()) == 0 {
		return
	}
	for range models.Every(ctx, certificateCheck) {
		for _, c := range a.listened() {
			c.reload(a.log)
		}
	}
}

// reload reads the files again, and logs what came of it if they changed.
func (c *certificate) reload(log *slog.Logger) {
	changed, err := c.load()
	switch {
	case !changed:
	case err != nil:
		log.Error("cannot use the certificate ("+c.setting+", _KEY); the certificate before stays in use", "err", err)
	default:
		log.Info("new certificate in use", "expires", c.now.Load().Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
}

// clientTLS returns the configuration of TLS with the servers of a section. ca is the file of the CA that signs their
// certificates, or "" for the CAs of the system. cert and key are the files of a client certificate, or "".
func clientTLS(section, ca, cert, key string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s.tls_ca: %w", section, withoutPath(err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cannot use %s.tls_ca: there is no certificate in the file", section)
		}
	}
	if cert != "" {
		own := &certificate{cert: cert, key: key}
		if _, err := own.load(); err != nil {
			return nil, fmt.Errorf("cannot use %s.tls_cert and %s.tls_key: %w", section, section, err)
		}
		c.GetClientCertificate = own.clientCertificate
	}
	return c, nil
}

// withoutPath returns the error of a file without its path.
func withoutPath(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
