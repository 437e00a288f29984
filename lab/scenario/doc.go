// Package scenario has what the demo, the end-to-end and chaos tests and the benchmarks do in a lab: a StatefulSet whose pod writes
// records to its claim, and the moves of that pod from node to node.
//
// It hides the objects, how a pod is moved (drain, delete, power cut), how the acknowledged records are collected from the logs of the
// pods, and the limit and the error message of each wait.
package scenario
