// Package node is belay's node agent as a Go API. It does for CSI volumes what kubelet's volume manager and plugin manager do, on nodes
// without kubelet: virtual nodes, edge agents, the lab.
//
// The API is level-based. The caller sets the pods ([Agent.SetPod]) and reports whose containers have ended ([Agent.RemovePod]), in any
// order and as often as it likes. The agent registers CSI drivers by kubelet's plugin registration protocol, maintains the CSINode and the
// Node's annotations and topology labels, lists volumes in node.status.volumesInUse from before they are staged until they are unstaged,
// and stages, publishes, unpublishes and unstages them.
//
// A pod's CSI volumes are those of its claims and of its generic ephemeral volumes, and the inline volumes in pod.spec.volumes[].csi.
// Inline volumes are only published and unpublished: they are not attached, not listed in volumesInUse and not staged. Their CSIDriver must
// list the lifecycle mode Ephemeral. Until it does the pod waits, and an event reports that.
//
// The agent records on disk what it stages and publishes before it calls the driver. After a restart or a crash, a new agent on the same
// root knows every volume and every pod that has one ([Agent.Pods]). The caller then sets the pods that it still runs, removes the others,
// and calls [Agent.PodsSynced]. Until then the volumes of pods that it has not mentioned stay mounted.
//
// # Responsibilities of the caller
//
//   - It creates the Node, with the annotation that has the controller attach its volumes (see docs/adopt-node.md), and keeps it Ready
//     and its Lease renewed: the attach/detach controller force-detaches volumes from a node that has not been Ready for six minutes. The
//     agent writes only the fields that docs/states.md assigns to it.
//   - It calls [Agent.RemovePod] when a pod's containers have ended, not before, and completes the pod's deletion after
//     [Agent.WaitUnmounted] has returned. Only the runtime knows that the containers have ended; the pod's object does not show it.
//   - It gives the agent a root that outlives it, with mount propagation to the drivers and the pods, and runs the drivers' node plugins
//     with their registrars.
//
// The example is a provider for virtual-kubelet. docs/adopt-node.md covers permissions, checks, and migrating a node from and to kubelet.
package node
