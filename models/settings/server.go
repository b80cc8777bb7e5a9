package settings

// Server are the settings of a provider that is a mail server.
type Server struct {
	// name or address of the mail server; required for SMTP and LMTP, others have none. LMTP also takes the path of a socket
	Host string `koanf:"host"`
	// port of the mail server; 0: 465 with `tls`, 587 with `starttls`, 25 with `none`
	Port int `koanf:"port" range:"0..65535"`
	// encryption of the connection. If it is not set, it is `tls` on port 465, and else `starttls`. `none` is only for a
	// server on this machine
	TLS string `koanf:"tls" oneof:"none,starttls,tls"`
	// user at the mail server; a relay that knows this machine needs none
	User string `koanf:"user"`
	// password of the user, or an access token if the server takes only XOAUTH2
	Password string `koanf:"password"`
}

// The values of Server.TLS.
const (
	TLS      = "tls"      // from the beginning
	StartTLS = "starttls" // by a command
	NoTLS    = "none"
)
