// Package preflight looks whether belay-controller may take over attach and detach: that
// no other attach/detach controller is at work, and that no volume needs one that belay
// is not. It only reads, and what it cannot read it does not take for granted.
package preflight
