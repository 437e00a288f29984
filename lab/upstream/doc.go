// Package upstream builds the programs of Kubernetes, etcd and the CSI sidecars that the lab runs,
// from the modules that lab/go.mod pins, and keeps them in the user's cache folder.
//
// It hides what is built from where with which stamps, when something must be built again, and
// what a failed build wants to say.
package upstream
