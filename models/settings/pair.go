package settings

// Pair has the second part of an API key that has two.
type Pair struct {
	// second part of an API key that has two; required for Mailjet, others have none
	SecretKey string `koanf:"secret_key"`
}
