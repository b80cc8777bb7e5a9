package web

import (
	"slices"
	"strconv"
	"sync"

	"github.com/safedelivr/safedelivr/models"
)

// Provider is what pages show of a provider besides its health.
type Provider struct {
	Name     string
	Title    string // product name, like SendGrid
	Webhooks bool   // it reports events by webhook
	Verified bool   // a webhook key is configured
	Boxes    []models.EventBox
}

// Providers are the configured providers, with the names and colours by which pages show them.
type Providers struct {
	configured []Provider
	verified   sync.Map // by name of a provider: what SetVerified said last
}

// NewProviders returns the configured providers.
func NewProviders(configured []Provider) *Providers { return &Providers{configured: configured} }

// SetVerified sets whether a webhook key of a provider is configured, after a change.
func (p *Providers) SetVerified(provider string, verified bool) { p.verified.Store(provider, verified) }

// Info returns the configuration of a provider.
func (p *Providers) Info(name string) Provider {
	for _, a := range p.configured {
		if a.Name == name {
			if now, changed := p.verified.Load(name); changed {
				a.Verified, _ = now.(bool)
			}
			return a
		}
	}
	return Provider{Name: name, Title: name}
}

// Has reports whether a provider is configured.
func (p *Providers) Has(name string) bool { return slices.Contains(p.Names(), name) }

// Names returns the names of the providers.
func (p *Providers) Names() (out []string) {
	for i := range p.configured {
		out = append(out, p.configured[i].Name)
	}
	return out
}

// Named returns the title and the name of a provider, like "SendGrid (sg)".
func (p *Providers) Named(name string) string {
	if title := p.Info(name).Title; title != name {
		return title + " (" + name + ")"
	}
	return name
}

const hues = 6 // number of provider colours in the style sheet

// Hue returns the number of a provider's colour, from 1.
func (p *Providers) Hue(name string) int {
	if i := slices.Index(p.Names(), name); i >= 0 {
		return i%hues + 1
	}
	return hues
}

// Colour returns the custom property of the style sheet that has a provider's colour.
func (p *Providers) Colour(name string) string { return "--p" + strconv.Itoa(p.Hue(name)) }
