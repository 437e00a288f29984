package explain

import (
	"errors"
	"testing"
	"time"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/publication"
)

func TestTextsAreUpstreams(t *testing.T) {
	here := Pod{"shop", "db-0"}
	also := Pod{"shop", "db-1"}
	away := Pod{"bank", "vault-0"}
	since := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	at := []attachment.Blocker{{Node: "node-1", Kind: attachment.ByAttachment}}
	for name, tc := range map[string]struct{ got, want string }{
		"attached": {
			AttachSucceeded("pv-1"),
			`AttachVolume.Attach succeeded for volume "pv-1" `,
		},
		"driver refused": {
			AttachFailed("pv-1", "rpc error: code = Internal desc = no"),
			`AttachVolume.Attach failed for volume "pv-1" : rpc error: code = Internal desc = no`,
		},
		"API server refused": {
			AttachFailed("pv-1", CreateFailed(errors.New("quota"))),
			`AttachVolume.Attach failed for volume "pv-1" : kubernetes.io/csi: attacher.Attach failed: quota`,
		},
		"old attachment stuck": {
			AttachFailed("pv-1", BeingDeleted("busy")),
			`AttachVolume.Attach failed for volume "pv-1" : volume attachment is being deleted: busy`,
		},
		"multi-attach, no pods known": {
			MultiAttach("pv-1", "disk.example", "shop", nil, at),
			`Multi-Attach error for volume "pv-1" Volume is already exclusively attached to one node and can't be attached to another (attached to node "node-1"; it is detached once the pods there have terminated)`,
		},
		"multi-attach, pods of the namespace": {
			MultiAttach("pv-1", "disk.example", "shop", []Pod{here, also}, at),
			`Multi-Attach error for volume "pv-1" Volume is already used by pod(s) db-0, db-1 (attached to node "node-1"; it is detached once the pods there have terminated)`,
		},
		"multi-attach, pods of this and another namespace": {
			MultiAttach("pv-1", "disk.example", "shop", []Pod{here, away}, at),
			`Multi-Attach error for volume "pv-1" Volume is already used by pod(s) db-0 and 1 pod(s) in different namespaces (attached to node "node-1"; it is detached once the pods there have terminated)`,
		},
		"multi-attach, pods of another namespace only": {
			MultiAttach("pv-1", "disk.example", "shop", []Pod{away}, nil),
			`Multi-Attach error for volume "pv-1" Volume is already used by 1 pod(s) in different namespaces`,
		},
		"attacher silent": {
			AttachFailed("pv-1", Unanswered(attachment.VolumeKey{Driver: "disk.example", Handle: "h"}, Attach, "node-1", since, "")),
			`AttachVolume.Attach failed for volume "pv-1" : timed out waiting for external-attacher of disk.example CSI driver to attach volume h to node "node-1", requested at 2026-01-01T10:00:00Z. Check that its pod is running: the attach continues as soon as it is`,
		},
		"attacher silent about an old attachment": {
			AttachFailed("pv-1", BeingDeleted(Unanswered(attachment.VolumeKey{Driver: "disk.example", Handle: "h"}, Detach, "node-1", since, ""))),
			`AttachVolume.Attach failed for volume "pv-1" : volume attachment is being deleted: timed out waiting for external-attacher of disk.example CSI driver to detach volume h from node "node-1", requested at 2026-01-01T10:00:00Z. Check that its pod is running: the detach continues as soon as it is`,
		},
		"detach begins": {
			DetachStarted("pv-1", "node-1", nil, ""),
			`DetachVolume.Detach started for volume "pv-1" from node "node-1"`,
		},
		"detach forced by the taint": {
			DetachStarted("pv-1", "node-1", attachment.OutOfServiceTaint{}, attachment.StillInUse),
			`DetachVolume.Detach started for volume "pv-1" from node "node-1", which may still use it: the node is not Ready and has the out-of-service taint`,
		},
		"detach of a boot that has ended, on a node that may still count as Ready": {
			DetachStarted("pv-1", "node-1", attachment.Fenced{}, attachment.StillInUse),
			`DetachVolume.Detach started for volume "pv-1" from node "node-1" without an unmount: the boot that had the volume is proven to have ended, see the NodeFence`,
		},
		"detach forced by time": {
			DetachStarted("pv-1", "node-1", attachment.UnmountTimeout{}, attachment.StillInUse),
			`DetachVolume.Detach started for volume "pv-1" from node "node-1", which may still use it: the node is not Ready, and the wait for its unmount has timed out`,
		},
		"detach forced by time, Node deleted": {
			DetachStarted("pv-1", "node-1", attachment.UnmountTimeout{}, attachment.NodeGone),
			`DetachVolume.Detach started for volume "pv-1" from node "node-1", which may still use it: the Node object was deleted, and the wait for its unmount has timed out`,
		},
		"detach forced by a deletion": {
			DetachStarted("pv-1", "node-1", attachment.DeletedNode{}, attachment.NodeGone),
			`DetachVolume.Detach started for volume "pv-1" from node "node-1", which may still use it: the Node object was deleted, and --deleted-node-policy=detach applies`,
		},
		"VolumeAttachment deleted in use": {
			DetachedInUse("pv-1", "node-1"),
			`The VolumeAttachment of volume "pv-1" was deleted by another client while the volume was in use on node "node-1". ` +
				`The volume may have been detached under its mounts, where reads and writes then fail. If a pod needs it there, it is attached again, which does not repair the mounts. ` +
				`Delete the pods that use it on this node: pods created after that mount it again`,
		},
		"detached": {
			DetachSucceeded("pv-1", "node-1"),
			`DetachVolume.Detach succeeded for volume "pv-1" from node "node-1"`,
		},
		"driver refused to detach": {
			DetachFailed("pv-1", "node-1", "busy"),
			`DetachVolume.Detach failed for volume "pv-1" from node "node-1" : busy; it is retried with back-off`,
		},
		"driver did not answer the detach": {
			DetachFailed("pv-1", "node-1", DriverError("no answer; next attempt at 2026-01-01T12:00:01Z")),
			`DetachVolume.Detach failed for volume "pv-1" from node "node-1" : no answer; it is retried with back-off`,
		},
		"detach in doubt": {
			DetachFailed("pv-1", "node-1", DriverError(publication.MayStillAttach+": the volume is detached again at 2026-01-01T12:00:01Z")),
			`DetachVolume.Detach has not ended for volume "pv-1" from node "node-1" : the driver has confirmed the detach, but may still carry out an attach that it gave no final answer to: the volume is detached again at 2026-01-01T12:00:01Z`,
		},
		"attacher has called the driver": {
			DetachUnanswered("pv-1", "node-1", Unanswered(attachment.VolumeKey{Driver: "disk.example", Handle: "h"}, Detach, "node-1", since, "ControllerUnpublishVolume has been in flight since 2026-01-01T10:00:01Z")),
			`DetachVolume.Detach failed for volume "pv-1" from node "node-1" : timed out waiting for external-attacher of disk.example CSI driver to detach volume h from node "node-1", requested at 2026-01-01T10:00:00Z. ` +
				`As the attacher says, ControllerUnpublishVolume has been in flight since 2026-01-01T10:00:01Z: ask the storage what it does with the volume, and read the log of the driver's controller`,
		},
		"listed elsewhere": {
			ListedElsewhere("pv-1", "node-1", `node "node-2" (node ID "i-2")`),
			`Volume "pv-1" may be attached to one node only, and its driver lists it at node "node-2" (node ID "i-2") too, beside node "node-1": both machines may write to it, which destroys data. ` +
				`Nothing is changed. Find out which of them is meant to have it, stop what uses it on the other one, and detach it there at the storage`,
		},
		"attacher does not detach": {
			DetachUnanswered("pv-1", "node-1", Unanswered(attachment.VolumeKey{Driver: "disk.example", Handle: "h"}, Detach, "node-1", since, "")),
			`DetachVolume.Detach failed for volume "pv-1" from node "node-1" : timed out waiting for external-attacher of disk.example CSI driver to detach volume h from node "node-1", requested at 2026-01-01T10:00:00Z. Check that its pod is running: the detach continues as soon as it is`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("got  %s\nwant %s", tc.got, tc.want)
			}
		})
	}
}
