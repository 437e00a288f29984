// Package field makes situations in which people ask why a pod does not start, on a cluster that has never seen belay, and prints what
// `kubectl belay` answers.
//
// The situations are in the folder situations, one a file, each from public reports. API server, scheduler and claim controllers are real; no
// kubelet and no driver runs, so what these would write is part of a situation. The answers are stored in testdata:
//
//	go test ./field -update    rewrites them: read the difference before you commit it
package field
