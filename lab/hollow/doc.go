// Package hollow acts as the kubelets of many nodes over the API, without machines. Each hollow node registers, lists volumes in
// volumesInUse at once, "mounts" what one version of the Node lists as in use and as attached, marks pods Running, and on their deletion
// unmounts, clears the list and removes the pod.
//
// Nothing is mounted. A record keeps what a kubelet would have done: which volume was mounted on which node from when to when, and each
// violation by the controller (a second node for an exclusive volume, a report withdrawn while the volume was mounted).
package hollow
