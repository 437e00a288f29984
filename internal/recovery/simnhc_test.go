package recovery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// simNHC is node-healthcheck-operator v0.12.0 as recovery meets it. Its moves are those of nhc in nodehealthcheck_test.go, where the lines of that program
// are. It throws dice of its own.
type simNHC struct {
	*world

	dice *rand.Rand
	// after is for how long a node must be unhealthy, and limit how long a step may take.
	after, limit time.Duration
	// steps are its templates in their order. The one that is foreign is of a remediator that restarts the machine.
	steps []string
	made  int
	// about: the seed is about these doors.
	about bool
	// since is when each node was found unhealthy, idle until when its remediations stay away after a person has deleted them, and restarted has those that
	// the foreign remediator has restarted since.
	since, idle map[string]time.Time
	restarted   map[string]bool

	// The oracle's: when each remediation was withdrawn or timed out, not because its Node is gone; the nodes of which one was, since they were healthy; the
	// nodes of which a fence has Moved.
	quit  map[types.UID]time.Time
	quits map[string]bool
	moved map[string]bool
}

const (
	nhcHolder, otherHolder = "NodeHealthCheck-workers", "node-maintenance"
	foreign                = "foreign"
	// promptly is the time within which what is not disturbed acts.
	promptly = 10 * time.Second
)

// doorSeeds: one seed in so many is about these doors, where few come to use them otherwise.
const doorSeeds = 3

// opensDoors decides whether the seed has NodeHealthCheck and kubelets that are stopped.
func (w *world) opensDoors(seed uint64) {
	dice, about := rand.New(rand.NewPCG(seed, 11)), seed%doorSeeds == 1
	if dice.IntN(100) >= 50 && !about {
		return
	}
	if dice.IntN(100) < 60 || about {
		w.ports = true
		w.profile.Chance = time.Duration(8+dice.IntN(20)) * time.Second
	}
	w.nhc = &simNHC{
		world: w, dice: dice, since: map[string]time.Time{}, idle: map[string]time.Time{}, restarted: map[string]bool{},
		quit: map[types.UID]time.Time{}, quits: map[string]bool{}, moved: map[string]bool{},
	}
	w.nhc.after = time.Duration(500*dice.IntN(10)) * time.Millisecond
	w.nhc.limit = time.Duration(2+dice.IntN(18)) * time.Second
	if about {
		w.nhc.about, w.troubles = true, min(w.troubles, 2)
		w.nhc.after, w.nhc.limit = w.nhc.after/8, w.nhc.limit/4
		if dice.IntN(100) < 60 {
			w.losses = 0
		}
	}
	w.nhc.steps = [][]string{{"belay"}, {"belay", "again"}, {"belay", foreign}, {"belay", "again", foreign}}[dice.IntN(4)]
}

func (n *simNHC) roll(percent int) bool { return n.dice.IntN(100) < percent }

// turn is one round of it, and of the people who stop kubelets.
func (n *simNHC) turn() {
	if n.outage() || slices.ContainsFunc(n.processes, func(p *process) bool { return time.Now().Before(p.stalled) }) {
		n.disturbed = time.Now()
	}
	for _, m := range n.machines {
		if m.cut || m.frozen {
			m.away = time.Now()
		}
	}
	n.judgeLapsed()
	if !n.calm {
		n.stopKubelets()
		n.doorTrouble()
	}
	if n.outage() {
		return
	}
	if !n.calm && n.roll(1) {
		name := simNodes[n.dice.IntN(3)]
		if n.lease(name, otherHolder, time.Duration(3+n.dice.IntN(9))*time.Second) {
			n.say("%s has the lease of %s", otherHolder, name)
		}
	}
	for _, name := range simNodes {
		if n.calm || n.roll(60) {
			n.look(name)
		}
	}
}

// stopKubelets: a person stops the kubelet of a machine, and starts it again. The containers run on.
func (n *simNHC) stopKubelets() {
	m := n.current(simNodes[n.dice.IntN(3)])
	switch {
	case m.down && n.roll(4), m.down && n.about && n.roll(6):
		m.down = false
		n.say("the kubelet of %s is started again", m)
	case !m.down && m.on && !m.cut && !m.frozen && (n.roll(1) || n.about && n.roll(4)):
		m.down, m.downSince = true, time.Now()
		n.count["stopped kubelets"]++
		n.say("the kubelet of %s is stopped", m)
	}
}

// slowModes are the ways in which a switch behaves that leave time between the moves of a fence.
var slowModes = []string{"ok", "slow", "silent", "ignores", "late", "dead"}

// doorTrouble is that of a seed about these doors: switches that take their time, and people who delete the Node of a fence that has commanded nothing.
func (n *simNHC) doorTrouble() {
	name := simNodes[n.dice.IntN(3)]
	if b := n.switches[name]; n.about && b != nil && n.roll(5) {
		b.mode, b.delay = slowModes[n.dice.IntN(len(slowModes))], time.Duration(1000+n.dice.IntN(8000))*time.Millisecond
		n.say("the switch %s is %s", b.address, b.mode)
	}
	f, node := n.fence(name), n.node(name)
	if n.about && f != nil && !finished(f) && node != nil && f.Spec.Trigger == fencingv1.TriggerRemediation && len(f.Status.Intents) == 0 && n.roll(15) {
		n.say("a person deletes node %s", name)
		must2(n.t, n.api.Delete(context.Background(), node))
		n.changed("Node")
	}
}

// of are the remediations of a node.
func (n *simNHC) of(name string) (all []*fencingv1.BelayRemediation) {
	for _, r := range storedAs[*fencingv1.BelayRemediation](n.world, "BelayRemediation") {
		if r.Annotations[kube.NodeNameAnnotation] == name {
			all = append(all, r)
		}
	}
	return all
}

// look is one Reconcile about a node.
func (n *simNHC) look(name string) {
	node, all := n.node(name), n.of(name)
	switch {
	case node == nil: // controller:466
		for _, r := range all {
			n.deletes(r, "since its Node is gone")
		}
	case ready(node) == fencing.Yes: // manager:321
		delete(n.since, name)
		for _, r := range all {
			n.deletes(r, "since its node is healthy")
		}
		if len(all) == 0 {
			delete(n.restarted, name)
			delete(n.quits, name)
			n.giveBack(name)
		}
	case n.since[name].IsZero():
		n.since[name] = time.Now()
	case time.Since(n.since[name]) < n.after, time.Now().Before(n.idle[name]):
	case !n.calm && len(all) > 0 && n.roll(1):
		n.idle[name] = time.Now().Add(promptly)
		for _, r := range all {
			n.deletes(r, "by a person")
		}
	default:
		n.remediates(name, all)
	}
}

// remediates takes the step that a node is at (controller:530-681).
func (n *simNHC) remediates(name string, all []*fencingv1.BelayRemediation) {
	for _, step := range n.steps {
		if step == foreign {
			n.restarts(name)
			return
		}
		i := slices.IndexFunc(all, func(r *fencingv1.BelayRemediation) bool { return r.Annotations[templateName] == step })
		switch {
		case i < 0:
			if n.lease(name, nhcHolder, n.limit+5*time.Second) {
				n.creates(name, step)
			}
			return
		case all[i].DeletionTimestamp != nil: // it waits until that is gone
			return
		case kube.RemediationTimedOut(all[i]):
			continue
		}
		c := meta.FindStatusCondition(all[i].Status.Conditions, "Succeeded")
		switch {
		case !n.lease(name, nhcHolder, n.limit+5*time.Second):
		case c != nil && c.Status == metav1.ConditionTrue:
		case c != nil && c.Status == metav1.ConditionFalse, time.Since(all[i].CreationTimestamp.Time) > n.limit:
			n.timesOut(all[i])
		}
		return
	}
}

const templateName = "remediation.medik8s.io/template-name"

func (n *simNHC) creates(node, step string) {
	n.made++
	r := &fencingv1.BelayRemediation{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-%s-%d", node, step, n.made),
		Annotations:     map[string]string{kube.NodeNameAnnotation: node, templateName: step},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "remediation.medik8s.io/v1alpha1", Kind: "NodeHealthCheck", Name: "workers", UID: "workers"}},
	}}
	n.count["remediations"]++
	n.say("NodeHealthCheck creates %s", r.Name)
	_, err := n.create(nil, r)
	must2(n.t, err)
}

// timesOut is its move at the end of a step.
func (n *simNHC) timesOut(r *fencingv1.BelayRemediation) {
	n.count["timed out"]++
	n.say("%s has timed out: %s", r.Name, reportOf(r))
	n.left(r)
	change(n.world, r, func(r *fencingv1.BelayRemediation) {
		metav1.SetMetaDataAnnotation(&r.ObjectMeta, kube.TimedOutAnnotation, time.Now().Format(time.RFC3339))
	})
}

func (n *simNHC) deletes(r *fencingv1.BelayRemediation, why string) {
	if r.DeletionTimestamp != nil {
		return
	}
	n.count["deleted "+why]++
	n.say("%s is deleted %s: %s", r.Name, why, reportOf(r))
	if why != "since its Node is gone" {
		n.left(r)
	}
	must2(n.t, client.IgnoreNotFound(n.api.Delete(context.Background(), r)))
	n.changed("BelayRemediation")
}

// left notes that a remediation asks for nothing any more.
func (n *simNHC) left(r *fencingv1.BelayRemediation) {
	n.quits[kube.RemediatedNode(r)] = true
	if n.quit[r.UID].IsZero() || kube.RemediationAsks(r) { // again, after a restore of etcd
		n.quit[r.UID] = time.Now()
	}
}

// restarts is what the foreign remediator does, once.
func (n *simNHC) restarts(name string) {
	m := n.current(name)
	if n.restarted[name] || m.dark || n.calm {
		return
	}
	n.restarted[name] = true
	n.count["foreign restarts"]++
	n.say("a foreign remediator restarts %s", m)
	m.powerOff()
	m.returns = time.Now().Add(time.Duration(1000+n.dice.IntN(5000)) * time.Millisecond)
}

// lease takes the lease of a node, unless another holder has it (medik8s/common v1.17.0 pkg/lease/manager.go:151-219, 278-290).
func (n *simNHC) lease(node, holder string, duration time.Duration) bool {
	l := &coordinationv1.Lease{}
	err := n.api.Get(context.Background(), client.ObjectKey{Namespace: nodeLeases, Name: "node-" + node}, l)
	must2(n.t, client.IgnoreNotFound(err))
	now := time.Now()
	if err == nil && *l.Spec.HolderIdentity != holder && !l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second).Before(now) {
		return false
	}
	at, seconds := metav1.NewMicroTime(now), int32(duration.Seconds())
	l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, AcquireTime: &at, RenewTime: &at, LeaseDurationSeconds: &seconds}
	if err != nil {
		l.ObjectMeta = metav1.ObjectMeta{Namespace: nodeLeases, Name: "node-" + node}
		_, err = n.create(nil, l)
	} else {
		err = n.api.Update(context.Background(), l)
	}
	must2(n.t, err)
	n.changed("Lease")
	return true
}

// giveBack deletes the lease of a node that is healthy, if it is its own (manager:336-343).
func (n *simNHC) giveBack(node string) {
	l := &coordinationv1.Lease{}
	err := n.api.Get(context.Background(), client.ObjectKey{Namespace: nodeLeases, Name: "node-" + node}, l)
	if err != nil || *l.Spec.HolderIdentity != nhcHolder {
		return
	}
	must2(n.t, n.api.Delete(context.Background(), l))
	n.changed("Lease")
}

// port is the kubelet's port of a node's machine, over the network.
func (p *process) port(ctx context.Context, node *corev1.Node) kubelet {
	m := p.world.current(node.Name)
	k, err := p.send(ctx, "ASK kubelet of "+node.Name, true, func() (any, error) {
		switch {
		case !m.on || m.frozen || m.cut:
			return nil, errSwitch
		case m.down: // by the kernel
			return kubelet{answers: fencing.No, refused: true}, nil
		}
		return kubelet{answers: fencing.Yes, key: m.bootID()}, nil
	})
	if err != nil {
		return kubelet{answers: fencing.No}
	}
	return k.(kubelet)
}

// wakeRemediations wakes the remediator as its watches do.
func (p *process) wakeRemediations(kind string, o client.Object) {
	switch kind {
	case "BelayRemediation":
		p.wake("remediator", o.GetName())
	case "Node", "NodeFence":
		for _, r := range p.remediator.remediationsOf(p.ctx, o) {
			p.wake("remediator", r.Name)
		}
	}
}

// The oracle of these doors.

func reportOf(r *fencingv1.BelayRemediation) string {
	if c := meta.FindStatusCondition(r.Status.Conditions, "Succeeded"); c != nil {
		return string(c.Status) + " " + c.Reason
	}
	return "nothing"
}

// judgeWithdrawal: that its Node is gone is no reason to end the fence of a remediation, while the boot has volumes.
func (n *simNHC) judgeWithdrawal(by *process, f *fencingv1.NodeFence) {
	name := f.Spec.NodeName
	if !slices.ContainsFunc(n.of(name), kube.RemediationAsks) {
		n.count["withdrawn"]++
	}
	left := slices.ContainsFunc(storedAs[*storagev1.VolumeAttachment](n.world, "VolumeAttachment"), func(va *storagev1.VolumeAttachment) bool {
		return va.Spec.NodeName == name && va.Labels["machine"] == f.Spec.MachineID && va.DeletionTimestamp == nil
	})
	if n.node(name) == nil && left && !n.quits[name] && f.DeletionTimestamp == nil && len(n.open(name)) == 1 {
		n.breaks("withdrawal", "%s ends the fence %s because its Node is gone", by.name, f.Name)
	}
}

// judgeLapsed: the fence of a remediation that has timed out, or was deleted, ends before its machine is commanded. Where nothing is lost and nothing was
// disturbed, that takes moments.
func (n *simNHC) judgeLapsed() {
	if n.losses > 0 && !n.calm || time.Since(n.disturbed) < promptly {
		return
	}
	for _, f := range storedAs[*fencingv1.NodeFence](n.world, "NodeFence") {
		node, all := n.node(f.Spec.NodeName), n.of(f.Spec.NodeName)
		waits := slices.Contains([]fencing.Phase{"", fencing.Suspected, fencing.Isolating, fencing.Fencing}, fencing.Phase(f.Status.Phase)) && f.DeletionTimestamp == nil
		taken := len(f.Status.Intents) > 0 || meta.IsStatusConditionTrue(f.Status.Conditions, conditionStorageFenced)
		if !waits || taken || f.Spec.Trigger != fencingv1.TriggerRemediation || node == nil || string(node.UID) != f.Spec.NodeUID {
			continue
		}
		last := f.CreationTimestamp.Time
		asks := slices.ContainsFunc(all, func(r *fencingv1.BelayRemediation) bool {
			at := n.quit[r.UID]
			if at.After(last) {
				last = at
			}
			return at.IsZero() || kube.RemediationAsks(r)
		})
		if !asks && time.Since(last) > promptly {
			n.breaks("timed out", "the fence of %s continues, for which no remediation asks since %v", f.Name, time.Since(last))
		}
	}
}

// judgeReport: a remediation has succeeded only once what the boot had has moved.
func (n *simNHC) judgeReport(by *process, before, after *fencingv1.BelayRemediation) {
	if reportOf(before) == reportOf(after) {
		return
	}
	n.say("%s: %s is %s", by.name, after.Name, reportOf(after))
	n.count["remediation "+reportOf(after)]++
	if meta.IsStatusConditionTrue(after.Status.Conditions, "Succeeded") && !n.moved[kube.RemediatedNode(after)] {
		n.breaks("report", "%s has succeeded, and no volume of %s has moved", after.Name, kube.RemediatedNode(after))
	}
}

// judgeChance: a node whose kubelet was stopped, and whose kernel refuses since, has the chance that the profile gives it (ADR 33), unless it is asked for.
func (w *world) judgeChance(f *fencingv1.NodeFence) {
	if !w.ports || w.losses > 0 || f.Spec.Trigger != fencingv1.TriggerNodeSilent {
		return
	}
	m := w.byUUID(f.Spec.MachineID)
	refuses := m.down && m.on && !m.gone && m.away.Before(m.renewed) && len(m.lied) == 0 && m.bootID() == f.Spec.BootID
	lived := m.downSince.Sub(m.renewed) < 2*simRenew && m.resumed.Before(m.renewed) && time.Since(w.disturbed) > 2*simRenew
	if at := time.Since(m.downSince); refuses && lived && at < w.profile.Chance-2*simRenew {
		w.breaks("chance", "%s is fenced %v after its kubelet was stopped", m, at)
	}
}

// settled returns which remediation is not over, once all trouble has ended. Those of nodes that are healthy are gone by then.
func (n *simNHC) settled() string {
	if n == nil {
		return ""
	}
	for _, r := range storedAs[*fencingv1.BelayRemediation](n.world, "BelayRemediation") {
		over := meta.IsStatusConditionFalse(r.Status.Conditions, "Processing") && !meta.IsStatusConditionPresentAndEqual(r.Status.Conditions, "Succeeded", metav1.ConditionUnknown)
		if node := n.node(kube.RemediatedNode(r)); !over || r.DeletionTimestamp != nil || node == nil || ready(node) == fencing.Yes {
			return fmt.Sprintf("%s is %s, deleted: %t", r.Name, reportOf(r), r.DeletionTimestamp != nil)
		}
	}
	return ""
}
