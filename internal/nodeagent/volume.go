package nodeagent

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// volume is one CSI volume on this node. All fields are guarded by volumeManager.mu; only its reconcile changes state.
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

// ensureVolume returns the volume, and creates it if it is new. The caller holds mu.
func (m *volumeManager) ensureVolume(name, driver, handle string, inline bool) *volume {
	v, ok := m.all[name]
	if !ok {
		v = &volume{name: name, driver: driver, handle: handle, state: nodevolume.VolumeState{Inline: inline}, waits: map[nodevolume.PublishKey]currentWait{}}
		m.all[name] = v
	}
	return v
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
