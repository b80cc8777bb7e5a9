package settings

// Amazon are the settings of a provider that is a region of Amazon SES. It has an access key in place of an API key.
type Amazon struct {
	// region of Amazon SES, like `eu-central-1`; required there, others have none. Each region is a provider of its own
	Region string `koanf:"region"`
	// ID of the access key at Amazon; required there
	AccessKeyID string `koanf:"access_key_id"`
	// secret of the access key; required at Amazon
	SecretAccessKey string `koanf:"secret_access_key"`
	// configuration set that mail names at Amazon SES, and that reports its events. If it is not set, it is the default
	// one of the sender's domain
	ConfigurationSet string `koanf:"configuration_set"`
	// ARNs of the topics of Amazon SNS that may bring events, separated by commas. Without one, webhooks are refused
	Topics []string `koanf:"topics"`
}
