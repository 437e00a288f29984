// Package node is belay's node agent as a Go API: its owner sets pods, and gets mounted paths and errors. It does for CSI volumes what
// kubelet's volume manager and plugin manager do, for nodes that have no kubelet: virtual nodes, edge agents, the lab.
//
// The API is level-based. The owner of the pods reports which pods there are ([Agent.SetPod]) and whose containers have ended
// ([Agent.RemovePod]), as often and in any order as it likes. The agent does the rest: it registers CSI drivers by kubelet's
// plugin-registration protocol, maintains CSINode and the Node's annotations and topology labels, lists volumes in
// node.status.volumesInUse before they are staged and until they are unstaged, and stages, publishes, unpublishes and unstages them.
//
// A pod's CSI volumes are those of its claims, of its generic ephemeral volumes, and the inline volumes in its spec
// (pod.spec.volumes[].csi). An inline volume is only published and unpublished: it is never attached, listed in volumesInUse or staged.
// Its driver's CSIDriver must list the lifecycle mode Ephemeral; until it does the pod waits, and an event reports that.
//
// Whatever is staged and published is recorded on disk before the driver is called. After a restart, however sudden, a new agent on the
// same root knows every volume and every pod that has one ([Agent.Pods]). The owner then sets the pods that it still runs, removes the
// others, and calls [Agent.PodsSynced] when it has reported all of them. Until then nothing of theirs is unmounted.
//
// # What the owner does
//
//   - It creates the Node object, with the annotation that lets the controller attach its volumes (docs/adopt-node.md explains why), and
//     keeps it Ready, with its Lease: after six minutes the attach/detach controller detaches volumes by force from a node that is not
//     Ready. The agent writes only the fields that docs/states.md assigns to it.
//   - It calls [Agent.RemovePod] when a pod's containers have ended, not before, and deletes the pod's object when
//     [Agent.WaitUnmounted] returns. As the runtime, it guarantees that they have ended; the API does not show it.
//   - It provides a root that outlives the agent, below which mounts propagate to the drivers and to the pods, and runs the drivers'
//     node parts with their registrars.
//
// The example is a provider for virtual-kubelet. docs/adopt-node.md has the rest: permissions, checks, changing from a kubelet and back.
package node
