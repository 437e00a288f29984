// Package mount hides the node's file system: the tree below kubelet's root, in
// which no name leads outside and nothing is removed across a mount, records
// that survive a power cut, and the kernel's mount table.
package mount
