package explain

import (
	"strings"
	"testing"
	"time"

	"belay.dev/belay/internal/attachment"
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
			since(attachment.StillInUse), attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for node "a" to unmount it; the node is Ready, so the volume is never detached by force`,
		},
		"in use, not Ready": {
			byTime(attachment.StillInUse), attachment.No,
			`waiting since 2026-01-01T10:00:00Z for node "a", which is not Ready, to unmount it; the volume is detached by force at 2026-01-01T10:06:00Z`,
		},
		"in use, health not known": {
			since(attachment.StillInUse), attachment.Unknown, `waiting since 2026-01-01T10:00:00Z for node "a" to unmount it`,
		},
		"in use, not Ready, no policy": {
			since(attachment.StillInUse), attachment.No,
			`waiting since 2026-01-01T10:00:00Z for node "a", which is not Ready, to unmount it; the volume is never detached by force: shut the machine down, then add the taint node.kubernetes.io/out-of-service to the node`,
		},
		"taint on a Ready node": {
			since(attachment.OutOfServiceNodeReady), attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z for node "a" to unmount it; the node has the taint node.kubernetes.io/out-of-service, which does not force the detach as long as the node is Ready. Shut the machine down, or remove the taint`,
		},
		"Node deleted": {
			byTime(attachment.NodeGone), attachment.No,
			`waiting since 2026-01-01T10:00:00Z because node "a" was deleted and its machine may still use the volume; the volume is detached by force at 2026-01-01T10:06:00Z, or sooner if the node registers again and has unmounted it`,
		},
		"Node deleted, no policy": {
			since(attachment.NodeGone), attachment.No,
			`waiting since 2026-01-01T10:00:00Z because node "a" was deleted and its machine may still use the volume; the volume is never detached by force: make sure that the machine is off, then delete the VolumeAttachment`,
		},
		"Node deleted, its pods not yet": {
			attachment.Cause{Reason: attachment.NodeGone, Forces: attachment.UnmountTimeout{}}, attachment.Unknown,
			`waiting because node "a" was deleted and its machine may still use the volume; its pods still exist: once the pod garbage collector has deleted them, in about a minute, a timer starts, and the volume is detached by force when it expires`,
		},
		"Node deleted, its pods not yet, detach on deletion": {
			attachment.Cause{Reason: attachment.NodeGone, Forces: attachment.DeletedNode{}}, attachment.Unknown,
			`waiting because node "a" was deleted and its machine may still use the volume; its pods still exist: once the pod garbage collector has deleted them, in about a minute, the volume is detached by force`,
		},
		"another machine": {
			byTime(attachment.NodeReplaced), attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z because another machine has registered as node "a" and the machine that had the volume may still use it; the volume is detached by force at 2026-01-01T10:06:00Z`,
		},
		"Node recreated": {
			attachment.Cause{Reason: attachment.NodeReturned, Since: from, At: until}, attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z because node "a" was deleted, has registered again, and has not shown yet whether it still uses the volume; if the node stays Ready and does not list the volume in use, it is detached at 2026-01-01T10:06:00Z`,
		},
		"Node recreated, its kubelet not looked at yet": {
			since(attachment.NodeReturned), attachment.Yes,
			`waiting since 2026-01-01T10:00:00Z because node "a" was deleted, has registered again, and has not shown yet whether it still uses the volume; the volume is detached once the node has shown that it does not`,
		},
		"Node recreated, not Ready": {
			byTime(attachment.NodeReturned), attachment.No,
			`waiting since 2026-01-01T10:00:00Z because node "a" was deleted, has registered again, and has not shown yet whether it still uses the volume; the node is not Ready, and the volume is detached by force at 2026-01-01T10:06:00Z`,
		},
		"Node recreated, not Ready, no policy": {
			since(attachment.NodeReturned), attachment.No,
			`waiting since 2026-01-01T10:00:00Z because node "a" was deleted, has registered again, and has not shown yet whether it still uses the volume; the node is not Ready, and the volume is never detached by force: shut the machine down, then add the taint node.kubernetes.io/out-of-service to the node`,
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
		"attach without an answer": {
			since(attachment.Attaching), attachment.Yes,
			`it may be attached to node "a", because an attach requested at 2026-01-01T10:00:00Z has had no answer yet; it is detached once the pods there have terminated`,
		},
		"attach uncertain": {
			attachment.Cause{Reason: attachment.AttachFailed, Since: from, Detail: "busy"}, attachment.Yes,
			`it may be attached to node "a", because an attach requested at 2026-01-01T10:00:00Z failed; the attach is retried, and the volume is detached once the pods there have terminated: busy`,
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
		if r == attachment.Settled || r.Ends() == attachment.HolderReleases {
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
		{Node: "d", Kind: attachment.ByForeigner},
		{Node: "e", Kind: attachment.ByCreate},
		{Node: "f", Kind: attachment.ByTurn},
	})
	want := `attached to node "a" since 2026-01-01T10:00:00Z; it is detached once the pods there have terminated; ` +
		`in use on node "b"; it is released once the pods there have terminated; being detached from node "c"; ` +
		`a VolumeAttachment for node "d" has a name that no attach/detach controller gives; it is never deleted automatically, only by the client that created it; ` +
		`a request to attach it to node "e" got no answer and may still be carried out, for up to a minute; ` +
		`attached to node "f"; it is detached once the pods there have terminated`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
