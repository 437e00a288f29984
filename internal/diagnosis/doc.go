// Package diagnosis hides how the objects of a cluster are joined into an answer: what a pod, a claim, a volume or a node waits for,
// who has the volume, what happens by itself, and what a person can safely do. It does no I/O and reads no clock: a Snapshot goes
// in, findings come out, so a terminal, a web page and a test see the same.
//
// What the snapshot does not contain is unknown, never absent, unless the API server said so.
package diagnosis
