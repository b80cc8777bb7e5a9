package config

import (
	"fmt"
	"os"

	"github.com/safedelivr/safedelivr/models/settings"
)

// Defaults returns the configuration in which nothing is set.
func Defaults() Config {
	c := settings.Default[Config]()
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	c.Worker = fmt.Sprintf("%s-%d", host, os.Getpid())
	return c
}
