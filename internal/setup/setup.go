// Package setup writes the configuration of a first installation.
package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/providers"
)

// The names of what Write makes in its folder.
const (
	ConfigFile = "safedelivr.yaml"
	DataFolder = "safedelivr-data"
)

// Options are what the configuration says.
type Options struct {
	Folder    string // in which everything is made
	Provider  providers.Settings
	PublicURL string // "": none
	// What applications may speak beside the API of Safedelivr.
	Dialects []string
	SMTP     string // address to listen at; "": no SMTP
}

// Files are what Write has made, as absolute paths.
type Files struct {
	Config, Data string
	Secrets      []string
}

// ErrExists is returned if the folder has a configuration or a data folder.
var ErrExists = errors.New("exists already")

// Check returns an error if the folder has what Write would make.
func Check(folder string) error {
	for _, name := range []string{ConfigFile, DataFolder} {
		path := filepath.Join(folder, name)
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s %w", path, ErrExists)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Write writes the configuration, and each secret to a file that only the owner can read. It replaces nothing.
func Write(o Options) (Files, error) {
	folder, err := filepath.Abs(o.Folder)
	if err != nil {
		return Files{}, err
	}
	if err := Check(folder); err != nil {
		return Files{}, err
	}
	f := Files{Config: filepath.Join(folder, ConfigFile), Data: filepath.Join(folder, DataFolder)}
	secrets := filepath.Join(f.Data, "secrets")
	if err := os.MkdirAll(secrets, 0o700); err != nil {
		return f, err
	}
	p := &o.Provider
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	line("# Made by safedelivr init. docs/configuration.md has all settings.")
	line("data_dir: %q", f.Data)
	if o.PublicURL != "" {
		line("public_url: %q", o.PublicURL)
	}
	if len(o.Dialects) > 0 {
		line("dialects: [%s]", strings.Join(o.Dialects, ", "))
	}
	if o.SMTP != "" {
		line("smtp:\n  listen: %q", o.SMTP)
	}
	line("providers:\n  %s:\n    kind: %s", p.Name, p.Kind)
	for _, s := range []struct{ setting, value string }{
		{"domain", p.Domain}, {"base_url", p.BaseURL}, {"host", p.Host}, {"tls", p.TLS}, {"user", p.User},
		{"region", p.Region}, {"access_key_id", p.AccessKeyID}, {"configuration_set", p.ConfigurationSet},
	} {
		if s.value != "" {
			line("    %s: %q", s.setting, s.value)
		}
	}
	if p.Port > 0 {
		line("    port: %d", p.Port)
	}
	if len(p.Topics) > 0 {
		line("    topics: [%s]", strings.Join(quoted(p.Topics), ", "))
	}
	for _, s := range []struct{ setting, value string }{
		{"api_key", p.APIKey}, {"secret_key", p.SecretKey}, {"password", p.Password},
		{"secret_access_key", p.SecretAccessKey}, {"webhook_key", p.WebhookKey},
	} {
		if s.value == "" {
			continue
		}
		path := filepath.Join(secrets, p.Name+"."+s.setting)
		if err := write(path, s.value+"\n", 0o600); err != nil {
			return f, err
		}
		f.Secrets = append(f.Secrets, path)
		line("    %s_file: %q", s.setting, path)
	}
	if !p.Verifiable() && p.Host == "" {
		line("    # Without webhooks, mail that the provider accepted counts as delivered.\n    events: none")
	}
	return f, write(f.Config, text.String(), 0o644)
}

// quoted returns texts in quotes.
func quoted(list []string) (out []string) {
	for _, s := range list {
		out = append(out, strconv.Quote(s))
	}
	return out
}

// write writes a new file.
func write(path, text string, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
