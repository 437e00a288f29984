package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/decision"
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

// turn works on one volume until there is nothing more to do for it now.
func (m *volumeManager) turn(ctx context.Context, name string) {
	m.mu.Lock()
	if v := m.all[name]; v != nil {
		v.life.BeginTurn()
	}
	m.mu.Unlock()
	for {
		v, decision := m.decide(name, time.Now())
		if v == nil {
			return
		}
		switch decision.Next.(type) {
		case nodevolume.ReadAttachment, nodevolume.Publish:
		default:
			m.confirmStage(v)
		}
		if decision.Next == nil {
			m.rest(v, decision)
			return
		}
		if ctx.Err() != nil {
			m.confirmStage(v)
			return
		}
		m.apply(ctx, v, decision.Next)
	}
}

// decide takes the snapshot of a volume and asks nodevolume about it. It returns
// nil when the volume is gone from this node.
func (m *volumeManager) decide(name string, now time.Time) (*volume, nodevolume.Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.all[name]
	if v == nil {
		return nil, nodevolume.Decision{}
	}
	m.noteReleased(v, now)
	decision := m.status.settle(name, func(node nodevolume.Node) nodevolume.Decision {
		return v.life.Decide(now, m.facts(v, node))
	})
	m.drop(v, decision.Dropped)
	if decision.Forget {
		m.measureWaits(v, nil, now)
		delete(m.all, name)
		for _, p := range v.pods {
			m.pods.leave(types.UID(p.Key.PodUID), name)
		}
		m.log.V(1).Info("Volume removed from this node", "volume", name)
		return nil, nodevolume.Decision{}
	}
	return v, decision
}

// drop lets go of pods that are gone and have nothing published. The caller holds mu.
func (m *volumeManager) drop(v *volume, left []nodevolume.PublishKey) {
	for _, key := range left {
		v.pods = slices.DeleteFunc(v.pods, func(p *podVolume) bool { return p.Key == key })
		delete(v.holds, key)
		if !slices.ContainsFunc(v.pods, func(p *podVolume) bool { return p.Key.PodUID == key.PodUID }) { // by another PersistentVolume
			m.pods.leave(types.UID(key.PodUID), v.name)
		}
	}
}

// claims tells what the owner of a pod says about its publication. The caller holds mu.
func (m *volumeManager) claims(v *volume) func(*podVolume) nodevolume.Demand {
	facts := m.facts(v, nodevolume.Node{})
	return func(p *podVolume) nodevolume.Demand { return v.life.Demand(facts, p.PodVolume) }
}

// facts is what a volume's life does not know by itself. The caller holds mu.
func (m *volumeManager) facts(v *volume, node nodevolume.Node) nodevolume.Facts {
	rules := m.plugins.rules(v.driver)
	facts := nodevolume.Facts{
		Node: node, AttachRequired: m.plugins.attachRequired(v.driver), Unaccounted: m.isUnaccounted(v.name),
		Pod: func(p *nodevolume.PodVolume) nodevolume.PodFacts {
			facts := nodevolume.PodFacts{PodState: m.pods.state(types.UID(p.Key.PodUID))}
			if w := v.find(p.Key).want; w != nil {
				facts.Wants, facts.Label, facts.SolePod, facts.ReadOnly = true, rules.label(w), w.solePod, w.readOnly
			}
			return facts
		},
	}
	if client, has := m.plugins.registered(v.driver); client != nil {
		facts.Driver.Registered = true
		if rules.republish {
			facts.Driver.RepublishEvery = m.config.republishEvery
		}
		if has != nil {
			facts.Driver.Stages = decision.Known(has.Stage)
		}
	}
	return facts
}

// defaultLongWait is after how long a pod that waits in one hop is told so by an event.
const defaultLongWait = 30 * time.Second

// rest keeps why the volume waits, and comes back when a back-off ends.
func (m *volumeManager) rest(v *volume, decision nodevolume.Decision) {
	now := time.Now()
	if !decision.RecheckAt.IsZero() {
		m.queue.AddAfter(v.name, decision.RecheckAt.Sub(now))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	holds := make(map[nodevolume.PublishKey]holding, len(decision.Waits))
	for _, hold := range decision.Waits {
		since := now
		if was, ok := v.holds[hold.Key]; ok && was.reason == hold.Reason {
			since = was.since
		} else {
			m.log.V(1).Info("Waiting", "volume", v.name, "pod", hold.Key.PodUID, "reason", hold.Reason)
		}
		holds[hold.Key] = holding{reason: hold.Reason, since: since}
		switch left := since.Add(m.toldAfter(hold.Reason)).Sub(now); {
		case left > 0:
			m.queue.AddAfter(v.name, left)
		default:
			m.emitLongWait(v, hold, since)
			m.queue.AddAfter(v.name, repeatEventAfter)
		}
	}
	v.holds = holds
	m.measureWaits(v, decision.Waits, now)
	m.planStats(v)
	m.planAttachError(v)
}

// outcome takes in how a step ended, and tells the pod of a failure. A call that ends with the agent says nothing of the driver, and
// the next agent makes it again.
func (m *volumeManager) outcome(ctx context.Context, v *volume, step nodevolume.Step, err error) {
	if errors.Is(err, errOutdated) {
		return // and decided anew
	}
	key, name := nodevolume.KeyOf(step), v.nameOf(step)
	m.stepEnded(v, key, name, err)
	if err != nil && ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, unstage := step.(nodevolume.Unstage)
	if err == nil || errors.Is(err, errReleased) {
		v.life.Succeeded(step)
		if !unstage {
			p := v.publication(key)
			p.problem, p.step, p.told = nil, "", eventDedup{}
		}
		return
	}
	v.life.Failed(step, time.Now(), rand.Float64(), m.pods.state(types.UID(key.PodUID)).Removed) //nolint:gosec // spreads retries
	if unstage {
		m.log.Error(err, "Volume operation failed", "operation", name, "volume", v.name, "failures", v.life.Unstage.Count)
		m.emitUnstage(v, err)
		return
	}
	p := v.publication(key)
	if p.Failure.Count <= 1 || p.step != name {
		p.failingSince = cmp.Or(v.began, time.Now())
	}
	p.problem, p.step = err, name
	m.log.Error(err, "Volume operation failed", "operation", name, "volume", v.name, "pod", key.PodUID, "failures", p.Failure.Count)
	m.emitFailure(v, p, name, err)
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
