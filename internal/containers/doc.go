// Package containers hides how the agent learns whether the containers of a pod have ended: from a runtime with CRI, or from a lock
// that the runtime holds for each pod. That an object is gone from the API, or has failed, does not tell.
package containers
