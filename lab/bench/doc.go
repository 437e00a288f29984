// Package bench measures belay against the goals of the project.
//
// `belay-lab bench controller` compares three attach/detach controllers: upstream's, alone in a kube-controller-manager;
// belay-controller; and a floor, which makes the same API writes at the earliest possible moment and does nothing else. All three run
// in one bare lab (a real API server and etcd, no other controller), in turn, with the same belay-attacher and a driver that responds
// at once. Nodes are objects only: the bench writes what kubelets would write.
//
// `belay-lab bench attacher` compares upstream's csi-attacher with belay-attacher, over the same driver, whose latency is set. There
// the bench acts as the controller: it creates and deletes the VolumeAttachments.
//
// `belay-lab bench node` measures the latency, CPU and memory of belay-node with a driver in memory. There the bench acts as controller
// and attacher: it creates attached volumes and reports them.
//
// `belay-lab bench recovery` takes the nodes of a complete lab away, one after the other, and measures how long it takes until a
// StatefulSet's pod writes again on another node, hop by hop.
package bench
