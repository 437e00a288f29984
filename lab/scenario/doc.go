// Package scenario is what happens in a lab: a StatefulSet whose pod writes
// records to its claim, and the moves that it makes from node to node. The demo
// tells them, the end-to-end and chaos tests check them, the benchmarks time them.
//
// It hides the objects, the ways to move a pod (drain, delete, power cut), how the
// acknowledged records are gathered from the pods' logs, and how each wait is
// bounded and explains itself when it fails.
package scenario
