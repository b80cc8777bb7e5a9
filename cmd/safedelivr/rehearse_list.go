package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
)

// listed is what rehearse --list --json prints.
type listed struct {
	Store     string           `json:"store"`
	Broker    string           `json:"broker"`
	Scenarios []listedScenario `json:"scenarios"`
}

type listedScenario struct {
	Name  string `json:"name"`
	Story string `json:"story"`
	NA    string `json:"not_applicable,omitempty"` // why it has no meaning here
}

// listScenarios prints the scenarios, and which have no meaning on this set-up.
func (c *cli) listScenarios(asJSON bool) error {
	set, err := c.setUp()
	if err != nil {
		return err
	}
	out := listed{Store: set.store(), Broker: set.broker()}
	for i := range scenarios {
		s := &scenarios[i]
		out.Scenarios = append(out.Scenarios, listedScenario{s.name, s.story, s.without(&set)})
	}
	if asJSON {
		return json.NewEncoder(c.out).Encode(out)
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for _, s := range out.Scenarios {
		note := ""
		if s.NA != "" {
			note = " (n/a here: " + s.NA + ")"
		}
		fmt.Fprintf(w, "%s\t%s%s\n", s.Name, s.Story, note)
	}
	return w.Flush()
}
