// Package cluster runs one lab on this machine: a certificate authority, etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler as they come from upstream, the fabric of labdisk, attach/detach controller and attachers (belay's or upstream's) and
// a few nodes.
//
// It hides ports, certificates, command lines, the order of start and stop, and how to find and remove what a killed lab left behind.
package cluster
