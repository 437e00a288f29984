// Package containers hides who runs the containers of this node's pods: a runtime that speaks CRI, or one that
// holds a lock for each pod. Both answer one question, whether a pod's containers have ended. That an object is
// gone from the API, or marked Failed, does not answer it.
package containers
