package recovery

import (
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// TestFencerDecidesItself: who can write a NodeFence has no machine switched off that the fencer hears, none of the control plane, and no more of them
// than its own brake allows. A person asks for one command, which that brake does not hold back; all else does.
func TestFencerDecidesItself(t *testing.T) {
	commands := func(ago time.Duration, names ...string) func(*testing.T, *fencer) {
		return func(t *testing.T, f *fencer) {
			t.Helper()
			for _, name := range names {
				source := sourceOf(name, "bmc-of-"+name)
				if name == "n1" {
					must(t, f.client.Get(t.Context(), client.ObjectKey{Name: name}, source))
				} else {
					must(t, f.client.Create(t.Context(), source))
				}
				source.Status.Command = &fencingv1.SentCommand{Nonce: "earlier", Time: micro(f.now().Add(-ago))}
				must(t, f.client.Status().Update(t.Context(), source))
			}
		}
	}
	others := []string{"n2", "n3", "n4", "n5", "n6"}
	asked := func(also ...func(*testing.T, *fencer)) func(*testing.T, *fencer) {
		return func(t *testing.T, f *fencer) {
			t.Helper()
			fence := &fencingv1.NodeFence{}
			must(t, f.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
			fence.Spec.Request = &fencingv1.Request{By: "alice", Reason: "kubelet is dead"}
			fence.CreationTimestamp = metav1.NewTime(f.now().Add(-time.Minute))
			must(t, f.client.Update(t.Context(), fence))
			for _, a := range also {
				a(t, f)
			}
		}
	}
	guarded := func(t *testing.T, f *fencer) {
		t.Helper()
		for _, o := range guardOf(requestPolicy) {
			o.SetCreationTimestamp(metav1.NewTime(f.now().Add(-time.Hour)))
			must(t, f.client.Create(t.Context(), o))
		}
	}
	late := func(t *testing.T, f *fencer) { // the policy came after the request
		t.Helper()
		for _, o := range guardOf(requestPolicy) {
			o.SetCreationTimestamp(metav1.NewTime(f.now().Add(-time.Minute)))
			must(t, f.client.Create(t.Context(), o))
		}
	}
	heard := func(_ *testing.T, f *fencer) {
		f.ear.silences.Renewed(f.now().Add(-time.Second), "n1", "earlier", time.Second)
		f.ear.silences.Renewed(f.now().Add(-time.Second), "n1", "", time.Second)
	}
	cutOff := func(_ *testing.T, f *fencer) {
		f.ear.silences.Renewed(f.now().Add(-2*time.Hour), "n9", "later", time.Second)
	}
	controlPlane := func(t *testing.T, f *fencer) {
		t.Helper()
		node := nodeOf("n1", 0)
		must(t, f.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, node))
		node.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
		must(t, f.client.Update(t.Context(), node))
	}
	for name, tt := range map[string]struct {
		change  func(*testing.T, *fencer)
		offs    int
		event   string
		refused bool
	}{
		"heard by nothing for an hour":                {func(*testing.T, *fencer) {}, 1, "", false},
		"heard a moment ago":                          {heard, 0, "", false},
		"all nodes are silent":                        {cutOff, 0, "DetectorCutOff", false},
		"of the control plane":                        {controlPlane, 0, "", true},
		"asked for, and heard":                        {asked(guarded, heard), 0, "", false},
		"asked for, all silent":                       {asked(guarded, cutOff), 0, "DetectorCutOff", false},
		"asked for, of the control plane":             {asked(guarded, controlPlane), 0, "", true},
		"asked for, others were commanded":            {asked(guarded, commands(time.Minute, others...)), 1, "", false},
		"asked for, and no policy guards requests":    {asked(commands(time.Minute, others...)), 0, "TooManyFenced", false},
		"asked for, before a policy guarded requests": {asked(late, commands(time.Minute, others...)), 0, "TooManyFenced", false},
		"others were commanded a minute ago":          {commands(time.Minute, others...), 0, "TooManyFenced", false},
		"others were commanded, one of them earlier":  {commands(time.Minute, others[1:]...), 1, "", false},
		"others were commanded long ago":              {commands(time.Hour, others...), 1, "", false},
		"it was commanded before itself":              {commands(time.Minute, append(others[1:], "n1")...), 1, "", false},
		"this process is about to command others": {func(_ *testing.T, f *fencer) {
			for _, name := range others {
				f.commanded[name] = f.now()
			}
		}, 0, "TooManyFenced", false},
	} {
		t.Run(name, func(t *testing.T) {
			f, bmc, source, fence := commanded(t)
			recorder := events.NewFakeRecorder(10)
			f.events = recorder
			tt.change(t, f)
			must(t, f.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
			must(t, f.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, fence))
			for range 2 {
				_, err := f.serve(t.Context(), f.state("n1"), source, fence)
				must(t, err)
			}
			if _, offs := bmc.count(); offs != tt.offs {
				t.Errorf("commanded %d times, want %d", offs, tt.offs)
			}
			stored := &fencingv1.FenceSource{}
			must(t, f.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, stored))
			if held := boundSource(stored).Held; held != (tt.event != "") {
				t.Errorf("the record says that the command is held: %v", held)
			}
			if refused := len(fence.Status.Evidence) == 1 && strings.HasPrefix(fence.Status.Evidence[0].Raw, "not sent"); refused != tt.refused {
				t.Errorf("the answers are %+v", fence.Status.Evidence)
			}
			close(recorder.Events)
			said := ""
			for e := range recorder.Events {
				said += e
			}
			if strings.Count(said, string(fencing.SwitchOffHeld)) != min(len(tt.event), 1) || !strings.Contains(said, tt.event) {
				t.Errorf("events %q, want one about %q", said, tt.event)
			}
		})
	}
}

// TestRepeatedCommandKeepsItsPlaceOnce: a machine that ignores its commands takes the place of its first one, as the detector counts the begin of its fence.
func TestRepeatedCommandKeepsItsPlaceOnce(t *testing.T) {
	f, _, source, fence := commanded(t)
	first := f.now().Add(-20 * time.Minute)
	source.Status.Command = &fencingv1.SentCommand{Nonce: "earlier", Fence: string(fence.UID), Time: micro(first)}
	if c := f.commandFor(source, fence, "n"); c.Nonce != "n" || !c.Time.Time.Equal(first) {
		t.Errorf("the next command of the fence is recorded as %+v", c)
	}
	source.Status.Command.Fence = "another"
	if c := f.commandFor(source, fence, "n"); !c.Time.Time.Equal(f.now()) {
		t.Errorf("the first command of a fence is recorded as %+v", c)
	}
}

// TestCommandIsSentOnce: a fencer whose predecessor was about to send a command asks for the state instead. The record is where no other part can
// write it.
func TestCommandIsSentOnce(t *testing.T) {
	f, bmc, source, fence := commanded(t)
	source.Status.Command = &fencingv1.SentCommand{Nonce: fence.Status.Intents[0].Nonce, Time: micro(f.now())}
	must(t, f.client.Status().Update(t.Context(), source))
	_, err := f.serve(t.Context(), f.state("n1"), source, fence)
	must(t, err)
	if asked, offs := bmc.count(); asked == 0 || offs != 0 {
		t.Errorf("asked %d times, commanded %d times", asked, offs)
	}
}

// TestSilenceOfTheFencer: a command waits for the fencer's own ear until the node has been silent for the limit, and is sent then.
func TestSilenceOfTheFencer(t *testing.T) {
	f, bmc, source, fence := commanded(t)
	clock := f.now()
	f.now = func() time.Time { return clock }
	f.ear.silences.Forget("n1")
	f.ear.silences.Renewed(clock.Add(-time.Second), "n1", fence.Status.Intents[0].Renewal, time.Second)
	_, limit, _ := f.ear.of("n1")
	after, err := f.serve(t.Context(), f.state("n1"), source, fence)
	must(t, err)
	if _, offs := bmc.count(); offs != 0 || after != min(limit-time.Second, lookEvery) {
		t.Errorf("commanded %d times a second after the node was heard, and looks again after %v", offs, after)
	}
	clock = clock.Add(limit - time.Second)
	_, err = f.serve(t.Context(), f.state("n1"), source, fence)
	must(t, err)
	if _, offs := bmc.count(); offs != 1 {
		t.Errorf("commanded %d times once the node was silent for %v", offs, limit)
	}
}

// TestNoLeaseIsNoSilence: a node without a lease was never heard, so it is not known to be silent.
func TestNoLeaseIsNoSilence(t *testing.T) {
	f, bmc, source, fence := commanded(t)
	recorder := events.NewFakeRecorder(1)
	f.events = recorder
	must(t, f.client.Delete(t.Context(), leaseOf("n1")))
	fence.Status.Intents[0].Renewal = ""
	f.ear.silences.Forget("n1")
	_, err := f.serve(t.Context(), f.state("n1"), source, fence)
	must(t, err)
	if _, offs := bmc.count(); offs != 0 {
		t.Errorf("commanded %d times", offs)
	}
	if said := <-recorder.Events; !strings.Contains(said, string(fencing.SwitchOffHeld)) || !strings.Contains(said, "SilenceTooShort") {
		t.Errorf("event %q", said)
	}
}

// TestReplacedMachineIsNotHeard: what the lease of another machine of the name says is nothing about the one that is to be switched off.
func TestReplacedMachineIsNotHeard(t *testing.T) {
	boot := fencing.Boot{Node: "n", NodeUID: "u", ID: "b", Machine: "m"}
	fleet := fencing.Fleet{}
	for i := range 4 {
		fleet.Nodes = append(fleet.Nodes, fencing.Node{Boot: fencing.Boot{Node: strconv.Itoa(i)}, Heard: true, Limit: time.Minute})
	}
	for machine, want := range map[string]bool{"m": false, "other": true} {
		shown := fencing.Node{Boot: fencing.Boot{Node: "n", NodeUID: "u2", ID: "b2", Machine: machine}, Heard: true, Limit: time.Minute}
		if s := fencing.MaySwitchOff(time.Now(), fencing.DefaultBrakes(), fleet, boot, shown, false); s.Suspected != want {
			t.Errorf("the Node shows machine %s: %+v", machine, s)
		}
	}
}
