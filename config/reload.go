package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// The settings that a process takes over while it runs. A provider's are those in providerSecrets, too.
var (
	reloadable         = []string{"log", "github.client_secret", "github.operators", "github.logins", "github.orgs"}
	providerReloadable = []string{"access_key_id", "topics", "oauth_client_id"}
)

// NeedRestart returns the sorted names of the settings in which next differs and that a process reads only when it
// starts. A provider that only one of them has counts as one setting.
func (c *Config) NeedRestart(next *Config) []string {
	var out []string
	before, after := map[string]string{}, map[string]string{}
	flatten(before, "", reflect.ValueOf(*c))
	flatten(after, "", reflect.ValueOf(*next))
	for key, value := range before {
		if now, ok := after[key]; ok && now != value && !isReloadable(key) {
			out = append(out, key)
		}
	}
	for _, name := range slices.Concat(c.ProviderNames(), next.ProviderNames()) {
		_, had := c.Providers[name]
		if _, has := next.Providers[name]; had != has {
			out = append(out, "providers."+name)
		}
	}
	slices.Sort(out)
	return out
}

func isReloadable(key string) bool {
	parts := strings.Split(key, ".")
	if len(parts) == 3 && parts[0] == "providers" {
		return slices.Contains(providerSecrets, parts[2]) || slices.Contains(providerReloadable, parts[2])
	}
	return slices.Contains(reloadable, key)
}

// flatten puts the settings of a struct or a map of structs into out, by their names.
func flatten(out map[string]string, name string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			switch f := v.Type().Field(i); {
			case f.Anonymous:
				flatten(out, name, v.Field(i))
			case f.IsExported():
				flatten(out, strings.TrimPrefix(name+"."+f.Tag.Get("koanf"), "."), v.Field(i))
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			flatten(out, name+"."+key.String(), v.MapIndex(key))
		}
	default:
		out[name] = fmt.Sprintf("%#v", v.Interface())
	}
}
