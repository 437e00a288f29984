// Package nodes is a lab node from the inside: the small init that is process 1
// of the node's namespaces, the children that it keeps running (the CSI node
// driver, and either containerd with a real kubelet or belay's own node agent),
// the pods' containers of the belay kind, and what the lab needs to steer a node
// from the outside: its configuration, its control socket and its traces on the
// machine.
//
// A node is one process tree in its own mount and pid namespace. Killing the
// process that made the namespaces with SIGKILL is a power cut: every process of
// the node dies and its mounts vanish. What outlives a power cut lies in the
// node's folder: the node's disk.
package nodes
