package sendgrid

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// setKey sets the key that signs webhooks. It generates one if text is empty.
func (g *SendGrid) setKey(text string) (err error) {
	if text == "" {
		g.sign, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		g.sign, err = parseKey(text)
	}
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(g.sign)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&g.sign.PublicKey)
	if err != nil {
		return err
	}
	g.private = base64.StdEncoding.EncodeToString(private)
	g.public = base64.StdEncoding.EncodeToString(public)
	return nil
}

// parseKey reads an ECDSA P-256 private key: PEM, or base64 of PKCS#8 or SEC 1.
func parseKey(text string) (*ecdsa.PrivateKey, error) {
	var der []byte
	if block, _ := pem.Decode([]byte(text)); block != nil {
		der = block.Bytes
	} else {
		var err error
		if der, err = base64.StdEncoding.DecodeString(strings.TrimSpace(text)); err != nil {
			return nil, errors.New("neither PEM nor base64")
		}
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		other, err := x509.ParsePKCS8PrivateKey(der)
		if err != nil {
			return nil, err
		}
		var ok bool
		if key, ok = other.(*ecdsa.PrivateKey); !ok {
			return nil, fmt.Errorf("want an ECDSA key, have %T", other)
		}
	}
	if key.Curve != elliptic.P256() {
		return nil, errors.New("want curve P-256")
	}
	return key, nil
}
