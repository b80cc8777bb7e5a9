// Package simulated has the two simulated providers that the demo, the fault drill, the end-to-end tests and the
// benchmarks send through, and the settings of Safedelivr that belong to them.
package simulated

import "github.com/safedelivr/safedelivr/lab/simulator"

// RecipientKey is the metadata that names a recipient in what the adapters send.
const RecipientKey = "sd_log"

// SendGridKey signs the simulated SendGrid's webhooks, and SendGridPublicKey verifies them. They protect nothing: they
// are here so that a demonstration needs no set-up.
const (
	SendGridKey = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgvItwxXPD4RZPNv1nfN8wANLJrjQpKpDYGbxN" +
		"lj7QGzuhRANCAAQ39MPiABZmeyXhiYOZGsvwNYuhJ1WNM65cOSUaleSiYQsnEn3WQXiQdElufwA8jYrNQrsysL1Kv715M6wyMLW7"
	SendGridPublicKey = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEN/TD4gAWZnsl4YmDmRrL8DWLoSdVjTOu" +
		"XDklGpXkomELJxJ91kF4kHRJbn8API2KzUK7MrC9Sr+9eTOsMjC1uw=="
)

// The other credentials of the simulated providers.
const (
	APIKey     = "simulated-key"
	MailgunKey = "simulated-signing-key" // signs Mailgun's webhooks
	Domain     = "mail.demo.test"
)

// Names are the names of the providers.
var Names = []string{"sg", "mg"}

// Accounts returns the providers as the simulator knows them: SendGrid as sg and Mailgun as mg. Webhooks go to the
// address hooks followed by the name; they go nowhere if it is empty.
func Accounts(hooks string) []simulator.Account {
	url := func(name string) string {
		if hooks == "" {
			return ""
		}
		return hooks + name
	}
	return []simulator.Account{
		{
			Name:       "sg",
			Kind:       simulator.SendGrid,
			Key:        APIKey,
			SigningKey: SendGridKey,
			WebhookURL: url("sg"),
		},
		{
			Name:       "mg",
			Kind:       simulator.Mailgun,
			Key:        APIKey,
			Domain:     Domain,
			SigningKey: MailgunKey,
			WebhookURL: url("mg"),
		},
	}
}

// Settings returns the environment of a Safedelivr that sends through the simulator at url. Each of more, such as
// TIMEOUT=2s, is set for both providers.
func Settings(url string, more ...string) []string {
	out := []string{
		"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_API_KEY=" + APIKey,
		"SAFEDELIVR_PROVIDERS_SG_BASE_URL=" + url + "/sg",
		"SAFEDELIVR_PROVIDERS_SG_WEBHOOK_KEY=" + SendGridPublicKey,
		"SAFEDELIVR_PROVIDERS_MG_KIND=mailgun",
		"SAFEDELIVR_PROVIDERS_MG_API_KEY=" + APIKey,
		"SAFEDELIVR_PROVIDERS_MG_BASE_URL=" + url + "/mg",
		"SAFEDELIVR_PROVIDERS_MG_DOMAIN=" + Domain,
		"SAFEDELIVR_PROVIDERS_MG_WEBHOOK_KEY=" + MailgunKey,
	}
	for _, m := range more {
		out = append(out, "SAFEDELIVR_PROVIDERS_SG_"+m, "SAFEDELIVR_PROVIDERS_MG_"+m)
	}
	return out
}
