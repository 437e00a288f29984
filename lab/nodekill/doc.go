// Package nodekill kills the node agent with SIGKILL at random moments of stage,
// publish, unpublish and unstage, over real mounts, and checks after each restart
// that the node is as the pods of the API server want it.
//
// A lab with one node of the belay kind gives the control plane (belay-controller and
// belay-attacher, unmodified), the storage and the node service of labdisk, which
// makes loop devices, file systems and mounts in the node's namespaces. In the same
// namespaces belay-node, the program as shipped, serves a Node of its own, edge. Between
// it and labdisk stands a driver of the test: it reads the Node live inside each
// NodeStageVolume and NodeUnstageVolume (and inside each publish of the driver that does
// not stage), knows which call is where when a kill falls, and now and then loses a
// reply. Five volumes are wanted by pods that come and go: two file systems and a raw
// block device that are staged, a share that must be attached and is not
// staged, and one that is neither.
//
// Each kill has a plan: the call to which it belongs and a moment of it (its
// record is being written, is written, the call has come in, is at work, is done but not
// answered, was answered), or any time at all, the agent's start included. After it
// every record on the disk must be of a volume that the Node lists in use. Unless the
// next kill is meant to hit the recovery, the test waits until mounts, loop devices,
// directories, records, volumesInUse and the storage's attachments are exactly what the
// pods want, reads back what was written to each volume, and writes again.
//
// Before each unpublish and unstage that a kill is meant for, a process holds on to the volume for up to a second: to
// a file system with a mount below its copy of the stage, in a namespace that receives the machine's unmounts, to the
// raw device in a thread of a process whose first thread has ended. No unstage may come in as long as it does.
//
// A second test does the same with upstream's plane, kube-controller-manager's attach/detach
// controller and csi-attacher, in the place of belay's.
//
//	BELAY_NODEKILL_KILLS=1000           how many kills (default 300; 10 with -short)
//	BELAY_NODEKILL_UPSTREAM_KILLS=100   how many under upstream's plane (default 10; none with -short)
//	BELAY_NODEKILL_SEED=17              the seed that a failed run printed: a replay of its plans
//
// The test prints what was under way at the kills, by call and moment, and fails if of
// 300 none met one of them.
package nodekill
