// Package preflight checks whether belay-controller may take over attach and detach: whether
// another attach/detach controller is running, and whether any volume needs one that belay
// is not. It only reads. What it cannot determine counts against the takeover.
package preflight
