// Package fencing hides the rules by which belay decides that a node is lost, what proves that it cannot write any more, and what is
// done to it in which order. Silences and Suspect find the node; Decide is everything after that: given the stored state of a fence and
// what is known now, it returns what to store, what to ask and what to change next, and why it waits. The package does no I/O and reads
// no clock; equal arguments give equal decisions.
//
// It is the only maker of a Proof. A Proof says that one boot of one machine has ended, or that it cannot write to a volume. It does not
// say that a machine is off: power comes back by itself, a boot that has ended does not.
package fencing
