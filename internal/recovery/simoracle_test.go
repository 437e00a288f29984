package recovery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/excuse"
)

// The oracle judges what recovery does by the state of the machines and of the switches. It does not know fencing's reasons.

// question is one that a process stored for the fencer, with the answer.
type question struct {
	by    *process
	node  string
	at    time.Time
	off   bool // a switch said Off to it, and was asked after that
	boot  string
	nonce string
	took  time.Duration // until the switch said so, since it was asked
}

// target is the boot that a request of a process is about: that of the fence when it was sent.
type target struct{ node, boot, machine, part string }

func (w *world) breaks(invariant, format string, args ...any) {
	if w.broken == "" {
		w.broken = invariant + ": " + fmt.Sprintf(format, args...)
		w.say("BROKEN %s", w.broken)
	}
}

// about is what a request is about that is sent now.
func (p *process) about(ctx context.Context) target {
	label, _ := ctx.Value(labelKey{}).(string)
	part, name, _ := strings.Cut(label, " ")
	if f := p.world.fence(name); f != nil {
		return target{f.Spec.NodeName, f.Spec.BootID, f.Spec.MachineID, part}
	}
	return target{node: name, part: part}
}

// excuse notes that something is permitted that docs/not-guaranteed.md lists as not guaranteed.
func (w *world) excuse(name excuse.Name) bool {
	w.count["excuse "+string(name)]++
	return true
}

// ended reports whether the boot of a target cannot write any more. Not guaranteed are a boot that its own
// switch called Off while it ran, and one that was resumed from a snapshot after it was off. Either counts only while the node does not renew
// its lease, which recovery would hear, and a resumed one for as long as what was known before is used.
func (w *world) ended(t target) bool {
	m := w.byUUID(t.machine)
	switch {
	case !m.on || m.bootID() != t.boot:
		return true
	case m.frozen || m.cut || m.down || m.gone || time.Since(m.renewed) > 2*simRenew: // also one that has network again and has not renewed its lease yet
		return m.lied[m.boot] && w.excuse(excuse.LyingSwitch) || !m.resumed.IsZero() && w.excuse(excuse.ResumedMachine)
	}
	return m.cameBack(resumedUnheard) && w.excuse(excuse.ResumedMachine)
}

// resumedUnheard is how long a decision lives that was taken before a machine was resumed, or renewed its lease although its switch says Off: a proof
// counts for 30 s without a new one.
const resumedUnheard = 30 * time.Second

// judgeDelete: S8. Nothing is taken from a boot that may still write.
func (w *world) judgeDelete(by *process, about target, object client.Object) {
	var node string
	switch x := object.(type) {
	case *corev1.Pod:
		node = x.Spec.NodeName
	case *storagev1.VolumeAttachment:
		node = x.Spec.NodeName
	case *fencingv1.NodeFence:
		if about.part == "remediator" {
			w.breaks("withdrawal", "%s deletes the fence %s: no record of it is left", by.name, x.Name)
		}
		return
	default:
		return
	}
	w.count["deletes"]++
	switch {
	case about.machine == "":
		w.breaks("S8", "%s deletes %s %s without a fence of %s", by.name, kindOf(object), object.GetName(), node)
	case !w.ended(about):
		w.breaks("S8", "%s deletes %s %s, and %s runs the fenced boot", by.name, kindOf(object), object.GetName(), about.machine)
	}
}

// judgeForce: S8, by the attach/detach controller, which acts on a taint or a proof.
func (w *world) judgeForce(va *storagev1.VolumeAttachment, byStorage bool) {
	m, volume := w.byUUID(va.Labels["machine"]), *va.Spec.Source.PersistentVolumeName
	w.count["forced"]++
	if byStorage {
		w.count["by storage"]++
		if driverOf(volume) != cutDriver {
			w.breaks("coverage", "%s is taken from %s on a proof about another driver's volumes", volume, m)
		}
		return
	}
	node := w.node(va.Spec.NodeName)
	unknown := va.Annotations[kube.BootIDAnnotation] == "" || w.plane.detaches == upstreams
	switch {
	case !m.writes(volume) || w.ended(target{node: va.Spec.NodeName, boot: m.bootID(), machine: m.uuid}):
	case unknown && node != nil && machineID(node.Status.NodeInfo.SystemUUID) != machineID(m.uuid) && w.excuse(excuse.UnrecordedMachine):
	case !m.resumed.IsZero() && w.excuse(excuse.ResumedMachine): // the taint stays, and authorizes them
	case w.plane.detaches == upstreams && node != nil && !outOfService(node) && w.excuse(excuse.WithdrawnTaint):
	default:
		w.breaks("S8", "%s is detached by force from %s, which uses it", volume, m)
	}
}

// judgeWriter: a fenced boot never writes after the first write elsewhere, unless its driver lies, and gets no volume back that it has mounted
// from before: docs/not-guaranteed.md lists what is excused.
func (w *world) judgeWriter(m *hardware, volume string) {
	for _, other := range w.machines {
		switch {
		case other == m || !other.on || !other.writes(volume):
		case other.lied[other.boot] && w.excuse(excuse.LyingSwitch):
		case !other.resumed.IsZero() && w.excuse(excuse.ResumedMachine):
		case w.plane.lies && driverOf(volume) == cutDriver && w.excuse(excuse.LyingDriver):
		default:
			w.breaks("writers", "%s writes to %s while %s (frozen: %t, cut off: %t) uses it", m, volume, other, other.frozen, other.cut)
		}
	}
	for pod, since := range m.refused {
		switch {
		case m.runs[pod] != volume || w.plane.detaches != withProofs:
		case w.forgot(since) && w.excuse(excuse.RestoredCut):
		case w.registeredSince(m, volume, since) && w.excuse(excuse.RegisteredAgain):
		default:
			w.breaks("stale mount", "%s gets %s again, and has it mounted from before", m, volume)
		}
	}
}

// registeredSince reports whether the kubelet of a machine has registered its Node again since a volume was cut off, and the volume was attached before that Node
// was isolated.
func (w *world) registeredSince(m *hardware, volume string, cut time.Time) bool {
	node, va := w.node(m.name), w.plane.attachmentOf(volume)
	return node != nil && va != nil && va.Labels["isolated"] == "false" && node.CreationTimestamp.Add(time.Second).After(cut)
}

// judgeCreate counts the fences.
func (w *world) judgeCreate(object client.Object) {
	f, ok := object.(*fencingv1.NodeFence)
	if !ok {
		return
	}
	w.count["fences"]++
	w.count["fences "+string(f.Spec.Trigger)]++
	w.judgeChance(f)
}

// judgeEpoch: the epochs of the taints that a node has for a machine rise, and no two fences have one. Only a backup can forget one. A create that is carried out
// late may have that of another fence, and counts once a taint has it.
func (w *world) judgeEpoch(f *fencingv1.NodeFence) {
	node, epoch := f.Spec.NodeName, f.Spec.Epoch
	machine := node + " " + f.Spec.MachineID
	number := fmt.Sprint(node, " ", epoch)
	if first, known := w.numbered[number]; known && first != f.UID && (w.restores == 0 || !w.excuse(excuse.Restored)) {
		w.breaks("epoch", "%s is tainted with epoch %d for two fences", node, epoch)
	}
	w.numbered[number] = f.UID
	switch {
	case epoch >= w.epochs[machine]:
		w.epochs[machine] = epoch
	case w.restores > 0 && w.excuse(excuse.Restored):
	default:
		w.breaks("epoch", "%s is tainted with epoch %d for a machine after %d", node, epoch, w.epochs[machine])
	}
}

// sends notes the questions that are stored, and judges what is about to be sent: the taint.
func (p *process) sends(ctx context.Context, object client.Object, status bool) {
	w := p.world
	switch x := object.(type) {
	case *fencingv1.NodeFence:
		if !status {
			return
		}
		if q := x.Status.Question; q != nil {
			p.stores(x, q.Nonce)
		}
		for _, i := range x.Status.Intents {
			p.stores(x, i.Nonce)
		}
	case *corev1.Node:
		label, _ := ctx.Value(labelKey{}).(string)
		own := func(t corev1.Taint) bool {
			return t.Key == kube.OutOfServiceTaint && strings.HasPrefix(t.Value, kube.FenceTaintPrefix)
		}
		before := w.node(x.Name)
		if before == nil || !slices.ContainsFunc(x.Spec.Taints, own) || slices.ContainsFunc(before.Spec.Taints, own) {
			return
		}
		if f := w.tainter(x, kube.OutOfServiceTaint); f != nil && f.Spec.Statement != nil {
			return
		}
		if !p.knowsOff(x.Name, x.Annotations[kube.FencedBootAnnotation], fencing.FreshFor) {
			w.breaks("stored evidence", "%s (%s) taints %s without an answer Off of its own in the last %v", p.name, label, x.Name, fencing.FreshFor)
		}
	}
}

func (p *process) stores(f *fencingv1.NodeFence, nonce string) {
	if p.world.asked[nonce] == nil {
		p.world.asked[nonce] = &question{by: p, node: f.Spec.NodeName, at: time.Now(), boot: f.Spec.BootID, nonce: nonce}
	}
}

// knowsOff reports whether a switch said Off to a question that this process stored so long ago at most, without what the switch took to answer it.
func (p *process) knowsOff(node, boot string, since time.Duration) bool {
	for _, q := range p.world.asked {
		if q.by == p && q.node == node && q.boot == boot && q.off && time.Since(q.at)-q.took <= since {
			return true
		}
	}
	return false
}

// judgeOffAnswer notes that a switch said Off to whom asks: all questions about its node that are stored and open by then.
func (w *world) judgeOffAnswer(s simSwitch) {
	node := s.b.node()
	fences := w.fencesOf(node)
	for _, q := range w.asked {
		answered := slices.ContainsFunc(fences, func(f *fencingv1.NodeFence) bool {
			return slices.ContainsFunc(f.Status.Evidence, func(e fencingv1.Evidence) bool { return e.Nonce == q.nonce })
		})
		if q.node != node || answered {
			continue
		}
		q.off, q.took = true, max(q.took, min(time.Since(q.at), time.Since(s.begun))) // a later answer takes nothing from an earlier one that is not stored yet
	}
}

// judgeOffSent: a command is sent only to a node that was silent when it was read a moment before.
func (w *world) judgeOffSent(p *process, b *bmc, label string) {
	f := w.commander(b)
	if f == nil || finished(f) {
		w.breaks("off", "%s (%s) commands the switch of %s, which has no fence", p.name, label, b.node())
		return
	}
	if f.Spec.Request != nil {
		w.count["requested offs"]++
	}
	if f.Spec.Trigger == fencingv1.TriggerNodeDeleted {
		w.breaks("off", "%s (%s) commands the switch of %s, whose Node was deleted", p.name, label, b.node())
	}
	if m := w.byUUID(f.Spec.MachineID); w.hostile.neverRegisters && w.node(b.node()) == nil && m.on && !m.frozen && !m.cut && !m.gone {
		w.breaks("off", "%s (%s) commands the switch of %s, which runs well, has network, and whose Node was deleted", p.name, label, b.node())
	}
	if node := w.node(b.node()); node != nil && kube.FenceOptedOut(node) && time.Since(w.optedOut[b.node()]) > 2*time.Second {
		w.breaks("off", "%s (%s) commands the switch of %s, which is opted out", p.name, label, b.node())
	}
	m := w.byUUID(f.Spec.MachineID)
	l := w.leases[b.node()]
	renews := l != nil && !m.gone && m.on && !m.frozen && !m.cut && m.bootID() == f.Spec.BootID
	// One that was cut off until now has not renewed its lease since, and heardFirst is from before that.
	if renews && time.Since(m.renewed) <= 2*simRenew && time.Since(m.heardFirst) > 2*time.Second {
		w.breaks("off", "%s (%s) commands the switch of %s, which has renewed its lease for %v", p.name, label, b.node(), time.Since(m.heardFirst))
	}
}

// judgeOff: what is switched off is the machine that is being fenced.
func (w *world) judgeOff(b *bmc) {
	w.count["offs"]++
	f, node := w.commander(b), w.node(b.node())
	switch {
	case time.Since(b.swapped) < 10*time.Second && w.excuse(excuse.SwappedCable):
	case w.restores > 0 && w.excuse(excuse.Restored):
	case f == nil || finished(f):
		w.breaks("late off", "%s is switched off, and no fence of it is open", b.wired)
	case f.Spec.MachineID != b.wired.uuid:
		w.breaks("wrong machine", "%s is switched off for the fence of %s", b.wired, f.Spec.MachineID)
	case node != nil && b.wired.on && b.wired.bootID() != f.Spec.BootID && !isolated(node):
		w.breaks("late off", "boot %d of %s is switched off, and pods may come to it", b.wired.boot, b.wired)
	}
}

func isolated(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == kube.IsolationTaint })
}

// judgeProofs: no Proof without fresh evidence of this boot.
func (w *world) judgeProofs() {
	for _, p := range w.processes {
		var all []fencing.Proof
		for _, name := range simNodes {
			all = append(all, p.proofs.Of(name)...)
		}
		for _, proof := range all {
			boot := proof.Boot()
			name := boot.Node
			if proof.Class() == fencing.StorageFenced {
				for _, b := range []fencing.Volume{{Driver: otherDriver, Handle: "v3"}, {}} {
					if w.plane.detaches != withProofs || proof.Holds(boot, b) {
						w.breaks("coverage", "%s has a proof about %v of boot %s", p.name, b, boot.ID)
					}
				}
				w.count["storage proofs"]++
				continue
			}
			m := w.byUUID(boot.Machine)
			lately := m.lied[m.boot] && time.Since(m.heardFirst) <= resumedUnheard && w.excuse(excuse.LyingSwitch)
			if !w.ended(target{node: name, boot: boot.ID, machine: boot.Machine}) && !lately {
				w.breaks("proof", "%s has a proof (%s) that boot %s has ended, which runs", p.name, proof.Class(), boot.ID)
			}
			key := name + boot.ID
			if proof.Class() == fencing.PoweredOff && !p.everProven[key] && !p.knowsOff(name, boot.ID, fencing.FreshFor+time.Second) {
				w.breaks("proof", "%s proves that boot %s is off without an answer of its own", p.name, boot.ID)
			}
			p.everProven[key] = true
			w.count["proofs"]++
		}
	}
}

// transitions are those that the CRD allows.
var transitions = map[fencing.Phase][]fencing.Phase{
	"": {fencing.Isolating, fencing.Cancelled}, fencing.Suspected: {fencing.Isolating, fencing.Cancelled}, fencing.Isolating: {fencing.Fencing, fencing.Cancelled},
	fencing.Fencing: {fencing.Tainting, fencing.Releasing, fencing.Cancelled}, fencing.Tainting: {fencing.Evicting, fencing.Fencing, fencing.Releasing},
	fencing.Evicting: {fencing.Detaching, fencing.Releasing}, fencing.Detaching: {fencing.Moved, fencing.Releasing},
	fencing.Moved: {fencing.Releasing}, fencing.Releasing: {fencing.Released},
}

// judgePatch: phases come in order; a foreign taint stays.
func (w *world) judgePatch(by *process, before, after client.Object) {
	switch x := after.(type) {
	case *fencingv1.BelayRemediation:
		w.nhc.judgeReport(by, before.(*fencingv1.BelayRemediation), x)
	case *fencingv1.NodeFence:
		from, to := fencing.Phase(before.(*fencingv1.NodeFence).Status.Phase), fencing.Phase(x.Status.Phase)
		if from == to {
			return
		}
		w.say("%s: %s is %s", by.name, x.Name, to)
		w.count[string(to)]++
		if w.nhc != nil && to == fencing.Moved {
			w.nhc.moved[x.Spec.NodeName] = true
		}
		if w.nhc != nil && to == fencing.Cancelled && x.Spec.Trigger == fencingv1.TriggerRemediation {
			w.nhc.judgeWithdrawal(by, x)
		}
		if x.Spec.Trigger == fencingv1.TriggerNodeDeleted {
			w.count["deleted "+string(to)]++
		}
		if !slices.Contains(transitions[from], to) {
			w.breaks("phases", "%s: %s after %s", x.Name, to, from)
		}
	case *corev1.Node:
		old := before.(*corev1.Node)
		w.say("%s: taints of %s: %v", by.name, x.Name, x.Spec.Taints)
		if f := w.tainter(x, kube.IsolationTaint); f != nil {
			w.judgeEpoch(f)
			if len(w.open(x.Name)) > 1 {
				w.count["isolated beside another fence"]++
			}
		}
		for _, t := range old.Spec.Taints {
			foreign := !strings.HasPrefix(t.Value, kube.FenceTaintPrefix)
			if foreign && !slices.Contains(x.Spec.Taints, t) {
				w.breaks("foreign taint", "%s removes %v of %s", by.name, t, x.Name)
			}
		}
	}
}

// settled returns what is missing from the state that must be reached once all trouble has ended.
func (w *world) settled() string {
	for _, volume := range w.plane.volumes {
		writers := 0
		for _, m := range w.machines {
			if m.on && !m.frozen && m.uses(volume) {
				writers++
			}
		}
		if writers != 1 {
			return fmt.Sprintf("%s has %d writers", volume, writers)
		}
	}
	for _, name := range simNodes {
		open, node := w.open(name), w.node(name)
		for _, f := range open {
			if node != nil && (w.current(name).on || f.Status.Phase != fencingv1.Phase(fencing.Moved)) {
				return fmt.Sprintf("the fence %s of %s is %s, missing %v", f.Name, name, f.Status.Phase, f.Status.Missing)
			}
		}
		switch {
		case node == nil:
			return name + " has no Node"
		case len(open) == 0 && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Value, kube.FenceTaintPrefix) }):
			return fmt.Sprintf("%s has taints and no fence: %v", name, node.Spec.Taints)
		}
	}
	return w.nhc.settled()
}

// fencesOf are the fences of a node, those of earlier machines of the name too. They are shared, and never changed.
func (w *world) fencesOf(node string) []*fencingv1.NodeFence {
	return slices.DeleteFunc(storedAs[*fencingv1.NodeFence](w, "NodeFence"), func(f *fencingv1.NodeFence) bool { return f.Spec.NodeName != node })
}

// open are the fences of a node that are not over.
func (w *world) open(node string) []*fencingv1.NodeFence {
	return slices.DeleteFunc(w.fencesOf(node), finished)
}

// tainter is the fence that has set a taint of a Node, nil for none.
func (w *world) tainter(node *corev1.Node, key string) *fencingv1.NodeFence {
	for _, f := range w.fencesOf(node.Name) {
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && t.Value == taintValue(f.Spec.Epoch) }) {
			return f
		}
	}
	return nil
}

// commander is the fence for which a switch is commanded: that of the machine which it is wired to, or else the one for which the last command was stored.
func (w *world) commander(b *bmc) (f *fencingv1.NodeFence) {
	source := storedCopy[*fencingv1.FenceSource](w, "FenceSource", b.node())
	for _, of := range w.fencesOf(b.node()) {
		switch {
		case of.Spec.MachineID == b.wired.uuid && !finished(of):
			return of
		case source != nil && source.Status.Command != nil && source.Status.Command.Fence == string(of.UID):
			f = of
		}
	}
	return f
}
