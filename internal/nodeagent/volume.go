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

// volume is one CSI volume on this node. All fields are under volumeManager.mu; its life is changed by the volume's own turn alone.
type volume struct {
	name, driver, handle string
	life                 nodevolume.VolumeState
	// pods are what is known here of those of its life.
	pods        []*podVolume
	unstageTold eventDedup
	// unstageFailingSince is when the first unstage began of those that failed in a row.
	unstageFailingSince time.Time
	// unconfirmed is the record of a stage that the driver has confirmed and the disk has not: the pod's publish goes first. The
	// volume's own turn alone uses it.
	unconfirmed *nodevolume.Record
	// publishing is the pod that the running step publishes for.
	publishing nodevolume.PublishKey
	// began is when the running step did; asked is its call, while that has no answer.
	began time.Time
	asked *unanswered
	// users is who else has the volume mounted.
	users users
	holds map[nodevolume.PublishKey]holding
	// growthTold is the last event that was sent about an expansion that failed.
	growthTold string
	measured   measured
	// releasedAt is since when no pod wants the volume; zero while one does, or may.
	releasedAt time.Time
	// statsPlanned and attachErrorPlanned: there is a periodic task for it.
	statsPlanned, attachErrorPlanned bool
	// attachLimit says that the node is full, as the attachError of exhaustedAt did.
	attachLimit *AttachLimitError
	exhaustedAt metav1.Time
}

// podVolume is a volume for one pod: wanted, or known from a record.
type podVolume struct {
	*nodevolume.PodVolume
	// want is nil if the pod is known from a record alone.
	want *wantedVolume
	// problem is what the last failure said, and step the one that failed, the first time in
	// a row at failingSince.
	problem      error
	step         string
	failingSince time.Time
	// told is the last event that was sent about it.
	told eventDedup
	// publishContext is what this agent published it with; nil if another one did.
	publishContext map[string]string
	// subPaths is held while parts of it are mounted or unmounted for the pod's containers; it is taken before mu.
	subPaths sync.Mutex
	// groupChange is not nil while the volume's files are given to the pod's fsGroup.
	groupChange *mount.GroupChange
	// stats is what the driver said last, nil if nothing; toldHealth the condition that
	// the pod was told of.
	stats      *publishedStats
	toldHealth string
	// withoutStats: this version of the driver says that it knows nothing of an inline volume's path.
	withoutStats bool
}

// holding is a hold and when it began.
type holding struct {
	reason nodevolume.Reason
	since  time.Time
}

// volumeNamed returns the volume and makes it if it is new. The caller holds mu.
func (m *volumeManager) volumeNamed(name, driver, handle string, inline bool) *volume {
	v, ok := m.all[name]
	if !ok {
		v = &volume{name: name, driver: driver, handle: handle, life: nodevolume.VolumeState{Inline: inline}, holds: map[nodevolume.PublishKey]holding{}}
		m.all[name] = v
	}
	return v
}

// publication returns the volume's entry for a pod and makes it if it is new.
func (v *volume) publication(key nodevolume.PublishKey) *podVolume {
	if p := v.find(key); p != nil {
		return p
	}
	p := &podVolume{PodVolume: v.life.EnsurePod(key)}
	v.pods = append(v.pods, p)
	return p
}

func (v *volume) find(key nodevolume.PublishKey) *podVolume {
	if i := slices.IndexFunc(v.pods, func(p *podVolume) bool { return p.Key == key }); i >= 0 {
		return v.pods[i]
	}
	return nil
}

// stagingPath is where the volume is, or would be, staged for a pod. Two PersistentVolumes may share a handle, and then
// it stays where the first one's name has put it.
func (v *volume) stagingPath(w *wantedVolume) string {
	if v.life.Stage.Phase != nodevolume.Absent {
		return v.life.Stage.Record.Path
	}
	return stagingPath(w)
}

// specName is the PersistentVolume's name by which events speak of the volume.
func (v *volume) specName() string {
	for _, p := range v.pods {
		if p.Key.SpecName != "" {
			return p.Key.SpecName
		}
	}
	return cmp.Or(v.life.Stage.Record.SpecName, v.handle)
}

// podOf is the reference for events about a publication.
func (p *podVolume) podOf() *corev1.ObjectReference {
	if p.want != nil {
		return p.want.pod.ref()
	}
	pod := p.Record.Pod
	return podIdentity{UID: types.UID(p.Key.PodUID), Namespace: pod.Namespace, Name: pod.Name}.ref()
}
