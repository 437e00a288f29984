// Package mounttable hides which other users on this machine have a volume mounted: the mount tables of all processes, which of
// their mounts go when this process unmounts its own, and block devices that are open.
//
// The mounts of a container are its own. They remain when the paths that they were made from are unmounted, and its processes can
// still write. So before a volume is taken from a node, [Table.Holders] has to be empty. What cannot be read counts as an unknown
// holder. docs/invariants.md has a table of who is seen and who is not.
package mounttable
