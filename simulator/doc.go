// Package simulator holds stand-ins for the HTTP APIs of email providers:
// SendGrid and Mailgun. The providers' real SDKs talk to them, and they send
// back webhooks that are signed as the real ones are.
//
// A [Simulator] is an [http.Handler]. Each account lives under its own path
// prefix: the base URL of the SendGrid account "sg" is http://host/sg, that of
// the Mailgun account "mg" is http://host/mg/v3. Under /control/ is a JSON API
// that scripts all of it from outside ([Client] speaks it).
//
//	sim := simulator.New(simulator.Options{RecipientKey: "sd_r"})
//	defer sim.Close()
//	sim.AddAccount(simulator.Account{Name: "sg", Kind: simulator.SendGrid, Key: "k", WebhookURL: hook})
//	server := httptest.NewServer(sim)
//
// Three things can be scripted. The answer to a call and what becomes of
// accepted mail are set by a [Fault], for an account, for the next N calls, or
// for addresses that match a pattern. What becomes of one recipient is set by
// the address itself: hardbounce@sim.test bounces, blocked-sg+7@sim.test is
// blocked by the account sg alone (see [Outcomes]). Every other address is
// delivered.
//
// What was accepted is kept, a few dozen bytes a copy, so that a test can prove
// that each recipient got exactly one: see [Simulator.Copies],
// [Simulator.EachCopy] and [Stats].
//
// The package knows nothing of the product that it is used to test. The
// simulator has no access control on /control/: bind it to loopback.
package simulator
