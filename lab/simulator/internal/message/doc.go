// Package message holds what the simulator and the providers it imitates know of
// mail: stored batches and their copies, outcomes, and the events of a copy.
package message
