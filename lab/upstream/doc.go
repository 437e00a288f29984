// Package upstream builds the programs of Kubernetes, etcd and the CSI sidecars that the lab runs, from the versions in lab/go.mod or,
// for another minor version of Kubernetes, in a module below this folder. They are kept in the user's cache folder.
//
// It hides which program is built from which module with which linker flags, when something must be rebuilt, and how to explain a
// failed build.
package upstream
