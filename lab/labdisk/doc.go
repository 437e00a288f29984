// Package labdisk is the storage of the lab: a CSI driver over a storage fabric that runs on one machine and
// that refuses every write which its rules do not allow.
//
// Three kinds of process make it up, each started by a sub-command of Command:
//
//   - The fabric holds the volumes as sparse files (and shared directories), knows which node holds which volume, and
//     serves the I/O of all nodes. Every read and write names node, volume and attachment epoch and is checked against the
//     holder in the same critical section in which a detach or a cut takes effect, so that no write lands after either.
//     It also serves the controller side of CSI, keeps the record of every CSI call and the faults to inject.
//   - The host adapter of a node (the FUSE server) makes the node's volumes appear as files. It does nothing else: it never
//     touches a mount, a loop device or the file system above it, because a process that waits for I/O which it must
//     serve itself cannot be killed. It outlives its driver, so that a restart of the driver does not take the disks
//     from under the pods, and dies with the node.
//   - The node driver serves the node side of CSI: loop devices, file systems, bind mounts. It keeps no records: what is
//     staged and published is read from the kernel each time.
//
// Three drivers ("personalities") share all this: labdisk.belay.dev (block, one writer), labshare.belay.dev (a shared directory that
// must be attached) and lablocal.belay.dev (a shared directory without attach and without stage).
//
// Tests and tools use the fabric through Client.
package labdisk
