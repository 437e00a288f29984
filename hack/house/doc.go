// Package house holds tests of the whole repository that no linter has: that each reason is spelled once and has a
// runbook, that each event, alert and field of the output is documented, that every link and symbol that a document names exists, and that no
// document, message, comment or test name uses a banned phrase. Who may import whom, and that nothing on the path of a
// volume polls or sleeps, is in .golangci.yml (depguard, forbidigo). It has no code of its own outside its tests.
package house
