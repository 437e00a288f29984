// Package bench counts and times the plane against the aims of the project.
//
// `belay-lab bench controller` sets three attach/detach controllers side by side: upstream's, alone in a
// kube-controller-manager; belay-controller; and a floor, which makes the same API writes at the first moment at which they
// can be made and does nothing else. All three work in one bare lab (a real API server and etcd, no other controller), in
// turn, over the same belay-attacher and a driver that answers at once. Nodes are objects only: the bench writes what
// kubelets would write, when it is time for it.
//
// `belay-lab bench attacher` sets upstream's csi-attacher and belay-attacher side by side, over the same driver, which may take
// its time. There the bench plays the controller: it makes and deletes the VolumeAttachments.
//
// `belay-lab bench node` measures the latency, CPU and memory of belay-node over a driver in memory. There the bench plays controller and
// attacher: the volumes are attached, and it reports them.
package bench
