// Package models holds the nouns of Safedelivr, their rules, and the
// contracts (Store, Broker, Provider) that the rest of the program is written
// against. It imports nothing else of the project.
//
// The heart is Resolve: the state of every log of a chunk is a pure function
// of the chunk's recipients, its ledger (what was decided) and its facts (what
// is known to have happened).
package models
