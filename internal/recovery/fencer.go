package recovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

const (
	// exerciseEvery is how often a switch is asked while its node lives, so that a fault is known before the switch is needed.
	exerciseEvery = time.Minute
	// lookEvery is how often the switch of a node that has fallen silent is asked, which is a second signal for the detector.
	lookEvery = 2 * time.Second
	// maxLooks is how often the time between two looks at a switch that does not answer is doubled: to 32 s.
	maxLooks = 4
)

// Reasons of the condition FenceReady.
const (
	reasonReady      = "SaidOn"
	reasonShared     = kube.SourceShared
	reasonLocked     = kube.SourceLocked
	reasonNoAnswer   = "NoAnswer"
	reasonOtherNode  = "OtherMachine"
	reasonNoIdentity = "NoIdentity"
	reasonSecret     = "SecretUnreadable"
	reasonNotOn      = "NotOn"
)

// fencer asks and commands the power switches.
type fencer struct {
	*parts

	// exercises has a place for each exercise that may run at a time, and looks one for each switch of a silent node that may be asked: fewer than there are
	// workers, so that a fence is served while the switches of other nodes hang.
	exercises, looks chan struct{}

	mu      sync.Mutex
	sources map[string]*sourceState
	// hurries has the nodes whose switches are to be exercised at once.
	hurries map[string]bool
	// commanded has when this process was about to command each node.
	commanded map[string]time.Time
}

func newFencer(p *parts) *fencer {
	return &fencer{parts: p, exercises: make(chan struct{}, agentsForEach), looks: make(chan struct{}, agentsForEach), sources: map[string]*sourceState{}, commanded: map[string]time.Time{}}
}

// sourceState is what this process knows about the switch of a node.
type sourceState struct {
	levels map[int]*levelState
	// answered has the nonces that this process has answered, or is about to.
	answered map[string]bool
	// unstored has the answers that are not in the record yet, by nonce.
	unstored map[string]fencingv1.Evidence
	// held is the command that was not sent yet.
	held heldCommand
	// exercised is when the switch was asked last without being asked to.
	exercised time.Time
	// looks is how often in a row it gave no clear answer while its node was silent and not fenced.
	looks int
	// earlier is set while the fence of an earlier machine of the name needs what the switch says.
	earlier bool
}

// Reconcile serves one node: what its NodeFences ask first, and otherwise an exercise of its switch. So it does while none of them is about the machine that the
// Node shows: that one may need the switch next.
func (f *fencer) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	source := &fencingv1.FenceSource{}
	if err := f.client.Get(ctx, client.ObjectKey{Name: r.Name}, source); err != nil {
		if apierrors.IsNotFound(err) {
			f.forget(r.Name)
		}
		f.Metrics.SourceGone(r.Name)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	state := f.state(r.Name)
	open, err := f.open(ctx, source)
	if err != nil {
		return reconcile.Result{}, err
	}
	if f.DryRun {
		open = nil
	}
	state.keep(open)
	after := lookEvery
	for _, fence := range open {
		next, err := f.serve(ctx, state, source, fence)
		switch {
		case apierrors.IsConflict(err): // another writer was first: read again
			return again, nil
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("serve the fence of node %s: %w", r.Name, err)
		}
		after = min(after, next)
	}
	if state.earlier = len(open) > 0; state.earlier && !f.replaced(ctx, r.Name, open) {
		return reconcile.Result{RequeueAfter: after}, nil
	}
	next, err := f.exercise(ctx, state, source)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("exercise the power switch of node %s: %w", r.Name, err)
	}
	return reconcile.Result{RequeueAfter: min(after, next)}, nil
}

// replaced reports whether the Node shows a machine that none of its fences is about.
func (f *fencer) replaced(ctx context.Context, name string, fences []*fencingv1.NodeFence) bool {
	node := &corev1.Node{}
	return f.client.Get(ctx, client.ObjectKey{Name: name}, node) == nil && kube.StandingFence(fences, bootOf(node)) == nil
}

func (f *fencer) state(node string) *sourceState {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sources[node]
	if s == nil {
		s = &sourceState{levels: map[int]*levelState{}, answered: map[string]bool{}, unstored: map[string]fencingv1.Evidence{}}
		f.sources[node] = s
	}
	return s
}

// forget drops what is known about a switch whose FenceSource was deleted. One that is created again is bound again before it is used.
func (f *fencer) forget(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sources, node)
	delete(f.hurries, node)
}

// keep forgets the answers to what none of the fences asks any more: one may ask once a second, for weeks.
func (s *sourceState) keep(open []*fencingv1.NodeFence) {
	asks := map[string]bool{}
	for _, fence := range open {
		if q := fence.Status.Question; q != nil {
			asks[q.Nonce] = true
		}
		for i := range fence.Status.Intents {
			asks[fence.Status.Intents[i].Nonce] = true
		}
	}
	maps.DeleteFunc(s.answered, func(nonce string, _ bool) bool { return !asks[nonce] })
	maps.DeleteFunc(s.unstored, func(nonce string, _ fencingv1.Evidence) bool { return !asks[nonce] })
}

// serve does what the record asks, if fencing.Serve allows.
func (f *fencer) serve(ctx context.Context, state *sourceState, source *fencingv1.FenceSource, fence *fencingv1.NodeFence) (time.Duration, error) {
	if err := f.reconsider(ctx, source); err != nil {
		return 0, err
	}
	r, err := f.requested(ctx, state, source, fence)
	if err != nil {
		return 0, err
	}
	for range 3 {
		switch s := fencing.Serve(f.now(), r); s {
		case fencing.ServeNothing:
			return lookEvery, nil
		case fencing.ServeRead:
			if err := f.readNode(ctx, &r); err != nil {
				return 0, err
			}
		case fencing.ServeRefusal:
			log.FromContext(ctx).Info("Did not switch off: the node shows a sign of life, is of the control plane, or is to be left alone", "nonce", r.Fence.Intent.Nonce)
			return lookEvery, f.answer(ctx, state, fence, r.Fence.Intent.Nonce, reply{raw: "not sent: " + errOvertaken.Error()})
		case fencing.ServeLate:
			f.reportLate(ctx, state, fence, r)
			return lookEvery, nil
		case fencing.ServeStatus:
			return lookEvery, f.call(ctx, state, source, fence, r, r.Open(f.now()), false)
		case fencing.ServeOff:
			return f.switchOff(ctx, state, source, fence, r)
		}
	}
	return readWithin, nil
}

// reconsider looks at a source that a person has corrected while its node is being fenced, or whose twin was corrected.
func (f *fencer) reconsider(ctx context.Context, source *fencingv1.FenceSource) error {
	b, c := source.Status.Bound, meta.FindStatusCondition(source.Status.Conditions, conditionFenceReady)
	again := c != nil && (c.Reason == reasonShared || c.Reason == reasonLocked && f.mayLogin(ctx, source))
	if b == nil || b.Generation == source.Generation && !again {
		return nil
	}
	before := source.DeepCopy()
	f.check(ctx, source, &corev1.Node{}, true)
	return f.storeSource(ctx, source, before)
}

// mayLogin reports whether a level may be asked, because its Secret was changed since its version was locked. It reads, and logs in nowhere.
func (f *fencer) mayLogin(ctx context.Context, source *fencingv1.FenceSource) bool {
	_, versions, err := f.dial(ctx, source)
	return err == nil && len(f.state(source.Name).logins(source, versions, f.now()).open()) > 0
}

// requested turns the record into what is asked.
func (f *fencer) requested(ctx context.Context, state *sourceState, source *fencingv1.FenceSource, fence *fencingv1.NodeFence) (fencing.Requested, error) {
	answered := map[string]bool{}
	for i := range fence.Status.Evidence {
		answered[fence.Status.Evidence[i].Nonce] = true
	}
	sentBy := map[string]string{}
	for i := range fence.Status.Intents {
		sentBy[fence.Status.Intents[i].Nonce] = fence.Status.Intents[i].SentBy
	}
	r := fencing.Requested{
		Fence:    fenceState(fence),
		Answered: func(nonce string) bool { return answered[nonce] || state.answered[nonce] },
		Sent: func(nonce string) bool {
			return sentBy[nonce] != "" || source.Status.Command != nil && source.Status.Command.Nonce == nonce
		},
		Source: boundSource(source),
	}
	if q := fence.Status.Question; q != nil {
		r.Question = fencing.Question{Nonce: q.Nonce, Asked: q.Time.Time}
	}
	shared, err := f.shared(ctx, source)
	r.Source.Shared = shared
	return r, err
}

// readNode reads Node and lease from the API server itself.
func (f *fencer) readNode(ctx context.Context, r *fencing.Requested) error {
	t := &turn{actor: &actor{parts: f.parts}, fence: &fencingv1.NodeFence{}, mem: &memory{}}
	t.fence.Spec.NodeName = r.Fence.Boot.Node
	seen := fencing.Observed{ReadAt: f.now()}
	if t.readNode(ctx, &seen); seen.Exists != fencing.Unknown {
		t.readLease(ctx, &seen)
	}
	if seen.Exists == fencing.Unknown {
		return fmt.Errorf("read node %s and its lease: no answer of the API server", t.fence.Spec.NodeName)
	}
	r.Exists, r.Now, r.Renewal, r.ReadAt = seen.Exists, seen.Now, seen.Renewal, seen.ReadAt
	r.OptedOut, r.Maintenance, r.ControlPlane = seen.OptedOut, seen.Maintenance, t.node != nil && kube.ControlPlane(t.node)
	return nil
}

// call speaks to the switch, and stores the answer. Before a command is sent, it is stored who sends it: no process sends it twice.
func (f *fencer) call(ctx context.Context, state *sourceState, source *fencingv1.FenceSource, fence *fencingv1.NodeFence, r fencing.Requested, nonce string, off bool) error {
	if e, known := state.unstored[nonce]; known && e.BootID == fence.Spec.BootID {
		return f.store(ctx, state, fence, e)
	}
	levels, versions, err := f.dial(ctx, source)
	if err != nil {
		return f.answer(ctx, state, fence, nonce, reply{raw: err.Error()})
	}
	before := source.DeepCopy()
	logins := state.logins(source, versions, f.now())
	if len(logins.open()) == 0 {
		setFenceReady(source, metav1.ConditionFalse, reasonLocked, lockedMessage)
		return errors.Join(f.storeSource(ctx, source, before), f.answer(ctx, state, fence, nonce, reply{raw: lockedMessage}))
	}
	if len(logins.mayAsk()) == 0 { // nothing is sent, so no command counts
		return f.answer(ctx, state, fence, nonce, reply{raw: strings.Join(logins.refused(), "; ")})
	}
	var command *order
	if off {
		source.Status.Command = f.commandFor(source, fence, nonce)
		meta.RemoveStatusCondition(&source.Status.Conditions, conditionHeld)
		if err := f.client.Status().Patch(ctx, source, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("store that the command is about to be sent: %w", err)
		}
		before = source.DeepCopy()
		log.FromContext(ctx).Info("Switching the machine off", "machine", fence.Spec.MachineID, "nonce", nonce)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, r.Fence.Intent.NotAfter)
		defer cancel()
		command = &order{machine: machineID(fence.Spec.MachineID), stands: func(ctx context.Context) error { return f.stands(ctx, fence.Name, r) }}
	}
	a := levels.ask(ctx, logins, command, f.speaksOf(ctx, source, &r))
	if len(logins.open()) == 0 {
		setFenceReady(source, metav1.ConditionFalse, reasonLocked, lockedMessage)
	}
	return errors.Join(f.answer(ctx, state, fence, nonce, a), f.storeSource(context.WithoutCancel(ctx), source, before))
}

// errOvertaken is why fencing.Serve or the last read refused a command.
var errOvertaken = errors.New("the node shows a sign of life, is of the control plane, or is to be left alone by its owner")

// stands reads fence and node for the last time before a command is sent.
func (f *fencer) stands(ctx context.Context, name string, r fencing.Requested) error {
	fence := &fencingv1.NodeFence{}
	if err := f.live.Get(ctx, client.ObjectKey{Name: name}, fence); err != nil {
		return fmt.Errorf("read NodeFence %s: %w", name, err)
	}
	nonce := r.Fence.Intent.Nonce
	if r.Fence = fenceState(fence); r.Fence.Intent.Nonce != nonce {
		return errOvertaken
	}
	if err := f.readNode(ctx, &r); err != nil {
		return err
	}
	if fencing.Overtaken(r) {
		return errOvertaken
	}
	return nil
}

// reasonLate is the reason of the event about a command or a question that was not carried out because it was too old.
const reasonLate = "RequestTooOld"

// reportLate reports once that the fence asked for something that is too old by this process's clock. Nothing is sent, and nothing is answered:
// the actor asks again.
func (f *fencer) reportLate(ctx context.Context, state *sourceState, fence *fencingv1.NodeFence, r fencing.Requested) {
	now := f.now()
	nonce, _ := r.Late(now)
	state.answered[nonce] = true
	if state.held.nonce == nonce { // that was reported
		return
	}
	log.FromContext(ctx).Info("Did not serve the fence: what it asks for is too old by the clock of this process", "reason", reasonLate, "nonce", nonce, "notAfter", r.Fence.Intent.NotAfter)
	f.events.Eventf(nodeRef(r.Fence.Boot), fence, corev1.EventTypeWarning, reasonLate, "Fence", "%s", explain.FenceTooLate(now))
}

// answer appends the answer to a nonce to the record.
func (f *fencer) answer(ctx context.Context, state *sourceState, fence *fencingv1.NodeFence, nonce string, a reply) error {
	ctx = context.WithoutCancel(ctx)
	e := fencingv1.Evidence{
		Power: powerName(a.power), Source: fence.Spec.NodeName, BootID: fence.Spec.BootID, MachineID: a.machine(fence.Spec.MachineID),
		Nonce: nonce, Time: micro(f.now()), TookMilliseconds: a.took.Milliseconds(), Raw: truncate(a.raw),
	}
	if a.power == fencing.PowerOff {
		e.Class = string(fencing.PoweredOff)
	}
	log.FromContext(ctx).Info("Power switch answered", "power", e.Power, "machine", e.MachineID, "nonce", nonce, "took", a.took, "answer", a.raw)
	state.unstored[nonce] = e
	return f.store(ctx, state, fence, e)
}

// store appends an answer to the record. If another writer was first, the next attempt finds the answer in memory: the switch is not asked
// again.
func (f *fencer) store(ctx context.Context, state *sourceState, fence *fencingv1.NodeFence, e fencingv1.Evidence) error {
	before := fence.DeepCopy()
	fence.Status.Evidence = lastOf(append(fence.Status.Evidence, e), maxEvidence)
	if err := f.client.Status().Patch(ctx, fence, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("store the answer of the power switch: %w", err)
	}
	delete(state.unstored, e.Nonce)
	state.answered[e.Nonce] = true
	return nil
}

// exercise asks the switch of a node that is not being fenced, and stores whether it could be used.
func (f *fencer) exercise(ctx context.Context, state *sourceState, source *fencingv1.FenceSource) (time.Duration, error) {
	silent, limit, heard := f.ear.of(source.Name)
	quiet := heard && silent >= limit/2
	every := exerciseEvery
	if quiet {
		every = lookEvery << min(state.looks, maxLooks)
	}
	if wait := every - f.now().Sub(state.exercised); wait > 0 && !state.exercised.IsZero() && !changed(source) && !f.hurried(ctx, source) {
		return min(wait, lookEvery), nil
	}
	places := f.exercises
	if quiet {
		places = f.looks // what it says is a second signal for the detector
	}
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	default:
		return lookEvery, nil
	}
	state.exercised = f.now()
	node := &corev1.Node{}
	if err := f.client.Get(ctx, client.ObjectKey{Name: source.Name}, node); err != nil {
		return lookEvery, client.IgnoreNotFound(fmt.Errorf("read node %s in the cache: %w", source.Name, err))
	}
	before := source.DeepCopy()
	if !state.earlier { // no fence asks
		meta.RemoveStatusCondition(&source.Status.Conditions, conditionHeld)
	}
	f.check(ctx, source, node, quiet || !heard)
	f.Metrics.Source(source.Name, meta.IsStatusConditionTrue(source.Status.Conditions, conditionFenceReady))
	return lookEvery, f.storeSource(ctx, source, before)
}

// storeSource stores what was found out about the switch, if that is new.
func (f *fencer) storeSource(ctx context.Context, source, before *fencingv1.FenceSource) error {
	if equality.Semantic.DeepEqual(source.Status, before.Status) {
		return nil
	}
	if err := f.client.Status().Patch(ctx, source, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("patch the status of FenceSource %s: %w", source.Name, err)
	}
	return nil
}

const lockedMessage = "the power switch refused the login three times in a row: correct the Secret or the FenceSource; it is not asked again before that"

// setFenceReady sets the condition FenceReady.
func setFenceReady(source *fencingv1.FenceSource, ready metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&source.Status.Conditions, metav1.Condition{
		Type: conditionFenceReady, Status: ready, Reason: reason, Message: message, ObservedGeneration: source.Generation,
	})
}

// changed reports whether the FenceSource was changed since it was last exercised.
func changed(source *fencingv1.FenceSource) bool {
	c := meta.FindStatusCondition(source.Status.Conditions, conditionFenceReady)
	return c == nil || c.ObservedGeneration != source.Generation
}

// check asks the switch, and describes in the status what came out.
func (f *fencer) check(ctx context.Context, source *fencingv1.FenceSource, node *corev1.Node, quiet bool) {
	cannot := func(reason, message string) { setFenceReady(source, metav1.ConditionFalse, reason, message) }
	if other, err := f.sameSwitch(ctx, source); err != nil || other != nil {
		if other != nil && !sharesAddress(other) { // it reads that now, and not with its next exercise
			f.hurry(other.Name)
		}
		cannot(reasonShared, sharedMessage(other))
		return
	}
	levels, versions, err := f.dial(ctx, source)
	if err != nil {
		cannot(dialReason(err), truncate(err.Error()))
		return
	}
	logins := f.state(source.Name).logins(source, versions, f.now())
	var a reply
	var on, spoilt []int32
	switch due := logins.due(); {
	case len(logins.open()) == 0:
		cannot(reasonLocked, lockedMessage)
		return
	case quiet:
		a = levels.ask(ctx, logins, nil, knownLevels(source))
	case len(due) == 0: // none has answered, and what is known stays
		return
	default:
		a, on, spoilt = levels.exercise(ctx, logins, due)
	}
	if state := f.state(source.Name); quiet && a.power == fencing.PowerUnknown {
		state.looks++
	} else {
		state.looks = 0
	}
	switch {
	case len(logins.open()) == 0:
		cannot(reasonLocked, lockedMessage)
	case a.power == fencing.PowerUnknown:
		cannot(reasonNoAnswer, truncate(a.raw))
	case quiet:
		f.answersInSilence(ctx, source, a)
	default:
		f.bind(ctx, source, node, a, append(on, stillKnown(source, bootOf(node), append(on, spoilt...))...))
	}
}

// stillKnown are the levels that said On under this boot, and have said nothing since: no answer takes nothing back.
func stillKnown(source *fencingv1.FenceSource, boot fencing.Boot, spoke []int32) []int32 {
	if boundSource(source).SaidOn != boot {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(knownLevels(source)), func(i int32) bool { return slices.Contains(spoke, i) })
}

// answersInSilence records what the switch of a silent node says: a signal, which binds nothing. A source that was changed, or was shared until
// another one was corrected, stays bound if it is the same hardware that answers.
func (f *fencer) answersInSilence(ctx context.Context, source *fencingv1.FenceSource, a reply) {
	source.Status.Power = nil
	b := source.Status.Bound
	if b == nil || a.machine(b.HardwareID) != b.HardwareID {
		return
	}
	source.Status.Power = &fencingv1.PowerState{State: powerName(a.power), Time: micro(f.now())}
	if b.Generation != source.Generation {
		b.Generation, b.Levels = source.Generation, nil
	}
	if twin, err := f.twinOf(ctx, source); err != nil || twin != "" {
		setFenceReady(source, metav1.ConditionFalse, reasonShared, twinMessage(twin))
		return
	}
	setFenceReady(source, metav1.ConditionTrue, reasonReady, "the switch that said On while the node renewed its lease answers")
}

// keepTime keeps the time of what was found out before, and is so still: a write of the status each minute would say nothing new.
func keepTime(now, before *fencingv1.Bound, at time.Time) {
	if before == nil || at.Sub(before.Time.Time) > 10*exerciseEvery {
		return
	}
	same := before.DeepCopy()
	same.Time = now.Time
	if equality.Semantic.DeepEqual(same, now) {
		now.Time = before.Time
	}
}

// noIdentity says what a person has to look at, and then to set.
func noIdentity(name, uuid string) string {
	return "no switch reports the identity of its hardware. If the console of the switch shows the system UUID " + uuid + " for what is switched: kubectl annotate fencesource " +
		name + " " + fenceMachine + "=" + explain.ShellWord(uuid)
}

// bind records the boot that the switch said On for, which of its levels did, and the key of the kubelet.
func (f *fencer) bind(ctx context.Context, source *fencingv1.FenceSource, node *corev1.Node, a reply, on []int32) {
	boot := bootOf(node)
	set := func(ready metav1.ConditionStatus, reason, message string) {
		setFenceReady(source, ready, reason, message)
	}
	source.Status.Power = nil
	hardware := a.hardware
	if hardware == "" {
		hardware = machineID(source.Annotations[fenceMachine])
	}
	if s := boundSource(source); hardware == "" && s.SaidOn == boot && slices.Contains(knownLevels(source), int32(a.level)) {
		hardware = s.Machine // another level gave it under this boot, and is silent now
	}
	bound := source.Status.Bound
	source.Status.Bound = nil         // what it says now counts
	if f.state(source.Name).earlier { // but a fence of an earlier machine of the name loses its switch to no machine but the one that the hardware is
		defer func() {
			if source.Status.Bound == nil {
				source.Status.Bound = bound
			}
		}()
	}
	before := meta.FindStatusCondition(source.Status.Conditions, conditionFenceReady)
	again := before != nil && before.Reason == reasonNotOn
	switch {
	case hardware == "":
		set(metav1.ConditionFalse, reasonNoIdentity, noIdentity(source.Name, node.Status.NodeInfo.SystemUUID))
	case !boot.Complete() || hardware != boot.Machine:
		set(metav1.ConditionFalse, reasonOtherNode, "the hardware has the system UUID "+hardware+", and the Node "+boot.Machine+f.claimedOf(ctx, boot))
	case a.power != fencing.PowerOn:
		if !again { // a machine that has just lost its power is not silent for long enough yet
			source.Status.Bound = bound
		}
		set(metav1.ConditionFalse, reasonNotOn, "the switch says Off while the node runs: it switches another machine")
	default:
		source.Status.Bound = &fencingv1.Bound{
			NodeUID: boot.NodeUID, BootID: boot.ID, MachineID: boot.Machine, HardwareID: hardware, Levels: on, Generation: source.Generation, Time: micro(f.now()),
			KubeletKey: f.kubeletKey(ctx, boot, bound),
		}
		keepTime(source.Status.Bound, bound, f.now())
		recordZone(source, node)
		if twin, err := f.twinOf(ctx, source); err != nil || twin != "" {
			set(metav1.ConditionFalse, reasonShared, twinMessage(twin))
			return
		}
		set(metav1.ConditionTrue, reasonReady, "the switch said On while the node renewed its lease")
	}
}

// kubeletKey is the key with which the kubelet of a node that lives answers now, or else the one that is recorded for this boot. It is asked for each
// time, because a kubelet renews its certificate with a new key, and only with the API server: that of a silent node stays what it was.
func (f *fencer) kubeletKey(ctx context.Context, boot fencing.Boot, before *fencingv1.Bound) string {
	if k, is, err := f.askKubelet(ctx, boot.Node); err == nil && k.answers == fencing.Yes && is == fencing.Yes {
		return k.key
	}
	return rememberedKey(&fencingv1.FenceSource{Status: fencingv1.FenceSourceStatus{Bound: before}}, boot)
}
