package setup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers"
)

// TestWrite: the configuration can be read, only the owner can read the secrets, which are in files of their own, and
// nothing is replaced.
func TestWrite(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "a: #b")
	require.NoError(t, os.Mkdir(folder, 0o700))
	o := Options{
		Folder:    folder,
		PublicURL: "https://mail.example.com",
		Dialects:  []string{"mailgun", "resend"},
		SMTP:      ":587",
		Provider: providers.Settings{
			Name:       "mg",
			Kind:       "mailgun",
			APIKey:     "topsecret",
			Domain:     "mg.example.com",
			BaseURL:    "https://api.eu.mailgun.net",
			WebhookKey: "topsecret-hook",
		},
	}
	files, err := Write(o)
	require.NoError(t, err)
	require.Len(t, files.Secrets, 2)
	for _, path := range files.Secrets {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}
	raw, err := os.ReadFile(files.Config)
	require.NoError(t, err)
	require.NotContains(t, string(raw), "topsecret")
	cfg, err := config.Load(files.Config, []string{})
	require.NoError(t, err)
	require.Equal(t, filepath.Join(folder, DataFolder), cfg.DataDir)
	require.Equal(t, []string{"mailgun", "resend"}, cfg.Dialects)
	require.Equal(t, []string{":587"}, cfg.SMTP.Listen)
	p := cfg.Providers["mg"]
	require.Equal(
		t,
		[]string{"mailgun", "topsecret", "topsecret-hook", "mg.example.com", "https://api.eu.mailgun.net", "webhook"},
		[]string{p.Kind, p.APIKey, p.WebhookKey, p.Domain, p.BaseURL, p.Events},
	)
	_, err = Write(o)
	require.ErrorIs(t, err, ErrExists)
}

// TestWriteRegion: the secret of an access key is in a file of its own, and topics bring events.
func TestWriteRegion(t *testing.T) {
	t.Parallel()
	topics := []string{"arn:aws:sns:eu-central-1:123456789012:a", "arn:aws:sns:eu-central-1:123456789012:b"}
	files, err := Write(Options{
		Folder: t.TempDir(),
		Provider: providers.Settings{Name: "ses", Kind: "ses", Amazon: settings.Amazon{Region: "eu-central-1",
			AccessKeyID: "AKIA", SecretAccessKey: "topsecret", ConfigurationSet: "events", Topics: topics}},
	})
	require.NoError(t, err)
	require.Len(t, files.Secrets, 1)
	cfg, err := config.Load(files.Config, []string{})
	require.NoError(t, err)
	p := cfg.Providers["ses"]
	require.Equal(t, settings.Amazon{Region: "eu-central-1", AccessKeyID: "AKIA", SecretAccessKey: "topsecret",
		ConfigurationSet: "events", Topics: topics}, p.Amazon)
	require.Equal(t, "webhook", p.Events)
	cfg, err = config.Load(files.Config, []string{"SAFEDELIVR_PROVIDERS_SES_TOPICS=" + topics[1] + ", " + topics[0]})
	require.NoError(t, err)
	require.Equal(t, []string{topics[1], topics[0]}, cfg.Providers["ses"].Topics)
}

// TestWriteWithoutWebhooks: without a webhook key the provider reports no events.
func TestWriteWithoutWebhooks(t *testing.T) {
	t.Parallel()
	files, err := Write(Options{
		Folder:   t.TempDir(),
		Provider: providers.Settings{Name: "sg", Kind: "sendgrid", APIKey: "k"},
	})
	require.NoError(t, err)
	cfg, err := config.Load(files.Config, []string{})
	require.NoError(t, err)
	require.Equal(t, "none", cfg.Providers["sg"].Events)
}
