//go:build full

package e2e

import (
	"encoding/pem"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// phpPackages are those of Debian whose code is run here, and what it needs.
var phpPackages = []string{
	"libphp-phpmailer", "wordpress", "php-symfony-postmark-mailer", "php-symfony-sendgrid-mailer", "php-illuminate-mail",
	"php-illuminate-bus", "php-illuminate-config", "php-illuminate-container", "php-illuminate-events",
	"php-illuminate-filesystem", "php-illuminate-pipeline", "php-illuminate-view", "php-league-commonmark",
	"php-swiftmailer",
	"php-tijsverkoyen-css-to-inline-styles", "php-league-config", "php-nette-schema", "php-nette-utils",
	"php-dflydev-dot-access-data", "php-symfony-css-selector", "php-email-validator", "php-doctrine-lexer",
}

// TestPHPCorpus sends the corpus with the libraries and frameworks of PHP, by SMTP and by the APIs that they speak.
func TestPHPCorpus(t *testing.T) {
	debian, env := packages(t, os.Environ(), phpPackages...)
	share := filepath.Join(debian, "usr", "share")
	out, err := exec.CommandContext(t.Context(), "cp", "-rn", "/usr/share/php", share).CombinedOutput()
	require.NoError(t, err, "%s", out) // packages look for each other in their own folder
	for _, way := range []struct {
		program, scheme string
		refused         string // what a wrong key is answered with
		without         []string
	}{
		{program: "phpmailer.php", refused: "SMTP Error: Could not authenticate."},
		{program: "wordpress.php", refused: "SMTP Error: Could not authenticate.", without: []string{"inline"}},
		{program: "symfony.php", scheme: "smtp", refused: "Failed to authenticate on SMTP server"},
		{program: "symfony.php", scheme: "smtps", refused: "Failed to authenticate on SMTP server"},
		{program: "symfony.php", scheme: "mailgun+api", refused: "Unable to send an email: Forbidden (code 401)"},
		{program: "symfony.php", scheme: "mailgun+https", refused: "Unable to send an email: Forbidden (code 401)"},
		{program: "symfony.php", scheme: "postmark+api", refused: "(code 10)", without: []string{"scheduled"}},
		{program: "symfony.php", scheme: "sendgrid+api", refused: "(code 401)", without: []string{"scheduled"}},
		{program: "laravel.php", scheme: "smtp", refused: "Failed to authenticate on SMTP server"},
		{program: "laravel.php", scheme: "mailgun", refused: `{"message":"Forbidden"}`},
	} {
		t.Run(strings.TrimSuffix(way.program, ".php")+" "+way.scheme, func(t *testing.T) {
			f, s := newMailer(t)
			f.rig.env = append(f.rig.env, "SAFEDELIVR_DIALECTS=mailgun,sendgrid,postmark")
			s.start(s.addr, nil, "serve")
			letters := slices.DeleteFunc(corpus(), func(l letter) bool { return slices.Contains(way.without, l.Subject) })
			if way.program == "wordpress.php" {
				// Mail is of one type there, and a file has the type of its name. A Message-ID stands beside PHPMailer's.
				for i := range letters {
					letters[i].MessageID = ""
					if letters[i].HTML != "" {
						letters[i].Text = ""
					}
					for k := range letters[i].Files {
						letters[i].Files[k].Params = nil
					}
				}
			}
			f.writeCorpus(letters)
			f.env = append(slices.Concat(env, f.env), "SCHEME="+way.scheme, "HTTPS="+f.proxy(s),
				"CA="+filepath.Join(f.folder, "ca.pem"), "WORDPRESS="+filepath.Join(share, "wordpress"),
				"PHPMAILER="+filepath.Join(share, "php", "libphp-phpmailer"))
			out := f.do("php", "-d", "error_reporting=22527", "-d",
				"include_path="+filepath.Join(share, "php"), way.program)
			require.Contains(t, out, "\nrefused ")
			require.Equal(t, way.program == "symfony.php", strings.Contains(out, "\nwrong "), out)
			require.Contains(t, out, way.refused)
			if way.scheme == "" {
				f.storedAs(out, letters)
			}
			require.Equal(t, len(letters), strings.Count(out, "sent"), out)
			f.arrived(letters)
		})
	}
}

// proxy has the product answer at https, as these libraries need it, and returns the address. The file ca.pem has the
// certificates to trust for HTTP and SMTP.
func (f *foreign) proxy(s *submission) string {
	f.t.Helper()
	to, err := url.Parse("http://" + f.addr)
	require.NoError(f.t, err)
	proxy := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(to))
	f.t.Cleanup(proxy.Close)
	ca, err := os.ReadFile(s.ca.File)
	require.NoError(f.t, err)
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw})
	require.NoError(f.t, os.WriteFile(filepath.Join(f.folder, "ca.pem"), append(ca, block...), 0o600))
	return proxy.Listener.Addr().String()
}
