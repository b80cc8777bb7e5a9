// Command gomail sends the corpus as Grafana and Supabase Auth send mail: with the same libraries, calls and settings.
// Both programs themselves are not run here.
package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	supabase "gopkg.in/gomail.v2"
	grafana "gopkg.in/mail.v2"
)

type letter struct {
	Subject, Name, From, Text, HTML string
	To, CC, BCC                     []string
	ReplyTo                         string `json:"reply_to"`
	MessageID                       string `json:"message_id"`
	Headers                         map[string]string
	Files                           []struct {
		Name, Type string
		Params     map[string]string
		ContentID  string `json:"content_id"`
		Content    []byte
	}
	At *time.Time
}

// headers returns the header of a mail, but for its sender.
func (l *letter) headers() map[string][]string {
	h := map[string][]string{"To": l.To, "Cc": l.CC, "Bcc": l.BCC, "Subject": {l.Subject}}
	for name, value := range map[string]string{"Message-ID": l.MessageID, "Reply-To": l.ReplyTo} {
		if value != "" {
			h[name] = []string{value}
		}
	}
	for name, value := range l.Headers {
		h[name] = []string{value}
	}
	if l.At != nil {
		h["X-Mailgun-Deliver-By"] = []string{l.At.Format(time.RFC1123Z)}
	}
	return h
}

func sendGrafana(l *letter, env map[string]string) error {
	host, port, err := net.SplitHostPort(env["GF_SMTP_HOST"])
	if err != nil {
		return err
	}
	m := grafana.NewMessage()
	m.SetHeaders(l.headers())
	m.SetAddressHeader("From", l.From, l.Name)
	body, kind := m.SetBody, "text/plain"
	for _, text := range []string{l.Text, l.HTML} {
		if text != "" {
			body(kind, text)
			body = func(kind, text string, _ ...grafana.PartSetting) { m.AddAlternative(kind, text) }
		}
		kind = "text/html"
	}
	for _, f := range l.Files {
		content := grafana.SetCopyFunc(func(w io.Writer) error {
			_, err := w.Write(f.Content)
			return err
		})
		kind := f.Type
		for name, value := range f.Params {
			kind += "; " + name + "=" + value
		}
		header := map[string][]string{"Content-Type": {kind}}
		if f.ContentID == "" {
			m.Attach(f.Name, content, grafana.SetHeader(header))
			continue
		}
		header["Content-ID"] = []string{"<" + f.ContentID + ">"}
		m.Embed(f.Name, content, grafana.SetHeader(header))
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	d := grafana.NewDialer(host, n, env["GF_SMTP_USER"], env["GF_SMTP_PASSWORD"])
	d.TLSConfig = &tls.Config{ServerName: host}
	if env["GF_SMTP_STARTTLS_POLICY"] == "MandatoryStartTLS" {
		d.StartTLSPolicy = grafana.MandatoryStartTLS
	}
	return d.DialAndSend(m)
}

func sendSupabase(l *letter, env map[string]string) error {
	m := supabase.NewMessage()
	m.SetHeaders(l.headers())
	m.SetAddressHeader("From", l.From, l.Name)
	m.SetBody("text/html", l.HTML)
	n, err := strconv.Atoi(env["GOTRUE_SMTP_PORT"])
	if err != nil {
		return err
	}
	return supabase.NewDialer(env["GOTRUE_SMTP_HOST"], n, env["GOTRUE_SMTP_USER"], env["GOTRUE_SMTP_PASS"]).DialAndSend(m)
}

func main() {
	raw, err := os.ReadFile("../corpus.json")
	if err != nil {
		log.Fatal(err)
	}
	var letters []letter
	if err := json.Unmarshal(raw, &letters); err != nil {
		log.Fatal(err)
	}
	recipe, err := os.ReadFile("../recipe.txt")
	if err != nil {
		log.Fatal(err)
	}
	settings := func(key string) map[string]string {
		env := map[string]string{}
		for line := range strings.Lines(string(recipe)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			env[name] = strings.ReplaceAll(value, "KEY", key)
		}
		return env
	}
	send := sendGrafana
	if os.Getenv("APPLICATION") == "Supabase" {
		send = sendSupabase
	}
	for _, l := range letters {
		if err := send(&l, settings(os.Getenv("KEY"))); err != nil {
			log.Fatal(l.Subject, err)
		}
		fmt.Println("sent")
	}
	fmt.Println("refused", send(&letters[0], settings("wrong")))
}
