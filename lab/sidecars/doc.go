// Package sidecars is shared by the tests of attachers on a live lab: a bare lab, and a CSI driver in the process of the test, which
// outlives every attacher, refuses nothing, and records its calls.
package sidecars
