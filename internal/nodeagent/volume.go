package nodeagent

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodevolume"
)

// volume is one CSI volume on this node. All fields are under Agent.mu; phases,
// records and the attachment are changed by the volume's own turn alone.
type volume struct {
	name, driver, handle string
	// inline: it is one pod's own, and named after it.
	inline         bool
	pods           []*publication
	stage          recorded
	unstage        nodevolume.Failure
	unstageProblem error
	unstageTold    told
	// unstageFailingSince is when the first unstage began of those that failed in a row.
	unstageFailingSince time.Time
	// began is when the running step did; asked is its call, while that has no answer.
	began time.Time
	asked *unanswered
	// users is who else has the volume mounted, as far as the running turn has looked.
	users userSearch
	// attachment is as read live; decidedOn is what the running step was decided on.
	attachment nodevolume.Lookup
	decidedOn  nodevolume.Attachment
	holds      map[nodevolume.PublishKey]holding
	growth     growth
	measured   measured
	// statsPlanned and attachErrorPlanned: there is a chore for it.
	statsPlanned, attachErrorPlanned bool
	// attachLimit says that the node is full, as the attachError of exhaustedAt did.
	attachLimit *AttachLimitError
	exhaustedAt metav1.Time
}

// recorded is a record and what is known beyond it.
type recorded struct {
	record nodevolume.Record
	phase  nodevolume.Phase
	// heard is when the driver confirmed it to this agent.
	heard nodevolume.Confirmation
}

// inUse: what it speaks of may be there, and was made under the handshake over volumesInUse.
func (r recorded) inUse() bool { return r.phase != nodevolume.Absent && r.record.InUse }

// publication is a volume for one pod: wanted, or known from a record.
type publication struct {
	key nodevolume.PublishKey
	// want is nil if the pod is known from a record alone.
	want    *want
	publish recorded
	failure nodevolume.Failure
	// problem is what the last failure said, and step the one that failed, the first time in
	// a row at failingSince.
	problem      error
	step         string
	failingSince time.Time
	// told is the last event that was sent about it.
	told told
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
func (a *Agent) volumeNamed(name, driver, handle string) *volume {
	v, ok := a.volumes[name]
	if !ok {
		v = &volume{name: name, driver: driver, handle: handle, holds: map[nodevolume.PublishKey]holding{}}
		a.volumes[name] = v
	}
	return v
}

// publication returns the volume's entry for a pod and makes it if it is new.
func (v *volume) publication(key nodevolume.PublishKey) *publication {
	for _, p := range v.pods {
		if p.key == key {
			return p
		}
	}
	p := &publication{key: key}
	v.pods = append(v.pods, p)
	return p
}

// turn works on one volume until there is nothing more to do for it now.
func (a *Agent) turn(ctx context.Context, name string) {
	a.mu.Lock()
	if v := a.volumes[name]; v != nil {
		v.attachment.Doubt()
		v.users.found = nodevolume.Unknown
	}
	a.mu.Unlock()
	for ctx.Err() == nil {
		v, decision := a.decide(name, time.Now())
		if v == nil {
			return
		}
		if decision.Next == nil {
			a.rest(v, decision)
			return
		}
		a.apply(ctx, v, decision.Next)
	}
}

// decide takes the snapshot of a volume and asks nodevolume about it. It returns
// nil when the volume is gone from this node.
func (a *Agent) decide(name string, now time.Time) (*volume, nodevolume.Decision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.volumes[name]
	if v == nil {
		return nil, nodevolume.Decision{}
	}
	a.dropReleased(v)
	observed := a.observed(v)
	if observed.AttachRequired == nodevolume.No {
		// What was read before the CSIDriver changed is not for a stage without the handshake.
		v.attachment.Doubt()
		observed.Attachment = nodevolume.Attachment{}
	}
	v.decidedOn = observed.Attachment
	decision := nodevolume.Decide(now, a.desired(v), observed)
	if decision.InUse != nodevolume.Unknown {
		// Under the lock of the snapshot: no write can follow an older wish in between.
		if a.inUse.Want(name, decision.InUse == nodevolume.Yes) {
			a.wakeInUse()
		}
	}
	if decision.Forget {
		a.inUse.Forget(name)
		a.measureWaits(v, nil, now)
		delete(a.volumes, name)
		for _, p := range v.pods {
			a.leave(types.UID(p.key.PodUID), name)
		}
		a.log.V(1).Info("Nothing is left of the volume on this node", "volume", name)
		return nil, nodevolume.Decision{}
	}
	return v, decision
}

// dropReleased lets go of pods that are gone and have nothing published. The caller holds mu.
func (a *Agent) dropReleased(v *volume) {
	v.pods = slices.DeleteFunc(v.pods, func(p *publication) bool {
		if p.publish.phase != nodevolume.Absent || a.claim(p) != nodevolume.Released {
			return false
		}
		delete(v.holds, p.key)
		a.leave(types.UID(p.key.PodUID), v.name)
		return true
	})
}

// claim is what the pod's owner says about it. The caller holds mu.
func (a *Agent) claim(p *publication) nodevolume.Claim {
	owner := a.pods[types.UID(p.key.PodUID)]
	switch {
	case owner == nil, owner.removed:
		return nodevolume.Released
	case owner.ending != nil:
		return nodevolume.Ending
	case owner.object != nil:
		if p.want != nil && p.publish.phase == nodevolume.Absent && owner.object.DeletionTimestamp != nil && !a.isUnaccounted(p.want.name()) {
			return nodevolume.Released // a pod that ends gets no first mount; one that it has stays
		}
		if p.want != nil {
			return nodevolume.Wanted
		}
		if owner.resolved {
			return nodevolume.Released
		}
		return nodevolume.Unclaimed
	case a.podsSynced, p.publish.record.Leaving:
		return nodevolume.Released
	default:
		return nodevolume.Unclaimed
	}
}

func (a *Agent) desired(v *volume) nodevolume.Desired {
	d, rules := nodevolume.Desired{}, a.rulesOf(v.driver)
	for _, p := range v.pods {
		d.Pods = append(d.Pods, nodevolume.Pod{
			Key: p.key, Claim: a.claim(p), Publish: p.publish.phase, LastConfirmed: p.publish.heard, Leaving: a.leaving(p),
			Label: rules.label(p.want), PublishedLabel: p.publish.record.SELinuxLabel,
			SolePod: p.solePod(), ReadOnly: p.want != nil && p.want.readOnly, Failure: p.failure,
		})
	}
	return d
}

func (a *Agent) observed(v *volume) nodevolume.Observed {
	o := nodevolume.Observed{
		Inline:         v.inline,
		Node:           a.inUse.View(v.name),
		AttachRequired: a.attachRequired(v.driver),
		RecordedInUse:  v.stage.inUse(),
		Unaccounted:    a.isUnaccounted(v.name),
		Attachment:     v.attachment.Known(),
		Stage:          nodevolume.Stage{Phase: v.stage.phase, AttachmentUID: v.stage.record.AttachmentUID, Label: v.stage.record.SELinuxLabel},
		Unstage:        v.unstage,
		Users:          nodevolume.Users{Found: v.users.found, Search: v.users.search},
		Growth:         nodevolume.Growth{Due: v.growth.Due(), Failure: v.growth.Failure},
	}
	for _, p := range v.pods {
		o.RecordedInUse = o.RecordedInUse || p.publish.inUse()
	}
	if d := a.drivers[v.driver]; d != nil {
		o.Driver.Registered = true
		if a.rulesOf(v.driver).republish {
			o.Driver.RepublishEvery = a.config.republishEvery
		}
		if d.capabilities != nil {
			o.Driver.Stages = knowledge(d.capabilities.Stage)
		}
	}
	return o
}

func knowledge(is bool) nodevolume.Knowledge {
	if is {
		return nodevolume.Yes
	}
	return nodevolume.No
}

// defaultLongWait is after how long a pod that waits in one hop is told so by an event.
const defaultLongWait = 30 * time.Second

// rest keeps why the volume waits, and comes back when a back-off ends.
func (a *Agent) rest(v *volume, decision nodevolume.Decision) {
	now := time.Now()
	if !decision.RecheckAt.IsZero() {
		a.volumeQueue.AddAfter(v.name, decision.RecheckAt.Sub(now))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	holds := make(map[nodevolume.PublishKey]holding, len(decision.Holds))
	for _, hold := range decision.Holds {
		since := now
		if was, ok := v.holds[hold.Key]; ok && was.reason == hold.Reason {
			since = was.since
		} else {
			a.log.V(1).Info("Waits", "volume", v.name, "pod", hold.Key.PodUID, "reason", hold.Reason)
		}
		holds[hold.Key] = holding{reason: hold.Reason, since: since}
		switch left := since.Add(a.toldAfter(hold.Reason)).Sub(now); {
		case left > 0:
			a.volumeQueue.AddAfter(v.name, left)
		default:
			a.tellLongWait(v, hold, since)
			a.volumeQueue.AddAfter(v.name, toldAgain)
		}
	}
	v.holds = holds
	a.measureWaits(v, decision.Holds, now)
	a.planStats(v)
	a.planAttachError(v)
}

// attachmentWait is the longest wait before a VolumeAttachment is read again. A node may not
// watch it (the Node authorizer permits get alone). What wakes the volume as a rule is that the
// Node reports it attached, which comes after; nothing tells of an attachment that comes later.
const attachmentWait = 5 * time.Second

// failed notes a failure of a pod's step and tells the pod.
func (a *Agent) failed(v *volume, key nodevolume.PublishKey, step string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := v.publication(key)
	if p.failure.Count == 0 || p.step != step {
		p.failingSince = cmp.Or(v.began, time.Now())
	}
	p.problem, p.step = err, step
	owner := a.pods[types.UID(key.PodUID)]
	switch onTheWayBack := step == stepUnpublish || step == stepUnstage; {
	case !onTheWayBack && (owner == nil || owner.removed):
		p.failure = nodevolume.Failure{} // what kept it from being mounted does not hold up the way back
	default:
		p.failure = again(p.failure)
	}
	if step == stepWaitForAttach {
		p.failure.AtMost = attachmentWait
	}
	a.log.Info("Step failed", "step", step, "volume", v.name, "pod", key.PodUID, "failures", p.failure.Count, "problem", err.Error())
	a.tellFailure(v, p, step, err)
}

// succeeded clears a pod's failures.
func (a *Agent) succeeded(v *volume, key nodevolume.PublishKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := v.publication(key)
	p.failure, p.problem, p.step, p.told = nodevolume.Failure{}, nil, "", told{}
}

func again(f nodevolume.Failure) nodevolume.Failure {
	return nodevolume.Failure{Count: f.Count + 1, At: time.Now(), Jitter: rand.Float64()} //nolint:gosec // spreads retries
}

// solePod: no other pod may have the volume beside this one.
func (p *publication) solePod() bool {
	if p.want != nil {
		return p.want.solePod
	}
	return p.publish.record.SolePod
}

// stagingPath is where the volume is, or would be, staged for a pod. Two PersistentVolumes may share a handle, and then
// it stays where the first one's name has put it.
func (v *volume) stagingPath(w *want) string {
	if v.stage.phase != nodevolume.Absent {
		return v.stage.record.Path
	}
	return stagingPath(w)
}

// specName is the PersistentVolume's name by which events speak of the volume.
func (v *volume) specName() string {
	for _, p := range v.pods {
		if p.key.SpecName != "" {
			return p.key.SpecName
		}
	}
	return cmp.Or(v.stage.record.SpecName, v.handle)
}

// podOf is the reference for events about a publication.
func (p *publication) podOf() *corev1.ObjectReference {
	if p.want != nil {
		return p.want.pod.ref()
	}
	pod := p.publish.record.Pod
	return podIdentity{UID: types.UID(p.key.PodUID), Namespace: pod.Namespace, Name: pod.Name}.ref()
}
