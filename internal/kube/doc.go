// Package kube hides what belay needs of the Kubernetes API: the names that
// upstream's components share with it, indexes over the watch caches, patches
// with preconditions, the gate that keeps a stale cache from deciding, and the
// way of an event to the API server.
package kube
