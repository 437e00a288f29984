package simulation

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/excuse"
)

// Node objects go and come back, with the same machine behind them or with another.

// deleteNode deletes a Node object, as a person may. The machine does not notice.
func (s *sim) deleteNode(m *machine, node *corev1.Node) {
	s.say("node %s is deleted", m)
	s.api.drop(node)
	for _, va := range s.attachmentsAt(m.name) {
		if !recorded(va, node) {
			m.of(s.diskOf(va).handle).unrecorded = va.UID
		}
	}
	for _, handle := range slices.Sorted(maps.Keys(m.local)) {
		s.bothRemoved(m, handle)
		if v := m.of(handle); v.inherited && v.mounted && s.excuse(excuse.TwoMachines) {
			v.forced = true
			s.say("nothing tells any more that %s has %s, which was reported to the machine before", m, handle)
		}
	}
	if csiNode, ok := get[*storagev1.CSINode](s.api, m.name); ok {
		s.api.drop(csiNode)
	}
	if s.chance(50) { // the garbage collector, now or never
		delete(s.leases, m.name)
	}
}

// recorded reports whether what an attachment records about the machine fits its present boot. A Node that is deleted
// between a boot and that record cannot be distinguished from one whose machine was started after it was deleted. Where nothing was
// recorded the times, in whole seconds, have to suffice.
func recorded(va *storagev1.VolumeAttachment, node *corev1.Node) bool {
	boot := va.Annotations[kube.BootIDAnnotation]
	recent := va.Annotations[kube.NodeUIDAnnotation] == "" && time.Since(va.CreationTimestamp.Time) < 2*time.Second
	return !recent && (boot == "" || boot == node.Status.NodeInfo.BootID)
}

func (s *sim) attachmentsAt(node string) []*storagev1.VolumeAttachment {
	return slices.DeleteFunc(list[*storagev1.VolumeAttachment](s.api), func(va *storagev1.VolumeAttachment) bool { return va.Spec.NodeName != node })
}

// comeBack recreates a Node object that is gone: kubelet does when it restarts, or people do, and kubelet continues as before. Or
// another machine takes the name, also of a Node that still exists, but then the earlier machine is not running. Otherwise its
// successor would find reported, and mount, what it has mounted itself, and nothing could prevent that.
func (s *sim) comeBack(m *machine) {
	_, exists := get[*corev1.Node](s.api, m.name)
	switch last := s.lastNode(m.name); {
	case last == nil:
	case s.chance(30):
		switch {
		case !s.tellsApart(m, last, !exists) && s.excuse(excuse.UnknownMachine):
		case exists && m.uses() && s.excuse(excuse.TwoMachines):
		default:
			s.replace(m)
		}
	case exists:
	case s.chance(40):
		s.restart(m)
	default:
		s.copyNode(m, last)
	}
}

// copyNode recreates a Node object as a person does, mostly from a copy: with or without the list of what is in use, and with or
// without the identity of the machine.
func (s *sim) copyNode(m *machine, last *corev1.Node) {
	node := bareNode(m.name)
	if s.chance(70) {
		node.Spec.ProviderID, node.Status = last.Spec.ProviderID, *last.Status.DeepCopy()
		node.Status.VolumesAttached = nil
		if s.chance(60) {
			node.Status.VolumesInUse = nil
		}
		if s.chance(30) {
			node.Status.NodeInfo.BootID = ""
		}
		if s.chance(30) {
			node.Status.NodeInfo.SystemUUID = ""
		}
	}
	info := node.Status.NodeInfo
	s.say("a person makes node %s again, in use %v, boot %q, system %q", m, node.Status.VolumesInUse, info.BootID, info.SystemUUID)
	s.register(m, node)
}

// loseNode deletes the Node of a machine that uses volumes, as a person may, mostly recreates it, and may have lost patience with
// its pods before.
func (s *sim) loseNode(m *machine) (did bool) {
	node, ok := get[*corev1.Node](s.api, m.name)
	if !ok || !m.uses() {
		return false
	}
	if s.chance(60) {
		s.losePatience(m)
	}
	s.deleteNode(m, node)
	if s.chance(70) {
		s.copyNode(m, node)
	}
	return true
}

// swap waits until a machine has mounted something, and puts another box in its place that shows the same but its boot, and that the driver
// knows by the same name: its Node is deleted, and the other registers. The first runs on without network, with what it has mounted.
func (s *sim) swap() {
	s.swapIn = 1 + s.boxes.IntN(steps/8)
	for range s.slots {
		s.comePod()
	}
	s.bustle(20, func() bool { return s.swappable() != nil })
	if m := s.swappable(); m != nil {
		s.swapNow(m)
		s.bustle(4, func() bool { return false })
	}
}

// swapLast swaps a machine when all is calm, if none was swapped before, and has people help again.
func (s *sim) swapLast() {
	if s.swapIn <= 0 || slices.ContainsFunc(s.cutOffs, func(m *machine) bool { return m.alike }) {
		return
	}
	for range s.slots {
		s.comePod()
	}
	for range quietTicks {
		if m := s.swappable(); m != nil {
			s.swapNow(m)
			s.turns(4)
			s.powerOff(m)
			s.restore()
			return
		}
		s.turns(1)
	}
}

func (s *sim) swapNow(m *machine) {
	node, _ := get[*corev1.Node](s.api, m.name)
	s.say("the pods of %s are deleted by force", m)
	for _, pod := range list[*corev1.Pod](s.api) {
		if pod.Spec.NodeName == m.name {
			s.api.drop(pod)
		}
	}
	s.deleteNode(m, node)
	m.alike = !s.tellsApart(m, node, true)
	s.replace(m)
}

// swappable is the first machine of its name, if it has a volume mounted. The report of a Fibre Channel volume goes with its Node, and says nothing of the machine.
func (s *sim) swappable() *machine {
	for _, name := range machineNames {
		m := s.machines[name]
		_, ok := get[*corev1.Node](s.api, name)
		mounts := slices.ContainsFunc(s.disks, func(d *disk) bool { return m.of(d.handle).mounted && !s.doubled(m, d) })
		if ok && m.on && m.nth == 0 && mounts && !m.of(fibre).mounted && !m.of(fibre).verified {
			return m
		}
	}
	return nil
}

// doubled reports whether the machine's node has several attachments of a volume: the detach of one of them takes nothing.
func (s *sim) doubled(m *machine, d *disk) bool {
	return len(slices.DeleteFunc(s.attachmentsAt(m.name), func(va *storagev1.VolumeAttachment) bool { return s.diskOf(va) != d })) > 1
}

// bustle has everybody act for some ticks, until something holds.
func (s *sim) bustle(ticks int, until func() bool) {
	for range ticks {
		for range 3 {
			s.controller.work()
			s.settleDown()
			for _, name := range machineNames {
				for _, d := range s.disks {
					s.kubelet(s.machines[name], d.handle)
				}
			}
			for len(s.net.waiting()) > 0 {
				s.serveOne()
			}
			s.landOne()
			if until() || s.broken != "" {
				return
			}
		}
		s.passBusily(tick)
	}
}

// misled reports whether nothing shows any more that a volume may be at a machine whose name another one like it has: the attachment records
// the other one, which had listed the volume for pods of its own; or neither has a boot ID, and the other one's kubelet has listed nothing for
// long enough; or it is out of service, as a person said of it; or the UUID that both show was no other Node's at some moment since the writer
// last looked.
func (s *sim) misled(m *machine, va *storagev1.VolumeAttachment, since int) bool {
	if !m.alike {
		return false
	}
	last := s.lastNode(m.name)
	others := va.Annotations[kube.NodeUIDAnnotation] == string(last.UID) || va.Annotations[kube.BootIDAnnotation] != s.bootID(m)
	old := !s.identity.boot && time.Since(last.CreationTimestamp.Time) >= attachment.SyncWindow-clockBound
	if old || others || isOutOfService(last) {
		return true
	}
	alone := func(version int) bool {
		for name, obj := range s.api.at(nodes, version) {
			if n, ok := obj.(*corev1.Node); ok && name != m.name && n.Status.NodeInfo.SystemUUID == s.identity.uuid {
				return false
			}
		}
		return true
	}
	return s.identity.uuid == clonedUUID && (alone(since) || slices.ContainsFunc(s.api.history[nodes], func(e event) bool {
		return e.version > since && alone(e.version)
	}))
}

// mounts: the machine has one of the volumes mounted.
func (m *machine) mounts(handles []string) bool {
	return slices.ContainsFunc(handles, func(handle string) bool { return m.of(handle).mounted })
}

// uses: the machine has a volume mounted, or is about to.
func (m *machine) uses() bool {
	for _, v := range m.local {
		if v.mounted || v.verified {
			return true
		}
	}
	return false
}

// lastNode is the last version of a Node, whether it is still there or not.
func (s *sim) lastNode(name string) *corev1.Node {
	for _, e := range slices.Backward(s.api.history[nodes]) {
		if e.object.GetName() == name {
			return e.object.(*corev1.Node)
		}
	}
	return nil
}

// providerIDAnnotation is what belay records of the provider's name of a machine.
const providerIDAnnotation = "belay.dev/provider-id"

// tellsApart reports whether another machine in the place of this one would be recognized: the Node identifies its machine, and so
// does what was attached to it.
func (s *sim) tellsApart(m *machine, last *corev1.Node, newNode bool) bool {
	system := last.Status.NodeInfo.SystemUUID
	if s.identity.uuid != "" {
		system = "" // another has it too
	}
	provider := last.Spec.ProviderID
	if !newNode {
		provider = "" // cannot be changed
	}
	return (system != "" || provider != "") && !slices.ContainsFunc(s.attachmentsAt(m.name), func(va *storagev1.VolumeAttachment) bool {
		return (system == "" || va.Annotations[kube.SystemUUIDAnnotation] != system) &&
			(provider == "" || va.Annotations[providerIDAnnotation] != provider)
	})
}

// recover makes a machine well.
func (s *sim) recover(m *machine) {
	m.hung = false
	node, ok := get[*corev1.Node](s.api, m.name)
	switch {
	case !m.on || s.chance(20):
		s.boot(m)
	case !ok:
		m.online = true
		s.restart(m)
	default:
		m.online = true
		s.registerDriver(m)
	}
	if ok && isOutOfService(node) {
		node, _ = get[*corev1.Node](s.api, m.name)
		change(s.api, node, func(n *corev1.Node) { n.Spec.Taints = nil })
		s.say("%s is back in service", m)
	}
}

// strangers are the machines that nothing but their boots tells from others, and that were restarted: after their Node was recreated
// they count as replaced.
func (s *sim) strangers() (found []*machine) {
	for _, name := range machineNames {
		if m := s.machines[name]; s.stranger(m) {
			found = append(found, m)
		}
	}
	return found
}

func (s *sim) stranger(m *machine) bool {
	return s.identity.boot && (!s.identity.system || s.identity.uuid != "") && !s.identity.provider && (m.boot > 0 || m.nth > 0)
}

// strangeTo reports whether an attachment records another boot of the machine, and another ID than its driver has for it.
func (s *sim) strangeTo(m *machine, va *storagev1.VolumeAttachment) bool {
	boot, id := va.Annotations[kube.BootIDAnnotation], va.Annotations[kube.NodeIDAnnotation]
	return boot != "" && boot != s.bootID(m) && id != "" && id != s.driverOf(s.diskOf(va)).inForm(s.nodeID(m, s.diskOf(va).handle))
}

// handOver is what people can do if no policy ends the wait for a machine that was replaced: they know that it is off now, delete
// its attachments by hand, and restart the controller, which remembers volumes whose attachment was removed. It reports whether the
// controller has to be restarted.
func (s *sim) handOver() (restart bool) {
	if s.policy.UnmountTimeout > 0 || s.policy.DeletedNode == attachment.DeletedNodeDetach {
		return false
	}
	for _, m := range slices.Concat(s.cutOffs, s.strangers()) {
		done := true
		for _, va := range s.attachmentsAt(m.name) {
			d := s.diskOf(va)
			if s.machines[m.name].of(d.handle).mounted {
				done = false
				continue
			}
			// A volume that the node connects by itself may also be attached by what a Node showed of the machine before.
			if va.DeletionTimestamp != nil || s.takenOver[m] && (d.handle != fibre || s.wantedAt(m.name, fibre)) {
				continue
			}
			s.excuse(excuse.WrittenOff)
			s.say("a person deletes %s at %s by hand, which was for a machine that is off", short(va.Name), m.name)
			_ = s.api.remove(nil, nil, attachments, va.Name, nil)
			restart = true
		}
		s.takenOver[m] = s.takenOver[m] || done
	}
	return restart
}
