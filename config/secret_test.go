package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSecretsFromFiles: every secret can be given as the path of a file, whose last line break is removed.
func TestSecretsFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	yaml := write("s.yaml", "providers:\n  mg:\n    api_key_file: "+write("mg", "mg-key\r\n")+"\n")
	c, err := Load(yaml, []string{
		"SAFEDELIVR_PUBLIC_URL=https://mail.example.com",
		"SAFEDELIVR_CASSANDRA_HOSTS=h",
		"SAFEDELIVR_CASSANDRA_PASSWORD_FILE=" + write("cassandra", "pass word\n\n"),
		"SAFEDELIVR_AMQP_URL_FILE=" + write("amqp", "amqp://u:p@h/\n"),
		"SAFEDELIVR_GITHUB_CLIENT_ID=id",
		"SAFEDELIVR_GITHUB_OPERATORS=ann",
		"SAFEDELIVR_GITHUB_CLIENT_SECRET_FILE=" + write("github", "hub"),
		"SAFEDELIVR_PROVIDERS_SG_EU_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_EU_API_KEY_FILE=" + write("key", "k\n"),
		"SAFEDELIVR_PROVIDERS_SG_EU_WEBHOOK_KEY_FILE=" + write("hook", "w\n"),
		"SAFEDELIVR_PROVIDERS_SG_EU_WEBHOOK_KEY_OLD_FILE=" + write("old", "o\n"),
		"SAFEDELIVR_PROVIDERS_MG_KIND=mailgun",
	})
	require.NoError(t, err)
	require.Equal(t, "pass word\n", c.Cassandra.Password)
	require.Equal(t, "amqp://u:p@h/", c.AMQP.URL)
	require.Equal(t, "hub", c.GitHub.ClientSecret)
	sg := c.Providers["sg-eu"]
	require.Equal(t, []string{"k", "w", "o"}, []string{sg.APIKey, sg.WebhookKey, sg.WebhookKeyOld})
	require.Equal(t, "mg-key", c.Providers["mg"].APIKey)
}

// TestSecretFileMistakes: the mistakes of all files are reported together with others, and show neither paths nor
// contents.
func TestSecretFileMistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, empty := filepath.Join(dir, "topsecret"), filepath.Join(dir, "empty")
	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(good, []byte("topsecret"), 0o600))
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	require.NoError(t, os.WriteFile(large, make([]byte, maxSecret+1), 0o600))
	_, err := Load("", []string{
		"SAFEDELIVR_LOG=loud",
		"SAFEDELIVR_LISTEN_FILE=" + good,
		"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_API_KEY=topsecret",
		"SAFEDELIVR_PROVIDERS_SG_API_KEY_FILE=" + good,
		"SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY_FILE=topsecret",
		"SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY_OLD_FILE=" + empty,
		"SAFEDELIVR_CASSANDRA_PASSWORD_FILE=" + dir,
		"SAFEDELIVR_AMQP_URL_FILE=" + large,
	})
	for _, want := range []string{
		`SAFEDELIVR_LOG: "loud"`,
		"SAFEDELIVR_LISTEN_FILE: no such setting",
		"SAFEDELIVR_PROVIDERS_SG_API_KEY_FILE: set either this or SAFEDELIVR_PROVIDERS_SG_API_KEY",
		"SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY_FILE: cannot read the file: no such file or directory",
		"SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY_OLD_FILE: cannot read the file: it is empty",
		"SAFEDELIVR_CASSANDRA_PASSWORD_FILE: cannot read the file: is a directory",
		"SAFEDELIVR_AMQP_URL_FILE: cannot read the file: it has more than",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "topsecret")
}
