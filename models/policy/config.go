package policy

import "time"

// Config has the numbers of the decision table.
type Config struct {
	MaxRetries     int             // retries of one recipient; the first attempt does not count
	Recheck        time.Duration   // how soon a held recipient is reconciled again
	EvidenceWindow time.Duration   // how long an unknown outcome waits for evidence after its call must have ended
	FinalEventWait time.Duration   // how long accepted mail waits for a final event
	Delays         []time.Duration // before retry 1, 2, ... through the same provider; the last one repeats
}

// delay returns the wait before retry n (from 1) through the same provider, without jitter, of mail
// that expires in left. Retries come closer together near the expiry: a wait is an eighth of what
// is left at most, and at least a second unless Delays has less.
func (c *Config) delay(n int, left time.Duration) time.Duration {
	d := c.Delays[min(max(n-1, 0), len(c.Delays)-1)]
	return min(d, max(left/8, time.Second))
}
