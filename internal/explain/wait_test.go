package explain

import (
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/publication"
)

func TestWait(t *testing.T) {
	from := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	until := from.Add(6 * time.Minute)
	byTime := func(r attachment.Reason) attachment.Cause {
		return attachment.Cause{Reason: r, Since: from, At: until, Forces: attachment.UnmountTimeout{}}
	}
	since := func(r attachment.Reason) attachment.Cause { return attachment.Cause{Reason: r, Since: from} }
	for name, tc := range map[string]struct {
		cause attachment.Cause
		ready attachment.Knowledge
		want  string
	}{
		"in use, Ready": {
			attachment.Cause{Reason: attachment.StillInUse, Since: from, Overdue: until}, attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for node "a" to unmount it; the volume is not detached by force while the node is Ready; from 2026-01-01T10:06:00Z on, it is detached by force as soon as the node is not Ready or is deleted`,
		},
		"in use, Ready, no policy": {
			since(attachment.StillInUse), attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for node "a" to unmount it; the volume is not detached by force while the node is Ready`,
		},
		"in use, not Ready": {
			byTime(attachment.StillInUse), attachment.No,
			`waiting since 2026-01-01T10:00:00Z for node "a" to unmount it; the node is not Ready, and the volume is detached by force at 2026-01-01T10:06:00Z`,
		},
		"in use, health not known": {
			since(attachment.StillInUse), attachment.Unknown, `waiting since 2026-01-01T10:00:00Z for node "a" to unmount it`,
		},
		"in use, the attach has no answer": {
			attachment.Cause{Reason: attachment.StillInUse, Since: until, Unconfirmed: from}, attachment.Yes,
			`it may be attached to node "a", because an attach requested at 2026-01-01T10:00:00Z has had no answer yet; waiting since 2026-01-01T10:06:00Z for node "a" to remove it from status.volumesInUse; the volume is not detached by force while the node is Ready`,
		},
		"in use, the attach failed": {
			attachment.Cause{Reason: attachment.StillInUse, Since: until, Unconfirmed: from, Detail: "busy"}, attachment.No,
			`it may be attached to node "a", because an attach requested at 2026-01-01T10:00:00Z failed and is retried: busy; waiting since 2026-01-01T10:06:00Z for node "a" to remove it from status.volumesInUse; the node is not Ready, and the volume is never detached by force: shut the machine down, then add the taint node.kubernetes.io/out-of-service to the node`,
		},
		"in use, not Ready, no policy": {
			since(attachment.StillInUse), attachment.No,
			`waiting since 2026-01-01T10:00:00Z for node "a" to unmount it; the node is not Ready, and the volume is never detached by force: shut the machine down, then add the taint node.kubernetes.io/out-of-service to the node`,
		},
		"taint on a Ready node": {
			since(attachment.OutOfServiceNodeReady), attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for node "a" to unmount it; the node has the taint node.kubernetes.io/out-of-service, which does not force the detach as long as the node is Ready. Shut the machine down, or remove the taint`,
		},
		"Node deleted": {
			byTime(attachment.NodeGone), attachment.No,
			`node "a" was deleted, and its machine may still use the volume; waiting since 2026-01-01T10:00:00Z for the unmount; the volume is detached by force at 2026-01-01T10:06:00Z, or sooner if the node registers again and has unmounted it`,
		},
		"Node deleted, no policy": {
			attachment.Cause{Reason: attachment.NodeGone, Attachment: "csi-a", Since: since(attachment.NodeGone).Since}, attachment.No,
			`node "a" was deleted, and its machine may still use the volume; waiting since 2026-01-01T10:00:00Z for the unmount; the volume is never detached by force: make sure that the machine is off, then delete the VolumeAttachment csi-a`,
		},
		"Node deleted, its pods not yet": {
			attachment.Cause{Reason: attachment.NodeGone, Forces: attachment.UnmountTimeout{}}, attachment.Unknown,
			`node "a" was deleted, and its machine may still use the volume; its pods still exist: once the pod garbage collector has deleted them, in about a minute, a timer starts, and the volume is detached by force when it expires`,
		},
		"Node deleted, its pods not yet, detach on deletion": {
			attachment.Cause{Reason: attachment.NodeGone, Forces: attachment.DeletedNode{}}, attachment.Unknown,
			`node "a" was deleted, and its machine may still use the volume; its pods still exist: once the pod garbage collector has deleted them, in about a minute, the volume is detached by force`,
		},
		"another machine": {
			byTime(attachment.NodeReplaced), attachment.Yes,
			`another machine has registered as node "a", and the machine that had the volume may still use it; waiting since 2026-01-01T10:00:00Z for the unmount; the volume is detached by force at 2026-01-01T10:06:00Z`,
		},
		"Node recreated": {
			attachment.Cause{Reason: attachment.NodeReturned, Since: from, At: until}, attachment.Yes,
			`node "a" was deleted, has registered again, and has not shown yet whether it still uses the volume; waiting since 2026-01-01T10:00:00Z for the unmount; if the node stays Ready and does not list the volume in use, it is detached, but not before 2026-01-01T10:06:00Z`,
		},
		"Node recreated, its kubelet not looked at yet": {
			since(attachment.NodeReturned), attachment.Yes,
			`node "a" was deleted, has registered again, and has not shown yet whether it still uses the volume; waiting since 2026-01-01T10:00:00Z for the unmount; the volume is detached once the node has shown that it does not`,
		},
		"Node recreated, not Ready": {
			byTime(attachment.NodeReturned), attachment.No,
			`node "a" was deleted, has registered again, and has not shown yet whether it still uses the volume; waiting since 2026-01-01T10:00:00Z for the unmount; the node is not Ready, and the volume is detached by force at 2026-01-01T10:06:00Z`,
		},
		"Node recreated, not Ready, no policy": {
			since(attachment.NodeReturned), attachment.No,
			`node "a" was deleted, has registered again, and has not shown yet whether it still uses the volume; waiting since 2026-01-01T10:00:00Z for the unmount; the node is not Ready, and the volume is never detached by force: shut the machine down, then add the taint node.kubernetes.io/out-of-service to the node`,
		},
		"attacher at work": {
			since(attachment.Detaching), attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for the attacher of CSI driver disk.example to detach it from node "a"`,
		},
		"attacher silent": {
			since(attachment.DetachUnanswered), attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for the attacher of CSI driver disk.example to detach it from node "a"; the attacher has not answered. Check that its pod is running: the detach continues as soon as it is`,
		},
		"detach refused": {
			attachment.Cause{Reason: attachment.DetachFailed, Since: from, Detail: "busy"}, attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for the detach from node "a", which fails and is retried by the attacher of CSI driver disk.example: busy`,
		},
		"detach in doubt": {
			attachment.Cause{Reason: attachment.DetachFailed, Since: from, Detail: publication.MayStillAttach + ": the volume is detached again at 2026-01-01T10:05:00Z"}, attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for the detach from node "a": the driver has confirmed the detach, but may still carry out an attach that it gave no final answer to: the volume is detached again at 2026-01-01T10:05:00Z`,
		},
		"attach without an answer": {
			since(attachment.Attaching), attachment.Yes,
			`it may be attached to node "a", because an attach requested at 2026-01-01T10:00:00Z has had no answer yet; it is detached once the pods there have terminated`,
		},
		"attach without an answer, not Ready": {
			since(attachment.Attaching), attachment.No,
			`it may be attached to node "a", because an attach requested at 2026-01-01T10:00:00Z has had no answer yet; the node is not Ready, so the pods there cannot terminate by themselves. If the machine is off, add the taint node.kubernetes.io/out-of-service to the node`,
		},
		"detach refused, with a retry": {
			attachment.Cause{Reason: attachment.DetachFailed, Since: from, Detail: DriverError("no answer; next attempt at 2026-01-01T10:00:30Z")}, attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for the detach from node "a", which fails and is retried by the attacher of CSI driver disk.example: no answer`,
		},
		"attach uncertain": {
			attachment.Cause{Reason: attachment.AttachFailed, Since: from, Detail: "busy"}, attachment.Yes,
			`it may be attached to node "a", because an attach requested at 2026-01-01T10:00:00Z failed and is retried: busy; it is detached once the pods there have terminated`,
		},
		"attach uncertain, with a retry": {
			attachment.Cause{Reason: attachment.AttachFailed, Since: from, Detail: DriverError("no answer; next attempt at 2026-01-01T10:00:30Z")}, attachment.Yes,
			`it may be attached to node "a", because an attach requested at 2026-01-01T10:00:00Z failed and is retried: no answer; it is detached once the pods there have terminated`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Wait("disk.example", "a", tc.cause, tc.ready); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestWaitKnowsEveryReason that a volume can be kept at a node for.
func TestWaitKnowsEveryReason(t *testing.T) {
	for _, r := range attachment.Reasons() {
		if r == attachment.Settled || attachment.ForHolder(r) {
			continue
		}
		if text := Wait("d", "a", attachment.Cause{Reason: r}, attachment.Unknown); strings.Contains(text, string(r)) {
			t.Errorf("%s has no text of its own: %s", r, text)
		}
	}
}

// TestBlockers names each kind.
func TestBlockers(t *testing.T) {
	got := Blockers("disk.example", []attachment.Blocker{
		{Node: "a", Kind: attachment.ByAttachment, Cause: attachment.Cause{Since: time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)}},
		{Node: "b", Kind: attachment.ByUse},
		{Node: "c", Kind: attachment.ByDeletion},
		{Node: "d", Kind: attachment.ByForeignAttachment},
		{Node: "e", Kind: attachment.ByCreate},
		{Node: "f", Kind: attachment.ByNewAttachment},
	})
	want := `attached to node "a" since 2026-01-01T10:00:00Z; it is detached once the pods there have terminated; ` +
		`in use on node "b"; it is released once the pods there have terminated; being detached from node "c"; ` +
		`a VolumeAttachment for node "d" has a name that no attach/detach controller gives; it is never deleted automatically, only by the client that created it; ` +
		`a request to attach it to node "e" got no answer and may still be carried out, for up to a minute; ` +
		`being attached to node "f", for a pod that came first`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestPodsThatCannotTerminate keep the volume at a node that is not Ready until a person
// does something.
func TestPodsThatCannotTerminate(t *testing.T) {
	const stuck = `the node is not Ready, so the pods there cannot terminate by themselves`
	const taint = `add the taint node.kubernetes.io/out-of-service to the node`
	const timer = stuck + `, and no timer runs yet. Deleting these pods by force starts the unmount timeout, after which the volume is detached by force. If the machine is off, ` + taint + ` instead`
	since := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		blocker attachment.Blocker
		want    string
	}{
		"with a timeout": {
			attachment.Blocker{Kind: attachment.ByAttachment, Ready: attachment.No, Cause: attachment.Cause{Since: since, Forces: attachment.UnmountTimeout{}}},
			`attached to node "a" since 2026-01-01T10:00:00Z; ` + timer,
		},
		"without": {
			attachment.Blocker{Kind: attachment.ByAttachment, Ready: attachment.No, Cause: attachment.Cause{Since: since}},
			`attached to node "a" since 2026-01-01T10:00:00Z; ` + stuck + `. If the machine is off, ` + taint,
		},
		"no VolumeAttachment": {
			attachment.Blocker{Kind: attachment.ByUse, Ready: attachment.No, Cause: attachment.Cause{Forces: attachment.UnmountTimeout{}}},
			`in use on node "a"; ` + timer,
		},
		"Ready": {
			attachment.Blocker{Kind: attachment.ByAttachment, Ready: attachment.Yes, Cause: attachment.Cause{Since: since}},
			`attached to node "a" since 2026-01-01T10:00:00Z; it is detached once the pods there have terminated`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.blocker.Node = "a"
			if got := Blockers("disk.example", []attachment.Blocker{tc.blocker}); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestNoAdviceToDeleteAMissingObject: a Fibre Channel or iSCSI volume has no
// VolumeAttachment (docs/not-guaranteed.md: only a restart of belay-controller ends that wait).
func TestNoAdviceToDeleteAMissingObject(t *testing.T) {
	for _, reason := range []attachment.Reason{attachment.NodeGone, attachment.NodeReplaced} {
		text := Wait("kubernetes.io/fc", "a", attachment.Cause{Reason: reason}, attachment.Unknown)
		if strings.Contains(text, "delete the VolumeAttachment") || !strings.Contains(text, "make sure that the machine is off, then restart all replicas of belay-controller") {
			t.Errorf("%s: %s", reason, text)
		}
	}
}

// TestDriverErrorWithoutTheNextAttempt: each attempt has another one.
func TestDriverErrorWithoutTheNextAttempt(t *testing.T) {
	for message, want := range map[string]string{
		"busy": "busy",
		"no answer; next attempt at 2026-01-01T12:00:01Z":                 "no answer; it is retried with back-off",
		"no answer; next attempt at 2026-01-01T12:00:01Z said the driver": "no answer; next attempt at 2026-01-01T12:00:01Z said the driver",
	} {
		if got := DriverError(message); got != want {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
}
