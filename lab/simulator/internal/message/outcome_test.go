package message

import "testing"

func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]Outcome{
		"hardbounce@sim.test":              HardBounce,
		"hardbounce+17@sim.test":           HardBounce,
		"hardbounce.x.y@a.b.test":          HardBounce,
		"HardBounce@SIM.TEST":              HardBounce,
		"hardbounces@sim.test":             Deliver,
		"hardbounce@example.com":           Deliver,
		"hardbounce@test":                  Deliver,
		"hardbounce@.test":                 Deliver,
		"softbounce@sim.test":              Defer,
		"defer-then-deliver@sim.test":      Defer,
		"suppressed-bounce@sim.test":       SuppressedBounce,
		"blocked-sg+1@sim.test":            Blocked,
		"blocked-mg+1@sim.test":            Deliver,
		"suppressed-bounce-sg@sim.test":    SuppressedBounce,
		"suppressed-bounce-mg@sim.test":    Deliver,
		"nonsense-sg@sim.test":             Deliver,
		"-sg@sim.test":                     Deliver,
		"sg@sim.test":                      Deliver,
		"refused-sg.7@sim.test":            Refused,
		"no address":                       Deliver,
		"anyone.hardbounce@sim.test":       Deliver,
		"defer-then-deliver-sg+9@sim.test": Defer,
	} {
		if have := OutcomeOf(addr, "sg"); have != want {
			t.Errorf("%s: %s, want %s", addr, have, want)
		}
	}
	for _, name := range OutcomeNames() {
		if OutcomeOf(name+"+1@sim.test", "sg").String() == "deliver" && name != "deliver" {
			t.Errorf("%s has no outcome", name)
		}
	}
}
