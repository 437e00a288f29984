// Package preflight checks a cluster. Run checks whether belay-controller may take over attach and detach: whether another attach/detach
// controller is running, and whether any volume needs one that belay is not. Health checks whether the cluster is healthy for volumes
// and ready for belay, and can include what Run checks. Both only read. What could not be determined is Unknown, never OK.
package preflight
