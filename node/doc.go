// Package node is belay's node agent as a Go API: pods go in, mounted paths and
// errors come out. It does for CSI volumes what kubelet's volume manager and
// plugin manager do, for nodes that have no kubelet: virtual nodes, edge agents,
// the lab.
//
// The API is level-based. The owner of the pods says which pods there are
// ([Agent.SetPod]) and whose containers have ended ([Agent.RemovePod]); how
// often and in which order does not matter. The agent does the rest: it
// registers CSI drivers by kubelet's plugin-registration protocol, keeps CSINode
// and the Node's annotations and topology labels, lists volumes in
// node.status.volumesInUse before they are staged and until they are unstaged,
// and stages, publishes, unpublishes and unstages them.
//
// What is staged and published is on disk before the driver is called. After a
// restart, however sudden, a new agent on the same root knows every volume and
// every pod that has one ([Agent.Pods]); the owner then sets the pods that it
// still runs, removes those that it does not, and calls [Agent.PodsSynced] when
// it has said all it knows.
//
// The owner creates the Node object and keeps it Ready; the agent writes nothing
// but the fields that docs/states.md gives to it.
package node
