// Package attachdetach attaches volumes to the nodes whose pods need them and detaches them when no pod does. It
// observes one volume through the watch caches, calls attachment.Decide, and takes the steps at the API server.
// Correctness does not depend on memory: the process may be killed at any time.
//
//	watch.go      events -> keys of the affected volumes
//	state.go      caches and indexes
//	observe.go    objects -> attachment.Desired, attachment.Observed
//	act.go        attachment.Step -> API requests
//	reporter.go   writes to node.status.volumesAttached
//	podevents.go  decisions -> events on pods
package attachdetach
