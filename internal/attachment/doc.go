// Package attachment hides the rules by which a volume is attached to nodes and
// detached from them. Decide is the whole of it: given what is wanted and what is
// known of one volume across all nodes it returns what to do next and why. It does
// no I/O, reads no clock and keeps nothing; equal arguments give equal decisions.
//
// The invariants named S1, S2, S3, S6 and S9 in the comments are those of the
// project's design: no second writer, no detach while in use, withdraw before
// detach, writes bound to the object decided on, and reports of confirmed
// attachments only.
package attachment
