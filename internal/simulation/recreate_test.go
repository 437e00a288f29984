package simulation

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

// recreateTime is how long the plane may take to detach a volume from a Node that was recreated: the window, the two checks that show that the
// kubelet was alive at its end, 14 s each, and what any move may take.
const recreateTime = attachment.SyncWindow + 2*14*time.Second + moveTime

// recreate deletes the Node of a machine that uses a volume, and restarts its kubelet, which finds mounted what the new Node does not report. The
// pods stay until the volume is reported and listed again. When they leave, the kubelet takes its time to unmount.
func (s *sim) recreate() {
	if s.broken != "" || s.lists.IntN(2) > 0 || s.settled() != "" || s.leftOver() != "" {
		return
	}
	m, d := s.recreatable()
	if m == nil {
		return
	}
	s.sleep(tick) // of an attachment without a record of its Node, only the second in which it was created says which Node that was
	node, _ := get[*corev1.Node](s.api, m.name)
	s.deleteNode(m, node)
	s.restart(m)
	s.turns(s.lists.IntN(12))
	if s.lists.IntN(4) == 0 {
		s.changeLeader()
		s.turns(2)
	}
	m.unmounts = time.Now().Add(time.Duration(s.lists.IntN(25)) * time.Second)
	s.say("the pods of %s with %s are deleted by force", m, d.handle)
	for _, pod := range s.podsAt(m, d.handle) {
		s.api.drop(pod)
	}
	s.late(s.within(recreateTime), recreateTime)
}

// laterNode reports whether nothing says that something was attached under the present Node object.
func (s *sim) laterNode() bool {
	return slices.ContainsFunc(list[*storagev1.VolumeAttachment](s.api), func(va *storagev1.VolumeAttachment) bool {
		node, ok := get[*corev1.Node](s.api, va.Spec.NodeName)
		return ok && va.Annotations[kube.NodeUIDAnnotation] != string(node.UID)
	})
}

// recreatable is a machine that has a volume mounted, and the volume. A Node object that another machine took over keeps the provider ID of the one
// before, which is immutable: once it is deleted as well, nothing says whose the volume is (docs/not-guaranteed.md, 5).
func (s *sim) recreatable() (*machine, *disk) {
	for _, name := range machineNames {
		m := s.machines[name]
		node, ok := get[*corev1.Node](s.api, name)
		i := slices.IndexFunc(s.disks, func(d *disk) bool {
			v := m.of(d.handle)
			return v.mounted && s.counts(m, d.handle) && s.answers(d) && ok && reports(node, d.handle) && len(s.podsAt(m, d.handle)) > 0
		})
		if ok && m.on && m.online && !m.hung && isReady(node) && i >= 0 && node.Spec.ProviderID == s.providerID(m) {
			return m, s.disks[i]
		}
	}
	return nil, nil
}

// turns lets everybody act for some ticks.
func (s *sim) turns(ticks int) {
	for range ticks {
		for s.calmTurn() && s.broken == "" {
			continue
		}
		s.sleep(tick)
		s.settleDown()
	}
}

// TestKubeletListsAsUpstream: a kubelet that restarts while its Node does not report what is mounted lists that as long as a pod wants it, and may
// take it off the list before it unmounts it. One that finds it reported keeps it in the list until then.
func TestKubeletListsAsUpstream(t *testing.T) {
	for _, reported := range []bool{false, true} {
		early := 0
		for seed := uint64(1); seed <= 20; seed++ {
			s, d, _ := oneVolume(t)
			s.lists, s.calm = rand.New(rand.NewPCG(seed, 17)), true
			m := s.machines["n0"]
			if _, ok := get[*corev1.Node](s.api, m.name); !ok {
				s.register(m, s.newNode(m))
			}
			node, _ := get[*corev1.Node](s.api, m.name)
			if reported {
				change(s.api, node, func(n *corev1.Node) {
					n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: corev1.UniqueVolumeName(unique(d.handle))}}
				})
			}
			v := m.of(d.handle)
			v.mounted = true
			s.restart(m)
			v.claimed = true // for a pod, which has left since
			for v.mounted {
				if s.unmount(m, d.handle, false); v.mounted && !v.claimed {
					early++
				}
			}
		}
		if reported && early > 0 || !reported && (early == 0 || early == 20) {
			t.Errorf("reported at the restart %v: off the list before the unmount in %d of 20 seeds", reported, early)
		}
	}
}
