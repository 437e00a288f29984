// Package nodes is the inside of a lab node: the init process (PID 1 of the node's namespaces), the children that it keeps running
// (the CSI node driver, and either containerd with a kubelet or belay's node agent), and the containers of the belay kind; and what the
// lab needs to control a node: its configuration, its control socket, and what it leaves on the machine.
//
// A node is one process tree in its own mount and pid namespace. SIGKILL to the process that made the namespaces is a power cut: every
// process of the node dies and its mounts vanish. What survives a power cut is in the node's folder, which is its disk.
package nodes
