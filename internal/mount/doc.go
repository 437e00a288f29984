// Package mount hides the node's file system: the tree below kubelet's root, which no name can leave and where nothing is removed
// across a mount, records that survive a power cut, and the kernel's mount table.
package mount
