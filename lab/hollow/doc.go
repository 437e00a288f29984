// Package hollow plays the kubelets of many nodes over the API, without machines:
// goroutines that register the Nodes, list volumes in volumesInUse at once, "mount"
// what the same version of the Node lists as in use and as attached, mark pods
// Running, and on their deletion unmount, clear the list and let the pod go.
//
// Nothing is mounted. What a kubelet would have done is kept in a record: which
// volume was mounted on which node from when to when, and each time that the plane
// broke its word (a second node for an exclusive volume, a report withdrawn from
// under a mount).
package hollow
