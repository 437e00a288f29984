package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/publication"
)

func explained(t *testing.T, s scene, about Ref) Explanation {
	t.Helper()
	e, err := Explain(s.Snapshot, about)
	if err != nil || len(e.Findings) == 0 {
		t.Fatalf("%s: %d findings, %v", about, len(e.Findings), err)
	}
	return e
}

func hasStep(f *Finding, text string) bool {
	return slices.ContainsFunc(f.Next, func(s explain.Step) bool { return strings.Contains(s.Text, text) })
}

// TestBrakeIsNamedAtPodAndNode: a pod whose node recovery does not fence gets the brake as its reason, as the node does, and its step first; whether its volume
// may be taken by force is judged as without it.
func TestBrakeIsNamedAtPodAndNode(t *testing.T) {
	steps := map[decision.Reason]string{
		fencing.TooManySilent: "Look for the common cause", fencing.TooManyFenced: "Look at the other fences", fencing.DetectorCutOff: "Look for the common cause",
	}
	for brake, step := range steps {
		for name, change := range map[string]func(scene){
			"not Ready":   func(scene) {},
			"Ready still": func(s scene) { s.a.Status.Conditions[0].Status = corev1.ConditionTrue },
		} {
			s := newScene()
			s.silent()
			change(s)
			s.Leases[2].Spec.RenewTime.Time = s.Now.Add(-time.Minute)
			s.reports(brake)
			for _, about := range []Ref{theWaiter, theHolder, {Resource: Nodes, Name: "a"}} {
				e := explained(t, s, about)
				f := &e.Findings[0]
				if f.Reason != brake || f.Verdict != Unsafe || !strings.Contains(f.Summary, explain.AndNotFenced(brake)) || !strings.Contains(f.Next[0].Text, step) {
					t.Errorf("%s, %s: %s %s: %s; %+v, want %s", name, about, f.Verdict, f.Reason, f.Summary, f.Next, brake)
				}
			}
			s.ending(time.Minute)
			if e := explained(t, s, theHolder); e.Reason != brake || !hasStep(&e.Findings[0], step) {
				t.Errorf("%s, its pod is being deleted: %s: %s", name, e.Reason, e.Summary)
			}
		}
	}
}

// TestLostSinceItWasHeard: for how long a node is lost counts from when it was heard last, before and after it is found not Ready, at the node and at the
// pods that use their volumes there; and stuck has that time.
func TestLostSinceItWasHeard(t *testing.T) {
	for name, status := range map[string]corev1.ConditionStatus{"silent": corev1.ConditionTrue, "unreachable": corev1.ConditionUnknown, "not Ready": corev1.ConditionFalse} {
		s := newScene()
		s.heartbeat(time.Minute)
		ready := &s.a.Status.Conditions[0]
		if ready.Status = status; status != corev1.ConditionTrue {
			ready.LastTransitionTime = metav1.NewTime(s.Now.Add(-20 * time.Second))
		}
		for _, about := range []Ref{theHolder, {Resource: Nodes, Name: "a"}} {
			e := explained(t, s, about)
			i := slices.IndexFunc(e.Findings, func(f Finding) bool { return f.Subject == about })
			if i < 0 || e.Findings[i].Since == nil || !e.Findings[i].Since.Equal(s.Now.Add(-time.Minute)) {
				t.Errorf("%s, %s: %+v, want since a minute", name, about, e.Findings)
			}
		}
		for _, f := range Stuck(s.Snapshot, "", 0).Items {
			if f.Since == nil {
				t.Errorf("%s: stuck has no time for %s (%s)", name, f.Subject, f.Reason)
			}
		}
	}
	s := newScene() // its kubelet says that it is not Ready, and renews its lease
	s.heartbeat(2 * time.Second)
	s.a.Status.Conditions[0].Status, s.a.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(s.Now.Add(-time.Hour))
	if f := explained(t, s, theHolder).Findings[0]; f.Since == nil || !f.Since.Equal(s.Now.Add(-time.Hour)) {
		t.Errorf("it says that it is not Ready: since %v", f.Since)
	}
}

// TestCallInFlightIsNoError: while an attempt has no answer, the error before it comes behind that, and is no reason of its own.
func TestCallInFlightIsNoError(t *testing.T) {
	const down = `rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial unix /csi/csi.sock: connect: connection refused"`
	for name, change := range map[string]func(*scene){
		"by the annotation": func(s *scene) { s.pendingCall(publication.CallInFlight, "ControllerUnpublishVolume", 20*time.Second) },
		"by the time of the attempt": func(s *scene) {
			s.va.Status.DetachError.Message += "; next attempt at " + stamp(s.Now.Add(-20*time.Second))
		},
	} {
		s := newScene()
		s.detaches(time.Minute, down)
		s.va.Status.DetachError.Time.Time = s.Now.Add(-30 * time.Second)
		change(&s)
		e := explained(t, s, theWaiter)
		if e.Reason != publication.CallInFlight || !strings.Contains(e.Summary, " since 2026-11-01T11:59:40Z") || !strings.Contains(e.Summary, ", and the one before it failed: connection error") {
			t.Errorf("%s: %s: %s", name, e.Reason, e.Summary)
		}
	}
}

// TestMountEventNamesTheVolume: a text that is about the pod, and names one of its volumes, is about that one.
func TestMountEventNamesTheVolume(t *testing.T) {
	for name, one := range map[string]struct {
		message string
		of      string // the volume at fault
	}{
		"a volume without a claim": {`Unable to attach or mount volumes: timed out after 20s, and waiting again: volume "cfg" (disk) is waiting for its ConfigMap`, "cfg"},
		"in words":                 {"the contents of volume cfg cannot be written: no space left on device", "cfg"},
		"the claim":                {`Unable to attach or mount volumes: persistentvolumeclaim "claim" is refused`, "v"},
		"the volume of the claim":  {`Unable to attach or mount volumes: timed out after 20s, and waiting again: volume "v" (pv) failed`, "v"},
		"no volume":                {"Unable to attach or mount volumes: the disk of the node is full", "v"},
		"a part of a name":         {`Unable to attach or mount volumes: volume "cfg-2" is refused`, "v"},
	} {
		s := newScene()
		s.mounts()
		s.waiter.Spec.Volumes = append(s.waiter.Spec.Volumes, corev1.Volume{Name: "cfg", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
		}})
		s.waiter.CreationTimestamp = metav1.NewTime(s.Now.Add(-10 * time.Minute))
		s.says("", "Pod", "FailedMount", one.message, 10*time.Second)
		e := explained(t, s, theWaiter)
		for _, f := range e.Findings {
			if f.Reason != explain.MountFailing || f.Volume == nil || f.Volume.Name != one.of || !strings.Contains(f.Summary, one.message[len(one.message)-10:]) {
				t.Errorf("%s: %s of %+v: %s, want %s", name, f.Reason, f.Volume, f.Summary, one.of)
			}
		}
	}
}

// TestHolderHasTheVolume: where a pod waits for a volume no node has, there is no holder, whatever the node of the pod lists or has attached.
func TestHolderHasTheVolume(t *testing.T) {
	for name, one := range map[string]struct {
		make func(scene)
		want []string
	}{
		"attached elsewhere": {func(scene) {}, []string{"a holder"}},
		"the attach to its own node fails, and the node lists the volume": {func(s scene) {
			s.mounts()
			s.va.Status.Attached, s.Nodes[1].Status.VolumesAttached = false, nil
		}, nil},
		"attached at its own node": {func(s scene) { s.mounts() }, nil},
		"another pod uses it there": {func(s scene) {
			s.mounts()
			s.holder.Spec.NodeName, s.Pods = "b", append(s.Pods, s.holder)
		}, []string{"b holder"}},
		"a pod waits on the other node too": {func(s scene) {
			s.holder.Status, s.va.Status.Attached = s.waiter.Status, false
			s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil
		}, []string{"a"}},
	} {
		s := newScene()
		one.make(s)
		f := explained(t, s, theWaiter).Findings[0]
		var got []string
		for _, h := range f.Having() {
			text := h.Node.Name
			for _, p := range h.Pods {
				text += " " + p.Name
			}
			got = append(got, text)
		}
		if !slices.Equal(got, one.want) {
			t.Errorf("%s (%s): %q, want %q", name, f.Reason, got, one.want)
		}
	}
}
