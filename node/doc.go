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
// A pod's CSI volumes are those of its claims, of its generic ephemeral volumes, and the
// inline ones that stand in its spec (pod.spec.volumes[].csi). An inline volume is
// published and unpublished, and that is all: no attach, no place in volumesInUse, no
// stage. Its driver's CSIDriver must list the lifecycle mode Ephemeral; until it does the pod
// waits, and an event says so.
//
// What is staged and published is on disk before the driver is called. After a
// restart, however sudden, a new agent on the same root knows every volume and
// every pod that has one ([Agent.Pods]); the owner then sets the pods that it
// still runs, removes those that it does not, and calls [Agent.PodsSynced] when
// it has said all it knows. Until then nothing of theirs is unmounted.
//
// # What the owner does
//
//   - It creates the Node object, with the annotation that has its volumes attached by the
//     controller (docs/adopt-node.md says why), and keeps it Ready, with its Lease: from a node that is
//     not Ready the attach/detach controller takes volumes by force after six minutes.
//     The agent writes nothing but the fields that docs/states.md gives to it.
//   - It calls [Agent.RemovePod] when a pod's containers have ended, not before, and lets
//     the pod's object go when [Agent.WaitUnmounted] returns. That they have ended is its own word: it is
//     the runtime. What the API says of the pod is none.
//   - It gives the agent a root that outlives it, below which mounts propagate to the
//     drivers and to the pods, and runs the drivers' node parts with their registrars.
//
// The example is a provider as virtual-kubelet wants it. docs/adopt-node.md has the rest:
// rights, checks, changing over from and to a kubelet.
package node
