// Package attachment hides the rules by which a volume is attached to nodes and detached from them. Decide is all of it: given what
// is wanted and what is known about one volume across all nodes, it returns what to do next and why. It does no I/O, reads no clock
// and keeps no state; equal arguments give equal decisions.
//
// The comments refer to the invariants S1, S2, S3, S6 and S9 of docs/invariants.md: no second writer, no detach while in use,
// withdraw before detach, writes bound to the object decided on, and reports of confirmed attachments only.
package attachment
