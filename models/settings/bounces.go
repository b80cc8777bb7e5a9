package settings

// Bounces are the settings of the mailbox to which SMTP and LMTP servers send reports. Without an address there are none.
type Bounces struct {
	// address for reports about mail sent by SMTP and LMTP, like `bounces@example.com`; see [reports](smtp.md#reports)
	BounceAddress string `koanf:"bounce_address"`
	// path of the mailbox with the reports, in the format Maildir. Either this or an IMAP server is required with the
	// address
	BounceMaildir string `koanf:"bounce_maildir"`
	// IMAP server of the mailbox with the reports
	BounceHost string `koanf:"bounce_imap_host"`
	// port of the IMAP server; 0: 993 with `tls`, 143 with `starttls` and `none`
	BouncePort int `koanf:"bounce_imap_port" range:"0..65535"`
	// encryption of the connection to the IMAP server. If it is not set, it is `tls`. `none` is only for a server on this
	// machine
	BounceTLS string `koanf:"bounce_imap_tls" oneof:"none,starttls,tls"`
	// user at the IMAP server
	BounceUser string `koanf:"bounce_imap_user"`
	// password of the user at the IMAP server
	BouncePassword string `koanf:"bounce_imap_password"`
}
