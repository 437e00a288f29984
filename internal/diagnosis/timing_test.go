package diagnosis

import (
	"testing"
	"time"
)

// TestWaitForThePreviousNode has a row of its own, and is not blamed on the controller.
func TestWaitForThePreviousNode(t *testing.T) {
	at := func(seconds int) *time.Time { return new(time.Unix(int64(1000+seconds), 0)) }
	done := func(name HopName, seconds int) Hop { return Hop{Name: name, State: HopDone, At: at(seconds)} }
	row := func(rows []Interval, name string) *Interval {
		for i := range rows {
			if rows[i].Name == name {
				return &rows[i]
			}
		}
		return nil
	}
	const release, create = "of these, after the new pod had its node", "controller creates the VolumeAttachment"
	rest := []Hop{done(HopPodCreated, 0), done(HopScheduled, 1), done(HopAttachRequested, 420), done(HopTaken, 421)}
	known := timing(append([]Hop{done(HopDetached, 419)}, rest...), *at(430))
	if r, c := row(known, release), row(known, create); r == nil || r.Seconds == nil || *r.Seconds != 418 || *c.Seconds != 1 {
		t.Errorf("known: %+v, %+v", r, c)
	}
	gone := timing(append([]Hop{{Name: HopDetached, State: HopUnknown, NotAfter: at(420)}}, rest...), *at(430))
	if r, c := row(gone, release), row(gone, create); r == nil || r.AtMost == nil || *r.AtMost < 419 || c.Seconds != nil || c.Unknown == "" {
		t.Errorf("unknown: %+v, %+v", r, c)
	}
	if r := row(timing(append([]Hop{done(HopDetached, 0)}, rest...), *at(430)), release); r != nil {
		t.Errorf("no wait: %+v", r)
	}
}

// TestNegativeWaits: a time that has not come is none.
func TestNegativeWaits(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.leaves(6, 2)
	m.Pods[len(m.Pods)-1].Status.ContainerStatuses[0].State.Terminated.FinishedAt = at(40) // the clock of the node is 35 s ahead
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range answer.Moves[0].Timing {
		if v.Name == "old node unmounts and publishes that" && v.SoFar != nil && *v.SoFar == 0 {
			t.Errorf("%s: <1 s so far, although the clocks contradict each other by 34 s", v.Name)
		}
		if v.Name == "old pod's containers end" && v.Seconds != nil && *v.Seconds > 6 {
			t.Errorf("%s took %.0f s of a move that began 6 s ago", v.Name, *v.Seconds)
		}
	}
	if total := answer.Moves[0].End.Sub(*answer.Moves[0].Start); total > 7*time.Second {
		t.Errorf("%v so far, of a move that began 6 s ago", total)
	}
}

// TestStartBySandboxChange: a kubelet that recreates the sandbox of a pod stops its containers with the event "Stopping container" (killPod),
// long before the pod is deleted. That is not the beginning of the move.
func TestStartBySandboxChange(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	m.event("old", "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.", -3000)
	m.kills("Stopping container app", 1)
	e := m.Events[len(m.Events)-1]
	m.kills("Stopping container sidecar", -3000)
	m.event("old", "Started", "Started container app", -2990)
	e.FirstTimestamp, e.Count = at(-3000), 2 // the recorder counts events with the same message
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil {
		t.Fatal(err)
	}
	v := &answer.Moves[0]
	if start := v.Start.Sub(begin); start < -10*time.Second {
		t.Errorf("the move began at %v or before (%v), %v in all; the kubelet stopped the container at 1s: the bound is false, because the pod lived after it", start, v.StartedBefore, v.End.Sub(*v.Start))
	}
	if h := hopOf(t, m.Snapshot, HopPodDeleted); h.NotAfter == nil || !h.NotAfter.Equal(begin.Add(time.Second)) {
		t.Errorf("%+v, want the limit 1s", h)
	}
	last := v.Timing[len(v.Timing)-1]
	if last.AtLeast != nil && *last.AtLeast > 20 {
		t.Errorf("%s: at least %.0f s", last.Name, *last.AtLeast)
	}
}

// TestStartAfterTheNextPod: where the next pod was created first, as in a rolling update, the move does not begin with it or before: the old pod
// was deleted later, and nothing says when.
func TestStartAfterTheNextPod(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	m.kills("Stopping container app", 600)
	m.Now = begin.Add(700 * time.Second)
	for i, s := range map[int]int{2: 603, 3: 605} {
		m.Events[i].FirstTimestamp, m.Events[i].LastTimestamp = at(s), at(s)
	}
	m.va.CreationTimestamp = at(606)
	m.pod.Status.ContainerStatuses[0].State.Running.StartedAt = at(615)
	// The old pod has another name than the new one, as those of a Deployment.
	for _, e := range m.Events {
		if e.InvolvedObject.UID == "old" {
			e.InvolvedObject.Name = "db-old"
		}
	}
	for i, s := range []int{606, 607, 611} {
		when := at(s)
		m.va.ManagedFields[i].Time = &when
	}
	m.Events[4].FirstTimestamp, m.Events[4].LastTimestamp = at(612), at(612)
	m.pod.Status.Conditions[1].LastTransitionTime, m.pod.Status.Conditions[2].LastTransitionTime = at(614), at(616)
	answer, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"})
	if err != nil {
		t.Fatal(err)
	}
	v := &answer.Moves[0]
	if !v.StartedBefore || v.Start.Sub(begin) != 10*time.Minute {
		t.Errorf("hops %v: begins at %v or before, %v in all, although the old pod was stopped at 600s", lines(v), v.Start.Sub(begin), v.End.Sub(*v.Start))
	}
}

// TestKillThatIsNoEnd: a container that its probe has restarted says nothing of the end of its pod.
func TestKillThatIsNoEnd(t *testing.T) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	m.kills("Container app failed liveness probe, will be restarted", -50)
	if h := hopOf(t, m.Snapshot, HopPodDeleted); h.NotAfter == nil || !h.NotAfter.Equal(begin.Add(4*time.Second)) {
		t.Errorf("%+v, want the limit of the detach, 4s", h)
	}
}

// BenchmarkManyEvents: a hundred thousand events do not make a timeline take long. A scan of all for each took minutes.
func BenchmarkManyEvents(b *testing.B) {
	m := newMoved("belay-controller", "belay-attacher")
	m.belayEvents()
	for i := range 100_000 {
		m.event("old", "Killing", "Stopping container app", 1+i%3)
	}
	for b.Loop() {
		if _, err := Timelines(m.Snapshot, Ref{Resource: Volumes, Name: "pv-1"}); err != nil {
			b.Fatal(err)
		}
	}
}
