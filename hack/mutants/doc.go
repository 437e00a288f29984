// Package mutants takes rules out, one by one, and expects a test to fail for each: those of recovery (ADR 23), those of the node agent's
// search for users of a volume (S7), and what each row of the conformance tables rests on that is marked Safety. `make mutants` runs it.
package mutants
