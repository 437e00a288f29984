package explain

import (
	"testing"
	"time"

	"belay.dev/belay/internal/nodevolume"
)

// TestNodeEventsAreKubelets: the sentences, and the reasons that go with them.
func TestNodeEventsAreKubelets(t *testing.T) {
	since := time.Date(2026, 1, 1, 10, 0, 0, 0, time.FixedZone("", 3600))
	event := func(reason, text string) string { return reason + " " + text }
	step := func(step string, block bool) NodeStep {
		return NodeStep{Step: step, Block: block, Volume: "pv", Since: since}
	}
	held := func(reason nodevolume.Reason) NodeWait {
		return NodeWait{Reason: reason, Since: since, Detail: NodeReason(reason)}
	}
	pending := func(name string) NodeStep { return NodeStep{Step: name, Volume: "pv", Verb: NotEnded} }
	call := NodeCall{Driver: "disk.example", Method: "NodeStageVolume", Since: since, Timeout: 2 * time.Minute}
	for name, tc := range map[string]struct{ got, want string }{
		"attach": {
			event(NodeStep{Step: StepWaitForAttach, Volume: "pv"}.Failed(held(nodevolume.NotAttached).Waits())),
			`FailedMount MountVolume.WaitForAttach failed for volume "pv" : waiting since 2026-01-01T09:00:00Z: Volume not attached according to node status; the attach/detach controller reports it in status.volumesAttached (NotAttached)`,
		},
		"attach of a block volume": {event(step(StepWaitForAttach, true).Failed("no")), `FailedMapVolume MapVolume.WaitForAttach failed for volume "pv" : no (attach failing since 2026-01-01T09:00:00Z)`},
		"stage":                    {event(step(StepMountDevice, false).Failed("no")), `FailedMount MountVolume.MountDevice failed for volume "pv" : no (stage failing since 2026-01-01T09:00:00Z)`},
		"stage of a block volume":  {event(step(StepMountDevice, true).Failed("no")), `FailedMapVolume MapVolume.SetUpDevice failed for volume "pv" : no (stage failing since 2026-01-01T09:00:00Z)`},
		"stage without an answer": {
			event(pending(StepMountDevice).Failed(call.Pending())),
			`FailedMount MountVolume.MountDevice has not ended for volume "pv" : CSI driver "disk.example" has not answered NodeStageVolume since 2026-01-01T09:00:00Z; the call times out after 2m0s`,
		},
		"publish":                   {event(step(StepSetUp, false).Failed("no")), `FailedMount MountVolume.SetUp failed for volume "pv" : no (publish failing since 2026-01-01T09:00:00Z)`},
		"publish of a block volume": {event(step(StepSetUp, true).Failed("no")), `FailedMapVolume MapVolume.MapPodDevice failed for volume "pv" : no (publish failing since 2026-01-01T09:00:00Z)`},
		"another pod has it": {
			event(NodeStep{Step: StepSetUp, Volume: "pv"}.Failed(held(nodevolume.OtherPodMounted).Waits())),
			`FailedMount MountVolume.SetUp failed for volume "pv" : volume uses the ReadWriteOncePod access mode and is already in use by another pod; waiting since 2026-01-01T09:00:00Z (OtherPodMounted)`,
		},
		"not for this node":               {event(step(StepMountDevice, false).NotHere("no matching NodeSelectorTerms")), `FailedMount MountVolume.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms (stage failing since 2026-01-01T09:00:00Z)`},
		"a block volume not for it":       {event(step(StepSetUp, true).NotHere("no matching NodeSelectorTerms")), `FailedMount MapVolume.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms (publish failing since 2026-01-01T09:00:00Z)`},
		"unpublish":                       {step(StepUnpublish, false).StaysInUse("n", "busy"), `UnmountVolume.TearDown failed for volume "pv" : busy (unpublish failing since 2026-01-01T09:00:00Z); the volume stays in use on node n, and the call is retried`},
		"unpublish of a block volume":     {step(StepUnpublish, true).StaysInUse("n", "busy"), `UnmapVolume.UnmapPodDevice failed for volume "pv" : busy (unpublish failing since 2026-01-01T09:00:00Z); the volume stays in use on node n, and the call is retried`},
		"unstage":                         {step(StepUnstage, false).StaysInUse("n", "busy"), `UnmountDevice failed for volume "pv" : busy (unstage failing since 2026-01-01T09:00:00Z); the volume stays in use on node n, and the call is retried`},
		"unstage of a block volume":       {step(StepUnstage, true).StaysInUse("n", "busy"), `UnmapDevice.TearDownDevice failed for volume "pv" : busy (unstage failing since 2026-01-01T09:00:00Z); the volume stays in use on node n, and the call is retried`},
		"unstage without an answer":       {pending(StepUnstage).StaysInUse("n", "no answer"), `UnmountDevice has not ended for volume "pv" : no answer; the volume stays in use on node n, and the call is retried`},
		"unpublish waits":                 {step(StepUnpublish, false).Waits(held(nodevolume.DriverNotRegistered)), `UnmountVolume.TearDown for volume "pv" has been waiting since 2026-01-01T09:00:00Z: the driver is not registered on this node (DriverNotRegistered)`},
		"unstage waits":                   {step(StepUnstage, false).Waits(held(nodevolume.AttachmentReplaced)), `UnmountDevice for volume "pv" has been waiting since 2026-01-01T09:00:00Z: the VolumeAttachment was recreated after the volume was staged, and the pods that use the earlier attachment must terminate first (AttachmentReplaced)`},
		"the pod as a whole":              {MountsFailed(NodeWait{Reason: "ClaimNotReady", Since: since, Detail: "not found"}.Waits()), `Unable to attach or mount volumes: waiting since 2026-01-01T09:00:00Z: not found (ClaimNotReady)`},
		"not known since when":            {NodeWait{Reason: "ClaimNotReady", Detail: "not found"}.Waits(), `waiting: not found (ClaimNotReady)`},
		"mapped":                          {Mapped("pv", "/d"), `MapVolume.MapPodDevice succeeded for volume "pv" volumeMapPath "/d"`},
		"abnormal":                        {Abnormal("data", "degraded"), `Volume data: degraded`},
		"expanded":                        {Expanded("pv", "n"), `MountVolume.NodeExpandVolume succeeded for volume "pv" n`},
		"grown and read-only":             {ExpandReadOnly("pv"), `MountVolume.NodeExpandVolume failed for volume "pv" requested read-only file system`},
		"not expanded while it runs":      {event(ExpandFailed("pv", false, false, "no")), `VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume "pv" : no`},
		"not expanded before it starts":   {event(ExpandFailed("pv", true, false, "no")), `FailedMount MountVolume.Setup failed while expanding volume for volume "pv" : no`},
		"not expanded, of a block volume": {event(ExpandFailed("pv", true, true, "no")), `FailedMapVolume MapVolume.MarkVolumeAsMounted failed while expanding volume for volume "pv" : no`},
		"the node is full":                {AttachLimit("pv", "disk.example", "limit exceeded"), `Node has reached its volume attachment limit: volume "pv" of driver disk.example is not attached: limit exceeded`},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("got  %s\nwant %s", tc.got, tc.want)
			}
		})
	}
}

// TestTextForAWaitingCaller: where the volume is, since when, and what is known to be in the way.
func TestTextForAWaitingCaller(t *testing.T) {
	since := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	now := since.Add(1500 * time.Millisecond)
	call := NodeCall{Driver: "disk.example", Method: "NodeStageVolume", Since: since, Timeout: 2 * time.Minute}
	for name, tc := range map[string]struct{ got, want string }{
		"nothing known": {NodeVolume("data", "pv", ""), `volume "data" (pv)`},
		"at work":       {NodeVolume("data", "pv", NodeReason("")), `volume "data" (pv) is in progress`},
		"held": {
			NodeVolume("data", "pv", NodeWait{Reason: nodevolume.NodeUnknown, Since: since, Detail: NodeReason(nodevolume.NodeUnknown)}.AsOf(now)),
			`volume "data" (pv) has been waiting since 2026-01-01T10:00:00Z (for 1.5s): the Node object has not been read or does not exist (NodeUnknown)`,
		},
		"called": {
			NodeVolume("data", "pv", call.AsOf(now)),
			`volume "data" (pv) is waiting: CSI driver "disk.example" has not answered NodeStageVolume since 2026-01-01T10:00:00Z (for 1.5s); the call times out after 2m0s`,
		},
		"called, in short": {call.Unanswered(), `CSI driver "disk.example" has not answered NodeStageVolume since 2026-01-01T10:00:00Z`},
		"fsGroup":          {NodeVolume("data", "pv", GroupChange(1000, 7)), `volume "data" (pv) is waiting for the ownership of its files to be set to fsGroup 1000, 7 files so far`},
		"hindered":         {LastError(nodevolume.NodeUnknown, "forbidden"), `the Node object has not been read or does not exist; last error: forbidden`},
		"no driver":        {NotRegistered(NodeReason(nodevolume.DriverNotRegistered), "disk.example"), `the driver is not registered on this node: driver name disk.example not found in the list of registered CSI drivers`},
		"another label":    {OtherLabelWanted("pv", "a", "b"), `conflicting SELinux labels of volume pv: "a" and "b"; the pod that uses the volume must terminate first`},
		"label left":       {OtherLabelMounted("v"), `waiting for unmount of volume "v", because it is already mounted to a different pod with a different SELinux label`},
		"forbidden":        {GrantAccess("n"), `give belay-node the credential of system:node:n, or the ClusterRole of deploy/belay-node`},
		"full":             {FreeSpace("/r"), `free space on the file system of /r`},
		"read-only":        {MakeWritable("/r"), `make /r writable`},
		"a link":           {ReplaceLink("/r"), `replace the link with a directory and mount the target of the link there (mount --rbind TARGET DIRECTORY). To keep all of /r elsewhere, make that a link, or use another root`},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("got  %s\nwant %s", tc.got, tc.want)
			}
		})
	}
}

// TestEachNodeReasonHasAText of its own.
func TestEachNodeReasonHasAText(t *testing.T) {
	seen := map[string]nodevolume.Reason{}
	for _, reason := range []nodevolume.Reason{
		nodevolume.AttachabilityUnknown, nodevolume.NodeUnknown, nodevolume.NotReportedInUse, nodevolume.NotAttached,
		nodevolume.DriverNotRegistered, nodevolume.OtherSELinuxLabelWanted, nodevolume.OtherSELinuxLabelMounted, nodevolume.OtherPodMounted,
		nodevolume.UnaccountedMount, nodevolume.BackingOff, nodevolume.AttachmentNotReady, nodevolume.AttachmentReplaced,
		nodevolume.OwnerSilent, nodevolume.ContainersMayRun, nodevolume.StillMountedElsewhere, nodevolume.InUseNotCleared,
	} {
		words := NodeReason(reason)
		if was, ok := seen[words]; ok || words == NodeReason("") {
			t.Errorf("%s has the text of %q: %s", reason, was, words)
		}
		seen[words] = reason
	}
}
