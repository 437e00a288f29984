package diagnosis

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

var (
	theWaiter, theHolder = Ref{Pods, "ns", "waiter"}, Ref{Pods, "ns", "holder"}
	theClaim, theVolume  = Ref{Claims, "ns", "claim"}, Ref{Resource: Volumes, Name: "pv"}
)

// one is how to make a snapshot from which a reason is answered, and about what.
type one struct {
	subject Ref
	make    func(*scene)
}

// TestEachReasonIsAnswered: for each reason of the table there is a snapshot from which explain, evidence or orphans answers it, or the table
// says why none does.
func TestEachReasonIsAnswered(t *testing.T) {
	all := map[decision.Reason]one{}
	for _, scenes := range []map[decision.Reason]one{podScenes, claimScenes, mountScenes, nodeScenes, attachmentScenes, answerScenes, callScenes(), fenceScenes(), heldScenes()} {
		maps.Copy(all, scenes)
	}
	for _, r := range explain.Guides() {
		made, ok := all[r]
		delete(all, r)
		if why := explain.GuideTo(r).Unanswered; ok != (why == "") {
			t.Errorf("%s has a snapshot: %v; why no command answers it: %q", r, ok, why)
		}
		if !ok {
			continue
		}
		s := newScene()
		s.Whole = append(s.Whole, Fences, FenceSources)
		made.make(&s)
		if got := answers(t, s.Snapshot, made.subject); !slices.Contains(got, r) {
			t.Errorf("%s: the answers are %v", r, got)
		}
	}
	for r := range all {
		t.Errorf("%s is no reason of the table", r)
	}
}

// answers are the reasons of all findings about an object, and, about a node, what recovery can do for it; and of orphans.
func answers(t *testing.T, s *Snapshot, subject Ref) (found []decision.Reason) {
	t.Helper()
	e, err := Explain(s, subject)
	if err != nil {
		t.Fatal(err)
	}
	found = append(found, e.Reason)
	for i := range e.Findings {
		if e.Findings[i].Runbook == "" {
			t.Errorf("%s has no runbook", e.Findings[i].Reason)
		}
		found = append(found, e.Findings[i].Reason)
	}
	if subject.Resource == Nodes {
		evidence, err := Evidence(s, subject.Name)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, evidence.Reason)
	}
	for _, o := range Orphans(s, true).Items {
		found = append(found, o.Reason)
	}
	return found
}

func (s scene) unscheduled(message string) {
	s.waiter.Spec.NodeName = ""
	if message != "" {
		s.waiter.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message}}
	}
}

// ending makes the holder a pod that has been deleted for so long.
func (s scene) ending(ago time.Duration) {
	s.holder.DeletionTimestamp, s.holder.DeletionGracePeriodSeconds = &metav1.Time{Time: s.Now.Add(-ago)}, new(int64(30))
}

var podScenes = map[decision.Reason]one{
	attachment.Settled:            {theHolder, func(*scene) {}},
	explain.HeldByRunningPod:      {theWaiter, func(*scene) {}},
	explain.HeldByTerminatingPod:  {theWaiter, func(s *scene) { s.ending(time.Minute) }},
	explain.PodTerminating:        {theHolder, func(s *scene) { s.ending(time.Minute) }},
	explain.PodOnLostNode:         {theHolder, func(s *scene) { s.ending(time.Minute); s.a.Status.Conditions[0].Status = corev1.ConditionUnknown }},
	explain.PodNodeNotReady:       {theWaiter, func(s *scene) { s.mounts(); s.Nodes[1].Status.Conditions[0].Status = corev1.ConditionUnknown }},
	explain.RollingUpdateDeadlock: {theWaiter, func(s *scene) { s.replicated("1", "2") }},
	explain.Scheduling:            {theWaiter, func(s *scene) { s.unscheduled("") }},
	explain.PodUnschedulable:      {theWaiter, func(s *scene) { s.unscheduled("0/2 nodes are available: 2 Insufficient cpu.") }},
	explain.VolumeTopologyConflict: {theWaiter, func(s *scene) {
		s.unscheduled("0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.")
	}},
	explain.AttachLimitReached:      {theWaiter, func(s *scene) { s.full(map[string]int32{"a": 1}) }},
	explain.OrphansFillNode:         {theWaiter, func(s *scene) { s.full(map[string]int32{"a": 1}); s.Pods = s.Pods[1:] }},
	explain.ClaimMissing:            {theWaiter, func(s *scene) { s.Claims = nil }},
	explain.ClaimNotBound:           {theWaiter, func(s *scene) { s.Claims[0].Spec.VolumeName = "" }},
	explain.PersistentVolumeMissing: {theWaiter, func(s *scene) { s.Volumes = nil }},
	explain.ReadWriteOncePodInUse: {theWaiter, func(s *scene) {
		s.Volumes[0].Spec.AccessModes[0] = corev1.ReadWriteOncePod
		s.unscheduled("0/2 nodes are available: 2 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode.")
	}},
	explain.VolumeOfAnotherNamespace: {theWaiter, func(s *scene) {
		s.Volumes[0].Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5006"}, Lun: new(int32(1))}}
		s.Volumes[0].Spec.ClaimRef.Namespace = "other"
		s.waiter.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{FC: s.Volumes[0].Spec.FC}
	}},
	explain.Mounting: {theWaiter, func(s *scene) { s.mounts() }},
	explain.MountFailing: {theWaiter, func(s *scene) {
		s.mounts()
		s.says("", "Pod", "FailedMount", `MountVolume.MountDevice failed for volume "pv" : rpc error: code = Internal desc = bad superblock`, time.Second)
	}},
	explain.SecretMissing: {theWaiter, func(s *scene) {
		s.mounts()
		s.says("", "Pod", "FailedMount", `MountVolume.MountDevice failed for volume "pv" : fetching NodeStageSecretRef ns/s failed: failed to find the secret s in the namespace ns: secrets "s" not found`, time.Second)
	}},
	explain.NotReported:        {theWaiter, func(s *scene) { s.mounts(); s.Nodes[1].Status.VolumesAttached = nil }},
	explain.NoAttachController: {theWaiter, func(s *scene) { s.idle(); s.Attachments, s.Pods = nil, []*corev1.Pod{s.waiter} }},
	explain.Incomplete: {theWaiter, func(s *scene) {
		s.idle()
		s.Attachments, s.Pods, s.Whole = nil, []*corev1.Pod{s.waiter}, []Resource{Pods}
	}},
	explain.DriverNotOnNode: {theWaiter, func(s *scene) {
		s.mounts()
		s.CSINodes = []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "b"}}}
	}},
	attachment.NodeNotManaged: {theWaiter, func(s *scene) {
		s.idle()
		s.Attachments, s.Pods, s.Nodes[1].Annotations = nil, []*corev1.Pod{s.waiter}, nil
	}},
	attachment.NodeIsolated: {theWaiter, func(s *scene) {
		b := s.Nodes[1]
		b.Spec.Taints = []corev1.Taint{{Key: kube.IsolationTaint, Value: "belay-1", Effect: corev1.TaintEffectNoSchedule}}
		b.Status.VolumesInUse, s.a.Status = s.a.Status.VolumesInUse, b.Status
		s.Attachments, s.Pods = nil, s.Pods[1:]
	}},
}

var claimScenes = map[decision.Reason]one{
	explain.ClaimTerminating: {theClaim, func(s *scene) { s.deletesClaim(snapshotHolds) }},
	explain.EphemeralClaimNotOwned: {theWaiter, func(s *scene) {
		s.waiter.Spec.Volumes[0].VolumeSource, s.Claims[0].Name = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}, "waiter-v"
	}},
	explain.NotEnoughStorage: {theWaiter, func(s *scene) { s.unscheduled("0/2 nodes are available: 2 node(s) did not have enough free storage.") }},
	explain.NoVolumeToBind: {theWaiter, func(s *scene) {
		s.unscheduled("0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.")
	}},
	explain.PodNotCreated: {Ref{StatefulSets, "ns", "db"}, func(s *scene) {
		s.owned(StatefulSets, "StatefulSet", 3, 0)
		s.Pods = nil
		s.cannotCreate("owner", `create Pod db-0 in StatefulSet db failed error: pods "db-0" is forbidden: exceeded quota: pods`, time.Minute)
	}},
	explain.ProvisionerNotRunning: {theClaim, func(s *scene) { s.unbound() }},
	explain.ProvisioningFailed: {theClaim, func(s *scene) {
		s.unbound()
		s.ofClaim(oneDriver+"_csi-0_uid", "Warning", "ProvisioningFailed", refusing, time.Minute)
	}},
	explain.ResizePending: {theClaim, func(s *scene) { s.grows() }},
	explain.ResizeFailed:  {theClaim, func(s *scene) { step(s.grows(), corev1.PersistentVolumeClaimNodeResizeInfeasible) }},
	explain.VolumeMismatch: {theClaim, func(s *scene) {
		s.Pods, s.Claims[0].Status.Phase, s.Volumes[0].Spec.StorageClassName = nil, corev1.ClaimPending, "slow"
	}},
	explain.VolumeNodeGone: {theWaiter, func(s *scene) {
		s.zone(corev1.LabelHostname, "old", "a", "b")
		s.unscheduled("0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
	}},
	explain.VolumeDeleteFailed: {theVolume, func(s *scene) { s.releases(corev1.PersistentVolumeReclaimDelete, corev1.VolumeFailed) }},
	explain.VolumeTerminating:  {theVolume, func(s *scene) { s.releases(corev1.PersistentVolumeReclaimDelete, corev1.VolumeReleased) }},
}

// kubelet makes the volume of the waiter another one, about which kubelet reports the text.
func (s *scene) kubelet(source corev1.VolumeSource, reason, text string) {
	s.mounts()
	s.waiter.Spec.Volumes[0].VolumeSource = source
	s.says("", "Pod", reason, text, time.Second)
}

var mountScenes = map[decision.Reason]one{
	explain.ContainerMountFailing: {theWaiter, func(s *scene) {
		s.mounts()
		s.waiter.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "CreateContainerConfigError", Message: `failed to create subPath directory for volumeMount "v" of container "app"`,
		}}}}
	}},
	explain.NodePathUnusable: {theWaiter, func(s *scene) {
		s.kubelet(hostPath("/run/app.sock"), "FailedMount", setUp("hostPath type check failed: /run/app.sock is not a socket file"))
	}},
	explain.NodeProgramMissing: {theWaiter, func(s *scene) {
		s.kubelet(corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "x/cifs"}}, "FailedMount", notProcessed(`failed to get Plugin from volumeSpec for volume "v" err=no volume plugin matched`))
	}},
	explain.NotVolume: {theWaiter, func(s *scene) { s.kubelet(configMap("app"), "FailedCreatePodSandBox", sandbox) }},
	explain.StorageServerFailing: {theWaiter, func(s *scene) {
		s.kubelet(corev1.VolumeSource{NFS: onNFS().NFS}, "FailedMount", setUp("mount failed: exit status 32\nOutput: mount.nfs: access denied by server while mounting nas:/a\n"))
	}},
	explain.VolumeSourceMissing: {theWaiter, func(s *scene) { s.kubelet(configMap("app"), "FailedMount", setUp(`configmap "app" not found`)) }},
	explain.VolumeUnsupported: {theWaiter, func(s *scene) {
		s.kubelet(ofClaim, "FailedMount", notProcessed("volume v has volumeMode Filesystem, but is specified in volumeDevices"))
	}},
}

var nodeScenes = map[decision.Reason]one{
	explain.NodeNotReady:             {theWaiter, func(s *scene) { s.a.Status.Conditions[0].Status = corev1.ConditionUnknown }},
	explain.NodeSilent:               {theWaiter, func(s *scene) { s.heartbeat(40 * time.Second) }},
	explain.NodeOutOfService:         {theWaiter, func(s *scene) { s.outOfService(corev1.ConditionUnknown) }},
	attachment.OutOfServiceNodeReady: {nodeA, func(s *scene) { s.Pods = s.Pods[:1]; s.outOfService(corev1.ConditionTrue) }},
	attachment.NodeGone:              {theWaiter, func(s *scene) { s.Nodes = s.Nodes[1:] }},
	attachment.NodeUnknown: {theWaiter, func(s *scene) {
		s.Nodes, s.Whole = s.Nodes[1:], []Resource{Pods, Claims, Volumes, Attachments}
		s.Pods = s.Pods[1:]
	}},
	attachment.NodeReplaced: {theWaiter, func(s *scene) {
		s.Pods = s.Pods[1:]
		s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil
		s.recreated(5*time.Minute, "new", "old")
	}},
	attachment.NodeReturned: {theWaiter, func(s *scene) {
		s.Pods = s.Pods[1:]
		s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil
		s.recreated(5*time.Minute, "", "")
	}},
	attachment.StillInUse: {theWaiter, func(s *scene) {
		s.Pods = s.Pods[1:]
		s.waiter.CreationTimestamp = metav1.NewTime(s.Now.Add(-10 * time.Second))
	}},
	explain.UnmountFailing: {theHolder, func(s *scene) { s.ending(time.Hour); s.holder.Status.Phase = corev1.PodSucceeded }},
	explain.ReportedWithoutAttachment: {nodeA, func(s *scene) {
		s.Attachments, s.Pods, s.a.Status.VolumesInUse = nil, nil, nil
	}},
	explain.UsedWithoutAttachment: {theHolder, func(s *scene) { s.Attachments = nil }},
}

// failed leaves one VolumeAttachment of the pod that waits, with an error of its attach.
func (s *scene) failed(message string) {
	s.mounts()
	s.va.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: message, Time: metav1.NewTime(s.Now.Add(-time.Second))}}
	s.Nodes[1].Status.VolumesAttached, s.Nodes[1].Status.VolumesInUse = nil, nil
}

// detaches leaves the VolumeAttachment of node a, which has been in deletion for so long.
func (s *scene) detaches(ago time.Duration, message string) {
	s.Pods, s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = []*corev1.Pod{s.waiter}, nil, nil
	s.va.DeletionTimestamp, s.va.Finalizers = &metav1.Time{Time: s.Now.Add(-ago)}, []string{kube.AttacherFinalizer(oneDriver)}
	s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}}}
	if message != "" {
		s.va.Status.DetachError = &storagev1.VolumeError{Message: message, Time: metav1.NewTime(s.Now.Add(-time.Second))}
	}
}

// pending leaves the VolumeAttachment of node b, whose attach has had no answer for so long.
func (s *scene) pending(ago time.Duration, finalizers ...string) {
	s.mounts()
	s.va.Status, s.va.CreationTimestamp, s.va.Finalizers = storagev1.VolumeAttachmentStatus{}, metav1.NewTime(s.Now.Add(-ago)), finalizers
}

var attachmentScenes = map[decision.Reason]one{
	attachment.Attaching:        {theWaiter, func(s *scene) { s.pending(time.Second, kube.AttacherFinalizer(oneDriver)) }},
	attachment.AttachUnanswered: {theWaiter, func(s *scene) { s.pending(3*time.Minute, kube.AttacherFinalizer(oneDriver)) }},
	explain.CSIDriverMissing:    {theWaiter, func(s *scene) { s.pending(3 * time.Minute) }},
	explain.AttacherNotRunning: {theWaiter, func(s *scene) {
		s.pending(3 * time.Minute)
		s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: oneDriver}}}
	}},
	attachment.AttachFailed:         {theWaiter, func(s *scene) { s.failed("rpc error: code = Internal desc = broken") }},
	explain.DriverUnavailable:       {theWaiter, func(s *scene) { s.failed("rpc error: code = Unavailable desc = error reading from server: EOF") }},
	explain.BackendDisagrees:        {theWaiter, func(s *scene) { s.failed("rpc error: code = FailedPrecondition desc = attached to node c") }},
	publication.RestoredAttachment:  {theWaiter, func(s *scene) { s.failed(explain.Restored(s.va.Name, "i-a", "velero-server")) }},
	attachment.Detaching:            {Ref{Resource: Attachments, Name: newScene().va.Name}, func(s *scene) { s.detaches(time.Second, ""); s.Pods = nil }},
	attachment.OtherWriterDetaching: {theVolume, func(s *scene) { s.idle(); s.va.CreationTimestamp = metav1.NewTime(s.Now.Add(-time.Second)) }},
	attachment.DetachUnanswered:     {theWaiter, func(s *scene) { s.detaches(3*time.Minute, "") }},
	attachment.DetachFailed:         {theWaiter, func(s *scene) { s.detaches(time.Minute, "rpc error: code = Internal desc = broken") }},
	explain.DriverRemoved:           {theWaiter, func(s *scene) { s.detaches(time.Hour, ""); s.Drivers = nil }},
	explain.MachineUnknown:          {Ref{Resource: Attachments, Name: newScene().va.Name}, func(s *scene) { s.gone() }},
	publication.PublishInDoubt:      {theWaiter, func(s *scene) { s.detaches(time.Minute, publication.MayStillAttach) }},
	attachment.OtherWriterAttached:  {theWaiter, func(s *scene) { s.va.Status.Attached = false; s.holder.Status = s.waiter.Status }},
	attachment.ForeignAttachment:    {Ref{Resource: Attachments, Name: "by-hand"}, func(s *scene) { s.idle(); s.va.Name = "by-hand" }},
	explain.OrphanAttachment:        {Ref{Resource: Attachments, Name: newScene().va.Name}, func(s *scene) { s.idle() }},
	explain.NoDetachController:      {theWaiter, func(s *scene) { s.idle(); s.Pods = []*corev1.Pod{s.waiter} }},
	explain.TwoAttachments:          {theVolume, func(s *scene) { s.Attachments = append(s.Attachments, s.second()) }},
	explain.PublishedElsewhere:      {theHolder, func(s *scene) { s.listedElsewhere(time.Minute) }},
	explain.SharedAttachments: {theVolume, func(s *scene) {
		s.Volumes[0].Spec.AccessModes[0] = corev1.ReadWriteMany
		s.Attachments = append(s.Attachments, s.onB())
	}},
}

// refuses is failed with the answer of a driver.
func (s *scene) refuses(driver, code, text string) {
	s.failed("")
	s.failing(driver, grpcError(code, text))
	s.va.Name, s.CSINodes[0].Spec.Drivers[0].Name = kube.AttachmentName("h", driver, "b"), driver
}

// mountFails has the driver answer to kubelet.
func (s *scene) mountFails(code, text string) {
	s.mounts()
	e := grpcError(code, text)
	s.says("", "Pod", "FailedMount", `MountVolume.MountDevice failed for volume "pv" : `+e.Message, time.Second)
}

var answerScenes = map[decision.Reason]one{
	explain.DriverNotAuthorized: {theWaiter, func(s *scene) {
		s.refuses("ebs.csi.aws.com", "Internal", "UnauthorizedOperation: You are not authorized to perform this operation.")
	}},
	explain.HandleNotFound:      {theWaiter, func(s *scene) { s.refuses("csi.exoscale.com", "NotFound", "volume 7a1 not found") }},
	explain.RequestNotSupported: {theWaiter, func(s *scene) { s.refuses("ebs.csi.aws.com", "InvalidArgument", "Volume capability not supported") }},
	explain.StorageQuotaReached: {theWaiter, func(s *scene) {
		s.refuses("cinder.csi.openstack.org", "Internal", "Maximum number of volumes allowed (10) exceeded for quota 'volumes'.")
	}},
	explain.VolumeInOtherZone: {theWaiter, func(s *scene) {
		s.refuses("ebs.csi.aws.com", "Internal", "InvalidVolume.ZoneMismatch: The volume 'vol-1' is not in the same availability zone as instance 'i-1'")
	}},
	explain.NodeIdentityShared: {theWaiter, func(s *scene) {
		s.failed("rpc error: code = Internal desc = busy elsewhere")
		s.CSINodes[0].Spec.Drivers[0].NodeID = "i-1"
		twin := s.CSINodes[0].DeepCopy()
		twin.Name, s.CSINodes = "a", append(s.CSINodes, twin)
	}},
	explain.FileSystemDamaged: {theWaiter, func(s *scene) {
		s.mountFails("Internal", "mount failed: exit status 32 output: mount: /mnt: can't read superblock on /dev/sdi")
	}},
	explain.FileSystemMismatch: {theWaiter, func(s *scene) {
		s.mountFails("Internal", "target device is already formatted with different filesystem: volume=v1, current=xfs, new:ext4")
	}},
	explain.FSGroupRefused: {theWaiter, func(s *scene) {
		s.mountFails("Internal", "can't change permissions of folder /var/lib/kubelet/v: chmod /var/lib/kubelet/v: operation not permitted")
	}},
	explain.OwnershipChanging: {theWaiter, func(s *scene) {
		s.mounts()
		s.says("", "Pod", explain.VolumePermissionChangeInProgress, "Setting volume ownership for 0f1/volumes/kubernetes.io~csi/pv/mount, processed 5 files.", time.Second)
	}},
	explain.OperationPending: {theWaiter, func(s *scene) {
		s.mountFails("Aborted", "An operation with the given volume key v1 already exists")
	}},
}

// onB is the VolumeAttachment of the pod that waits.
func (s scene) onB() *storagev1.VolumeAttachment {
	va := s.va.DeepCopy()
	va.Name, va.Spec.NodeName = kube.AttachmentName("h", oneDriver, "b"), "b"
	return va
}

// fenceScenes are those of a fence that waits for each of its reasons.
func fenceScenes() map[decision.Reason]one {
	scenes := map[decision.Reason]one{}
	for _, r := range fencing.Exits.Reasons() {
		if missing, _ := explain.FenceWait(r); explain.FenceWaitReason(missing) == r {
			scenes[r] = one{nodeA, func(s *scene) {
				s.silent()
				s.Fences = []*fencingv1.NodeFence{{
					ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{kube.FenceFinalizer}}, Spec: fencingv1.NodeFenceSpec{NodeName: "a"},
					Status: fencingv1.NodeFenceStatus{Phase: fencingv1.Phase(fencing.Fencing), Missing: []string{missing}},
				}}
			}}
		}
	}
	delete(scenes, fencing.NodeUnknown) // nodeScenes has it
	return scenes
}

// source makes node a one whose power switch could not be used, for a reason of its condition FenceReady.
func (s *scene) source(reason string) {
	s.FenceSources = []*fencingv1.FenceSource{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: fencingv1.FenceSourceStatus{
		Conditions: []metav1.Condition{{Type: kube.ConditionFenceReady, Status: metav1.ConditionFalse, Reason: reason}},
	}}}
	s.a.Status.NodeInfo.BootID, s.a.Status.NodeInfo.SystemUUID, s.a.UID = "boot", "machine", "a"
}

// heldScenes are those of a node that is not fenced.
func heldScenes() map[decision.Reason]one {
	scenes := map[decision.Reason]one{
		explain.AgentUnusable:  {nodeA, func(s *scene) { s.source(string(explain.AgentUnusable)) }},
		explain.OptionsRefused: {nodeA, func(s *scene) { s.source(string(explain.OptionsRefused)) }},
		explain.OffUntested:    {nodeA, func(s *scene) { s.source(string(explain.OffUntested)) }},
		explain.SecretNotBound: {nodeA, func(s *scene) { s.source(string(explain.SecretNotBound)) }},
		explain.RecoveryNotRunning: {nodeA, func(s *scene) {
			s.source("SaidOn")
			status, boot := &s.FenceSources[0].Status, kube.BootOf(s.a)
			status.Conditions[0].Status = metav1.ConditionTrue
			status.Bound = &fencingv1.Bound{NodeUID: boot.NodeUID, BootID: boot.ID, MachineID: boot.Machine, HardwareID: boot.Machine}
		}},
		explain.TaintWithoutFence: {nodeA, func(s *scene) {
			s.a.Spec.Taints = []corev1.Taint{{Key: kube.IsolationTaint, Value: "belay-1", Effect: corev1.TaintEffectNoSchedule}}
		}},
	}
	for _, r := range explain.Guides() {
		if explain.IsNotFenced(r) {
			scenes[r] = one{nodeA, func(s *scene) {
				s.silent()
				s.reports(r)
				switch r {
				case fencing.NodeOptedOut:
					s.a.Annotations[kube.FenceOptOutAnnotation] = "true"
				case fencing.NodeUnderMaintenance:
					s.a.Status.Conditions = append(s.a.Status.Conditions, corev1.NodeCondition{Type: "MaintenanceInProgress", Status: corev1.ConditionTrue})
				case fencing.TooManySilent, fencing.ZoneSilent:
					s.Leases[2].Spec.RenewTime.Time = s.Now.Add(-time.Minute)
				case fencing.TooManyInFlight:
					s.Fences = []*fencingv1.NodeFence{{
						ObjectMeta: metav1.ObjectMeta{Name: "b", Finalizers: []string{kube.FenceFinalizer}}, Spec: fencingv1.NodeFenceSpec{NodeName: "b"},
						Status: fencingv1.NodeFenceStatus{Phase: fencingv1.Phase(fencing.Evicting)},
					}}
				case fencing.NoSecondSignal:
					s.a.Status.Conditions[0].Status = corev1.ConditionTrue
				case fencing.NodeIdentityUnknown:
					s.a.Status.NodeInfo.SystemUUID = ""
				case fencing.ControlPlaneNode:
					s.a.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
				}
			}}
		}
	}
	return scenes
}

// TestUnansweredReasonsAreFew shows that the test above asks for something: most reasons are answered by a command.
func TestUnansweredReasonsAreFew(t *testing.T) {
	said := 0
	for _, r := range explain.Guides() {
		if why := explain.GuideTo(r).Unanswered; why != "" {
			said++
			if strings.TrimSpace(why) != why || strings.HasSuffix(why, ".") {
				t.Errorf("%s: %q", r, why)
			}
		}
	}
	if said > len(explain.Guides())/3 {
		t.Errorf("%d of %d reasons are not answered", said, len(explain.Guides()))
	}
}
