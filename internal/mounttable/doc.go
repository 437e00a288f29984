// Package mounttable hides who else on this machine has a volume mounted: the mount tables of all
// processes, which mounts of them go when this process unmounts its own, and block devices that are open.
//
// A container's mounts are its own. They stay when the paths that they were made from are unmounted, and its
// processes go on writing. So before a volume is taken from a node, [Table.Holders] has to be empty. What
// cannot be read counts as a holder that is not known.
package mounttable
