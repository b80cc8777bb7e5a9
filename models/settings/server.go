package settings

// Server are the settings of a provider that is a mail server.
type Server struct {
	// name or address of the mail server; required for SMTP and LMTP, others have none. LMTP also takes the path of a
	// socket
	Host string `koanf:"host"`
	// port of the mail server; 0: 465 with `tls`, 587 with `starttls`, 25 with `none`
	Port int `koanf:"port" range:"0..65535"`
	// encryption of the connection. If it is not set, it is `tls` on port 465, and else `starttls`. `none` is only for a
	// server on this machine
	TLS string `koanf:"tls" oneof:"none,starttls,tls"`
	// user at the mail server; a relay that knows this machine needs none
	User string `koanf:"user"`
	// password of the user, or an access token if the server takes only XOAUTH2. `oauth_token_url` gets new tokens
	Password string `koanf:"password"`
}

// The values of Server.TLS.
const (
	TLS      = "tls"      // from the beginning
	StartTLS = "starttls" // by a command
	NoTLS    = "none"
)

// OAuth are the settings of a mail server at which access tokens take the place of passwords. Without a URL there are
// none.
type OAuth struct {
	// URL at which a mail service gives access tokens, like `https://oauth2.googleapis.com/token`; see
	// [access tokens](smtp.md#access-tokens)
	TokenURL string `koanf:"oauth_token_url"`
	// ID of the client that gets the tokens
	ClientID string `koanf:"oauth_client_id"`
	// secret of that client
	ClientSecret string `koanf:"oauth_client_secret"`
	// refresh token of the user. Without one, the client gets tokens in its own name
	RefreshToken string `koanf:"oauth_refresh_token"`
	// what the tokens are for, with spaces between, like `https://outlook.office365.com/.default`; not with a refresh
	// token
	Scope string `koanf:"oauth_scope"`
}

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
	// password of the user at the IMAP server. Without one it gets access tokens, if `oauth_token_url` is set
	BouncePassword string `koanf:"bounce_imap_password"`
}
