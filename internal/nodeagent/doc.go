// Package nodeagent hides the shell around nodevolume.Decide on one node: it
// learns which volumes the pods want, what the Node says, which drivers are
// registered and what the records on disk hold, asks Decide for each volume, and
// does what it says. One volume is worked on by one goroutine at a time; volumes
// do not wait for each other.
package nodeagent
