// Package bench counts and times the plane against the aims of the project.
//
// `belay-lab bench controller` sets three attach/detach controllers side by side: upstream's, alone in a
// kube-controller-manager; belay-controller; and a floor, which makes the same API writes at the first moment at which they
// can be made and does nothing else. All three work in one bare lab (a real API server and etcd, no other controller), in
// turn, over the same belay-attacher and a driver that answers at once. Nodes are objects only: the bench writes what
// kubelets would write, when it is time for it.
package bench
