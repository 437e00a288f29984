// Package sidecars is what the tests of attachers on a live lab share: a bare lab, and a CSI
// driver in the test's own process, which outlives every attacher, allows everything, and
// writes down what it was asked.
package sidecars
