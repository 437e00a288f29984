package nodeagent

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// volume is one CSI volume on this node. All fields are guarded by volumeSet.mu; only volumeManager.reconcile changes state.
type volume struct {
	name, driver, handle string
	state                nodevolume.VolumeState
	// pods has an entry for each of state.Pods.
	pods             []*podVolume
	lastUnstageEvent eventDedup
	// unstageFailingSince is when the first of the failed unstages in a row began.
	unstageFailingSince time.Time
	// unsavedStage is the record of a confirmed stage that is saved after the publish, for speed. Only reconcile uses it.
	unsavedStage *nodevolume.Record
	trace        volumeTrace
	// publishing is the pod for which a publish is running.
	publishing nodevolume.PublishKey
	// began is when the running step began; pending is its call to the driver, if any.
	began   time.Time
	pending *pendingCall
	// users are the other users of the volume.
	users users
	waits map[nodevolume.PublishKey]currentWait
	// lastExpandEvent is the last event about a failed expansion; its text begins with the pod's UID.
	lastExpandEvent eventDedup
	measured        measured
	// releasedAt is since when no pod uses the volume; zero while one does, or may.
	releasedAt time.Time
	// statsPlanned and attachErrorPlanned are set while a periodic task is scheduled.
	statsPlanned, attachErrorPlanned bool
	// attachLimit reports that the attach limit was exhausted at exhaustedAt, the time of the attachError.
	attachLimit *AttachLimitError
	exhaustedAt metav1.Time
}

// podVolume is a volume for one pod: from its spec or from a record.
type podVolume struct {
	*nodevolume.PodVolume
	// toMount is nil if the pod is only known from a record.
	toMount *volumeToMount
	// addedAt is when this agent learned of the pod's volume.
	addedAt time.Time
	// problem is the last failure, step the step that failed, and failingSince the beginning of the first such failure in a row.
	problem      error
	step         string
	failingSince time.Time
	lastEvent    eventDedup
	// publishContext is that of the publish by this agent; nil if an earlier agent published the volume.
	publishContext map[string]string
	// subPaths serializes mounting and unmounting subPaths; it is locked before mu.
	subPaths sync.Mutex
	// groupChange is the running fsGroup change, or nil.
	groupChange *mount.GroupChange
	// stats are the latest stats, or nil; reportedHealth is the last condition in an event.
	stats          *publishedStats
	reportedHealth string
	// statsUnsupported is set if this version of the driver does not know the path of an inline volume.
	statsUnsupported bool
}

// currentWait is the reason of a wait and its beginning.
type currentWait struct {
	reason nodevolume.Reason
	since  time.Time
}

// ensurePod returns the volume's entry for a pod, and creates it if it is new.
func (v *volume) ensurePod(key nodevolume.PublishKey) *podVolume {
	if p := v.findPod(key); p != nil {
		return p
	}
	p := &podVolume{PodVolume: v.state.EnsurePod(key), addedAt: time.Now()}
	v.pods = append(v.pods, p)
	return p
}

func (v *volume) findPod(key nodevolume.PublishKey) *podVolume {
	if i := slices.IndexFunc(v.pods, func(p *podVolume) bool { return p.Key == key }); i >= 0 {
		return v.pods[i]
	}
	return nil
}

// stagingPath returns where the volume is, or would be, staged. Two PersistentVolumes may share a handle; then the name of the first one
// determines the path.
func (v *volume) stagingPath(w *volumeToMount) string {
	if v.state.Stage.Phase != nodevolume.Absent {
		return v.state.Stage.Record.Path
	}
	return stagingPath(w)
}

// specName returns the name of a PersistentVolume for events about the volume.
func (v *volume) specName() string {
	for _, p := range v.pods {
		if p.Key.SpecName != "" {
			return p.Key.SpecName
		}
	}
	return cmp.Or(v.state.Stage.Record.SpecName, v.handle)
}

// podRef returns the reference for events about the pod.
func (p *podVolume) podRef() *corev1.ObjectReference {
	if p.toMount != nil {
		return p.toMount.pod.ref()
	}
	pod := p.Record.Pod
	return podIdentity{UID: types.UID(p.Key.PodUID), Namespace: pod.Namespace, Name: pod.Name}.ref()
}

// pendingCall is a call to a volume's driver that has not returned yet.
type pendingCall struct {
	method string
	// step is the step to which the call belongs, and key its pod.
	step  string
	key   nodevolume.PublishKey
	since time.Time
	// timeout is when the call ends without an answer.
	timeout time.Duration
}

// users are the other users of a volume. Guarded by volumeSet.mu.
type users struct {
	// problem names them, or why they could not be found.
	problem error
	// watched is the PID of a process whose exit is awaited; 0 for none.
	watched int
}

func (u users) text() string {
	text := explain.NodeReason(nodevolume.StillMountedElsewhere)
	if u.problem == nil {
		return text
	}
	return explain.ReasonWithCause(text, u.problem)
}

// volumeTrace is how the spans of a volume relate to the trace of its attach.
type volumeTrace struct {
	// attachment is the UID of the VolumeAttachment that the rest is about.
	attachment string
	// traceparent is that of the VolumeAttachment, or of the span of the wait for it if that has none.
	traceparent string
	// over is set when a pod has the volume: the attach that it waited for is complete. What follows has traces of its own, with a link.
	over bool
}

// measured are the running measurements of a volume. The zero key is the volume's unstage.
type measured struct {
	// began is when the current operation of a pod began.
	began map[nodevolume.PublishKey]time.Time
	// waits are the current waits. Unlike volume.waits they end when a step begins.
	waits map[nodevolume.PublishKey]currentWait
}

// publishedStats are the latest stats of one publish.
type publishedStats struct {
	at time.Time
	csi.VolumeStats
}

// usage returns the reported values. As in kubelet, missing ones are 0.
func (s *publishedStats) usage() (bytes, inodes csi.Usage) {
	if s.Bytes != nil {
		bytes = *s.Bytes
	}
	if s.Inodes != nil {
		inodes = *s.Inodes
	}
	return bytes, inodes
}

// hasStats reports whether the driver can be called for stats of the volume.
func (p *podVolume) hasStats() bool {
	return p.toMount != nil && p.Phase == nodevolume.Confirmed && !p.statsUnsupported
}

// isReady reports whether the publish is confirmed and the pod does not wait for an expansion. The caller holds mu.
func (v *volume) isReady(p *podVolume) bool {
	return p.Phase == nodevolume.Confirmed && !v.state.Growth.Waits(p.Key)
}

func (v *volume) waitsForAttach() bool {
	for _, wait := range v.waits {
		if wait.reason == nodevolume.NotAttached {
			return true
		}
	}
	return false
}

// mountedLabel returns the label with which the volume is, or may be, mounted.
func (v *volume) mountedLabel() string {
	if v.state.Stage.Phase != nodevolume.Absent {
		return v.state.Stage.Record.SELinuxLabel
	}
	for _, p := range v.pods {
		if p.Phase != nodevolume.Absent {
			return p.Record.SELinuxLabel
		}
	}
	return ""
}

// otherPods lists the other pods for which the volume is or may be published.
func (v *volume) otherPods(key nodevolume.PublishKey) string {
	var names []string
	for _, p := range v.pods {
		if pod := p.podRef(); p.Phase != nodevolume.Absent && p.Key.PodUID != key.PodUID && pod.Name != "" {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return explain.OtherPods(names)
}

// isBlock reports whether the volume is, or will be, a block device for the pod.
func (p *podVolume) isBlock() bool {
	return p.Record.Block || (p.toMount != nil && p.toMount.block)
}

// pvcRef returns the reference for events about the claim, or nil.
func (p *podVolume) pvcRef() *corev1.ObjectReference {
	pod := p.Record.Pod
	claim, namespace := claimRef{name: pod.Claim, uid: types.UID(pod.ClaimUID)}, pod.Namespace
	if p.toMount != nil {
		claim, namespace = p.toMount.claim, p.toMount.pod.Namespace
	}
	if claim.name == "" {
		return nil
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: namespace, Name: claim.name, UID: claim.uid}
}

// firstStep is the step named in events before any call to the driver.
func (v *volume) firstStep() string {
	if v.state.Inline {
		return stepSetUp
	}
	return stepMountDevice
}

// nameOf returns kubelet's name of a step.
func (v *volume) nameOf(step nodevolume.Step) string {
	switch step.(type) {
	case nodevolume.ReadAttachment:
		return stepWaitForAttach
	case nodevolume.StageVolume:
		return stepMountDevice
	case nodevolume.Publish, nodevolume.Republish:
		return stepSetUp
	case nodevolume.Unpublish:
		return stepUnpublish
	case nodevolume.Unstage:
		return stepUnstage
	default:
		return v.firstStep()
	}
}

// recordName returns the file name of the record of a step.
func (v *volume) recordName(step nodevolume.Step) string {
	switch step.(type) {
	case nodevolume.StageVolume, nodevolume.Unstage:
		return stageRecordName(v.name)
	default:
		return publishRecordName(v.name, nodevolume.KeyOf(step))
	}
}

// Kubelet's names of the steps, as in its events.
const (
	stepWaitForAttach = explain.StepWaitForAttach
	stepMountDevice   = explain.StepMountDevice
	stepSetUp         = explain.StepSetUp
	stepUnpublish     = explain.StepUnpublish
	stepUnstage       = explain.StepUnstage
)
