// Package attachdetach attaches volumes to the nodes whose pods need them and
// detaches them when nobody does: it observes one volume through the watch caches,
// lets attachment.Decide decide, and takes the steps at the API server. It keeps
// nothing that matters in memory; a kill at any moment loses nothing.
//
//	watch.go     an event -> the few volumes that it concerns
//	world.go     the caches and their indexes
//	snapshot.go  objects -> attachment.Desired, attachment.Observed
//	apply.go     attachment.Step -> API call
//	reporter.go  one writer of volumesAttached per node
//	announce.go  decisions -> events on pods
package attachdetach
