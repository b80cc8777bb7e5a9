package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
)

// failure is why there was no answer, in words for the user who named the address. They name no address, host or
// server: it may be one of the network of this installation.
type failure struct {
	words string
	cause error
}

// Error implements error.
func (f *failure) Error() string { return f.words }

// Unwrap returns the cause, which is not for users.
func (f *failure) Unwrap() error { return f.cause }

// explain returns the failure of a post.
func explain(err error) error { return &failure{wordsOf(err), err} }

func wordsOf(err error) string {
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		if name.IsNotFound {
			return "the host name does not exist"
		}
		return "the host name could not be looked up"
	}
	timedOut, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, ErrForbidden):
		return ErrForbidden.Error()
	case errors.Is(err, context.Canceled):
		return "the post was ended by this server"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isNet && timedOut.Timeout():
		return "there was no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection was refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "the host cannot be reached"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE):
		return "the connection was closed before there was an answer"
	}
	return secureWords(err)
}

// secureWords says what is wrong with TLS, or with the answer.
func secureWords(err error) string {
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the TLS certificate is one of another host"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the TLS certificate is signed by an unknown authority"
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return "the TLS certificate has expired or is not valid yet"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the TLS certificate is not valid"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok || errors.Is(err, http.ErrSchemeMismatch) {
		return "the host does not speak TLS at this port"
	}
	return "the connection failed, or the answer was not HTTP"
}
