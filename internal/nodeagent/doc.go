// Package nodeagent runs nodevolume.Decide on one node. It observes the pods, the Node, the registered CSI drivers and the records on disk,
// asks Decide for the next step of each volume, and performs it. One goroutine at a time works on a volume; volumes do not wait for each
// other.
//
// The files are in rooms, which know each other in one direction only: ARCHITECTURE.md has the picture.
package nodeagent
