// Package cluster runs one lab on this machine: a certificate authority, etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler as they come from upstream, the fabric of labdisk,
// the attach plane (belay's or upstream's) and a few nodes.
//
// It hides ports, certificates, command lines, the order of starting and stopping, and how to
// find and remove what a lab that was killed left behind.
package cluster
