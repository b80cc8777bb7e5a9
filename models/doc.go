// Package models defines Safedelivr's types, their rules, and the contracts Store,
// Broker and Adapter. It imports nothing else of the project.
//
// Resolve is the state function: the state of every log of a chunk depends only on
// the chunk's recipients, its ledger (decisions) and its facts (what happened).
package models
