package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// fileSuffix ends the name of a setting that holds the path of a file with a secret:
// SAFEDELIVR_GITHUB_CLIENT_SECRET_FILE sets github.client_secret_file.
const fileSuffix = "_file"

// The settings that are secrets, or may contain one.
var (
	secrets         = []string{"store", "cassandra.password", "amqp.url", "github.client_secret"}
	providerSecrets = []string{"api_key", "webhook_key", "webhook_key_old", "password", "secret_key", "secret_access_key",
		"oauth_client_secret", "oauth_refresh_token", "bounce_imap_password"}
)

// maxSecret bounds the size of a file with a secret, in bytes.
const maxSecret = 64 << 10

// isSecret reports whether key is a setting that can be read from a file.
func isSecret(key string) bool {
	parts := strings.Split(key, ".")
	if len(parts) == 3 && parts[0] == "providers" {
		return slices.Contains(providerSecrets, parts[2])
	}
	return slices.Contains(secrets, key)
}

// settingIn returns the setting that a key sets: a secret may be set by a key that names its file.
func settingIn(key string) string {
	if secret, ok := strings.CutSuffix(key, fileSuffix); ok && isSecret(secret) {
		return secret
	}
	return key
}

// readSecrets replaces the settings that name the file of a secret by the secrets. Its mistakes contain no path,
// because a path may be a secret that was set under the wrong name.
func (l *loader) readSecrets() {
	for _, key := range l.k.Keys() {
		secret := settingIn(key)
		if secret == key {
			continue
		}
		path := l.k.String(key)
		l.k.Delete(key)
		if l.k.String(secret) != "" && path != "" {
			l.mistake(secret, "set either this or %s", secret)
			continue
		}
		value, err := readSecret(path)
		if err != nil {
			l.mistake(secret, "cannot read the file: %s", err)
			continue
		}
		_ = l.k.Set(secret, value)
	}
}

// readSecret returns the content of a file without the line break at its end.
func readSecret(path string) (string, error) {
	raw, err := os.ReadFile(path)
	var e *fs.PathError
	switch {
	case errors.As(err, &e):
		return "", e.Err
	case err != nil:
		return "", err
	case len(raw) > maxSecret:
		return "", fmt.Errorf("it has more than %d bytes", maxSecret)
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if value == "" {
		return "", errors.New("it is empty")
	}
	return value, nil
}
