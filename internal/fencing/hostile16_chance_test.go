package fencing

import (
	"testing"
	"time"
)

// A pod that has ended and stays because of a finalizer says nothing about the node: a kubelet that works cannot delete it either. A tenant deletes a pod
// of its own that has a claim and a finalizer, once. From then on the node has no chance whenever it is silent for longer than the grace period and a
// minute, and a machine whose kubelet is replaced is switched off.
func TestHostileEndedPodWithAFinalizerGivesNoNodeUp(t *testing.T) {
	pod := Occupant{Storage: true, Ended: true, Expired: 24 * time.Hour, Grace: time.Second}
	n := quietNode("node-0", "")
	n.Refused, n.Silent = true, 62*time.Second
	n.GivenUp = pod.GivesUp(n.Silent)
	f := fleet(1, 9, noZone)
	if s := Suspect(start, Default, DefaultBrakes(), f.Count(), n); s.Suspected {
		t.Error("the kubelet is replaced, and the node is fenced after 62 s for a pod that ended a day ago")
	}
}
