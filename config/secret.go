package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/v2"
)

// fileSuffix ends the name of a setting that holds the path of a file with a secret:
// SAFEDELIVR_GITHUB_CLIENT_SECRET_FILE sets github.client_secret_file.
const fileSuffix = "_file"

// The settings that are secrets, or may contain one.
var (
	secrets         = []string{"cassandra.password", "amqp.url", "github.client_secret"}
	providerSecrets = []string{"api_key", "webhook_key", "webhook_key_old"}
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

// readSecrets replaces the settings that name the file of a secret by the secrets. It returns all mistakes. They
// contain no path, because a path may be a secret that was set under the wrong name.
func readSecrets(k *koanf.Koanf) []error {
	var mistakes []error
	for _, key := range k.Keys() {
		secret, ok := strings.CutSuffix(key, fileSuffix)
		if !ok || !isSecret(secret) {
			continue
		}
		path := k.String(key)
		k.Delete(key)
		if k.String(secret) != "" && path != "" {
			mistakes = append(mistakes, fmt.Errorf("%s: set either this or %s", key, secret))
			continue
		}
		value, err := readSecret(path)
		if err == nil {
			err = k.Set(secret, value)
		}
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s: cannot read the file: %w", key, err))
		}
	}
	return mistakes
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
