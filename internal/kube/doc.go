// Package kube hides what belay needs from the Kubernetes API: the names that are shared with upstream's components, indexes over
// the watch caches, patches with preconditions, the barrier that keeps a stale cache from deciding, and the emission of events.
package kube
