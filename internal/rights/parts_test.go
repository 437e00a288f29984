package rights

import (
	"context"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/recovery"
	"belay.dev/belay/internal/testing/wait"
)

// part returns a client with the token of a part of recovery.
func (f *fleet) part(name string) client.Client {
	f.Helper()
	c, err := client.New(server.ServiceAccount(f, "belay-system", "belay-recovery-"+name, recoveryFiles+name+".yaml"), client.Options{Scheme: f.admin.Scheme()})
	f.must(err)
	return c
}

// TestPartsWriteTheirOwnFields: with the token of the fencer a client moves no fence on, and with that of the actor it says of no machine that it is
// off. Neither changes what people have written.
func TestPartsWriteTheirOwnFields(t *testing.T) {
	f := newFleet(t)
	server.Apply(t, recoveryFiles+"admission-roles.yaml")
	fencer, actor, leave := f.part("fencer"), f.part("actor"), f.part("leave")
	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "parts"}, Spec: fencingv1.NodeFenceSpec{
		NodeName: "parts", NodeUID: "u", BootID: "b", MachineID: "m", Epoch: 1, Trigger: fencingv1.TriggerNodeSilent, Release: fencingv1.ReleaseAuto,
	}}
	f.must(f.admin.Create(t.Context(), fence))
	now := metav1.NewMicroTime(time.Now())
	patch := func(by client.Client, change func(*fencingv1.NodeFence), status bool, options ...string) error {
		t.Helper()
		f.must(f.admin.Get(t.Context(), client.ObjectKeyFromObject(fence), fence))
		before := fence.DeepCopy()
		change(fence)
		if status {
			return by.Status().Patch(t.Context(), fence, client.MergeFrom(before), &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: options}})
		}
		return by.Patch(t.Context(), fence, client.MergeFrom(before))
	}
	answers := func(change ...func(*fencingv1.Evidence)) func(*fencingv1.NodeFence) {
		e := fencingv1.Evidence{Class: "PoweredOff", Power: "Off", Source: "parts", BootID: "b", MachineID: "m", Nonce: "off", Time: now}
		for _, c := range change {
			c(&e)
		}
		return func(x *fencingv1.NodeFence) { x.Status.Evidence = append(x.Status.Evidence, e) }
	}
	phase := func(p fencing.Phase) func(*fencingv1.NodeFence) {
		return func(x *fencingv1.NodeFence) { x.Status.Phase = fencingv1.Phase(p) }
	}
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "'belay-fence-roles'") }
	wait.Until(t, "the policy is in force", func() bool { return refused(patch(fencer, phase(fencing.Isolating), true, metav1.DryRunAll)) })
	f.must(patch(actor, phase(fencing.Isolating), true))
	f.must(patch(actor, phase(fencing.Fencing), true))
	f.must(patch(actor, func(x *fencingv1.NodeFence) {
		x.Status.Intents = []fencingv1.Intent{{Action: "Off", Nonce: "off", NotAfter: now}}
		x.Status.Question = &fencingv1.Question{Nonce: "question", Time: now}
	}, true))
	f.must(patch(fencer, answers(), true))
	f.must(patch(fencer, func(x *fencingv1.NodeFence) { x.Status.Intents[0].SentBy = "of the version before" }, true))
	f.must(patch(fencer, answers(func(e *fencingv1.Evidence) { e.Nonce, e.Class, e.Power = "question", "", "On" }), true))

	for name, tt := range map[string]struct {
		by     client.Client
		change func(*fencingv1.NodeFence)
		status bool
	}{
		"the fencer moves on":               {fencer, phase(fencing.Tainting), true},
		"the fencer commands":               {fencer, func(x *fencingv1.NodeFence) { x.Status.Intents[0].NotAfter = metav1.NewMicroTime(now.Add(time.Hour)) }, true},
		"the fencer asks itself":            {fencer, func(x *fencingv1.NodeFence) { x.Status.Question.Nonce = "own" }, true},
		"the fencer answers no question":    {fencer, answers(func(e *fencingv1.Evidence) { e.Nonce = "none" }), true},
		"the fencer answers for a boot":     {fencer, answers(func(e *fencingv1.Evidence) { e.BootID = "another" }), true},
		"the fencer answers for a switch":   {fencer, answers(func(e *fencingv1.Evidence) { e.Source = "another" }), true},
		"the fencer speaks for a person":    {fencer, answers(func(e *fencingv1.Evidence) { e.Class, e.Power = "Stated", "" }), true},
		"the fencer says On and PoweredOff": {fencer, answers(func(e *fencingv1.Evidence) { e.Power = "On" }), true},
		"the fencer takes an answer back":   {fencer, func(x *fencingv1.NodeFence) { x.Status.Evidence = x.Status.Evidence[:1] }, true},
		"the fencer changes an answer":      {fencer, func(x *fencingv1.NodeFence) { x.Status.Evidence[1].Power = "Off" }, true},
		"the actor speaks for a person": {actor, answers(func(e *fencingv1.Evidence) {
			e.Class, e.Power, e.Nonce, e.Source, e.Raw = "Stated", "", "", "admin", "pulled the plug"
		}), true},
		"the actor says Off":             {actor, answers(func(e *fencingv1.Evidence) { e.Nonce = "question" }), true},
		"the actor takes an answer back": {actor, func(x *fencingv1.NodeFence) { x.Status.Evidence = nil }, true},
		"the actor changes the release":  {actor, func(x *fencingv1.NodeFence) { x.Spec.Release = fencingv1.ReleaseManual }, false},
		"leaving changes the release":    {leave, func(x *fencingv1.NodeFence) { x.Spec.Release = fencingv1.ReleaseManual }, false},
	} {
		if err := patch(tt.by, tt.change, tt.status); !refused(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for what, raw := range map[string]string{
		"a time without decimals":   `{"status":{"evidence":[{"bootID":"b","nonce":"off","time":"2026-11-29T18:00:00Z"}]}}`,
		"a condition's time":        `{"status":{"conditions":[{"type":"a","status":"True","reason":"r","message":"","lastTransitionTime":"2026-11-29t18:00:00z"}]}}`,
		"an offset of a day":        `{"spec":{"statement":{"by":"admin","reason":"r","machineID":"m","expires":"2026-11-29T18:00:00+25:00"}}}`,
		"the time of a silence":     `{"status":{"silentAgain":{"renewal":"","time":"2026-11-29T18:00:00.5Z"}}}`,
		"when it was written":       `{"status":{"statement":{"expires":"2026-11-29T18:00:00Z","made":"2026-11-29t18:00:00Z"}}}`,
		"until when it is to count": `{"status":{"intents":[{"action":"Off","nonce":"n","notAfter":"2026-11-29T18:00:00Z"}]}}`,
	} {
		body := client.RawPatch(types.MergePatchType, []byte(raw))
		err := f.admin.Status().Patch(t.Context(), fence.DeepCopy(), body)
		if strings.HasPrefix(raw, `{"spec"`) {
			err = f.admin.Patch(t.Context(), fence.DeepCopy(), body)
		}
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "should match") {
			t.Errorf("%s, which no client in Go can read, is stored: %v", what, err)
		}
	}
	f.must(patch(actor, func(x *fencingv1.NodeFence) { x.Finalizers = []string{"fencing.belay.dev/released"} }, false))
	f.must(patch(leave, func(x *fencingv1.NodeFence) { x.Finalizers = nil }, false))
	f.must(patch(f.admin, func(x *fencingv1.NodeFence) {
		x.Spec.Statement = &fencingv1.Statement{By: "admin", Reason: "pulled the plug", MachineID: "m", Expires: metav1.NewTime(now.Add(time.Hour))}
	}, false))
	f.must(patch(actor, func(x *fencingv1.NodeFence) { // as actors of the version before did, for its CRD
		x.Status.Phase = fencingv1.Phase(fencing.Tainting)
		x.Status.Evidence = append(x.Status.Evidence, fencingv1.Evidence{Class: "Stated", BootID: "b", MachineID: "m", Time: now, Source: "admin", Raw: "pulled the plug"})
	}, true))
	f.must(patch(actor, phase(fencing.Evicting), true))
}

// switches are power switches in memory, by the name of the node.
type switches struct {
	mu   sync.Mutex
	offs map[string]int
}

func (s *switches) dial(feed fencingv1.Feed, _ map[string][]byte) (recovery.Switch, error) {
	return oneSwitch{s, string(feed.Options["ip"])}, nil
}

type oneSwitch struct {
	*switches
	node string
}

func (s oneSwitch) Status(context.Context) (fencing.Power, string, error) {
	return fencing.PowerOn, "Status: ON", nil
}
func (s oneSwitch) Identity(context.Context) (string, error) { return "4c4c4544-" + s.node, nil }
func (s oneSwitch) Off(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offs[s.node]++
	return nil
}

// TestForgedCommand: with the tokens of the detector and the actor a client makes the fence of a node that runs, and stores a command that nothing
// overtakes. The fencer, which answers its questions, does not switch the machine off.
func TestForgedCommand(t *testing.T) {
	f := newFleet(t)
	detector, actor := f.part("detector"), f.part("actor")
	all := &switches{offs: map[string]int{}}
	f.dead("silent")
	f.dead("runs") // but for its lease
	f.must(f.admin.Patch(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "runs"}},
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"leaseDurationSeconds":3600}}`))))
	forge := func(name string, within time.Duration) {
		t.Helper()
		node, lease := f.node(name), &coordinationv1.Lease{}
		f.must(f.admin.Get(t.Context(), client.ObjectKeyFromObject(node), node))
		f.must(f.admin.Get(t.Context(), client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: name}, lease))
		boot := kube.BootOf(node)
		source := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fencingv1.FenceSourceSpec{Levels: []fencingv1.FenceLevel{{
			Feeds: []fencingv1.Feed{{Agent: "fence_test", Options: map[string]fencingv1.FeedOption{"ip": fencingv1.FeedOption(name)}}},
		}}}}
		f.must(f.admin.Create(t.Context(), source))
		t.Cleanup(func() { _ = f.admin.Delete(context.Background(), source) })
		source.Status.Bound = &fencingv1.Bound{NodeUID: boot.NodeUID, BootID: boot.ID, MachineID: boot.Machine, HardwareID: boot.Machine, Generation: source.Generation, Time: metav1.NowMicro()}
		f.must(f.admin.Status().Update(t.Context(), source))
		fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fencingv1.NodeFenceSpec{
			NodeName: name, NodeUID: boot.NodeUID, BootID: boot.ID, MachineID: boot.Machine, Epoch: 1, Trigger: fencingv1.TriggerNodeSilent, LastRenewal: kube.Renewal(lease), Release: fencingv1.ReleaseAuto,
		}}
		f.must(detector.Create(t.Context(), fence))
		for _, phase := range []fencing.Phase{fencing.Isolating, fencing.Fencing} {
			fence.Status.Phase = fencingv1.Phase(phase)
			if phase == fencing.Fencing {
				fence.Status.Question = &fencingv1.Question{Nonce: "question", Time: metav1.NowMicro()}
				fence.Status.Intents = []fencingv1.Intent{{Action: "Off", Nonce: "off", NotAfter: metav1.NewMicroTime(time.Now().Add(within)), Renewal: kube.Renewal(lease)}}
			}
			before := &fencingv1.NodeFence{}
			f.must(f.admin.Get(t.Context(), client.ObjectKeyFromObject(fence), before))
			f.must(actor.Status().Patch(t.Context(), fence, client.MergeFrom(before)))
		}
	}
	f.runs("fencer", recovery.Roles{Fencer: true}, func(o *recovery.Options) { o.Dial = all.dial })
	forge("runs", 5*time.Second)
	forge("silent", 30*time.Second)
	wait.Until(t, "the machine that is silent is switched off, and the other one asked once the command is too old", func() bool {
		fence := &fencingv1.NodeFence{}
		f.must(f.admin.Get(t.Context(), client.ObjectKey{Name: "runs"}, fence))
		all.mu.Lock()
		defer all.mu.Unlock()
		return all.offs["silent"] == 1 && slices.ContainsFunc(fence.Status.Evidence, func(e fencingv1.Evidence) bool { return e.Nonce == "question" && e.Power == "On" })
	})
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.offs["runs"] > 0 {
		t.Error("a machine that runs was switched off")
	}
}

// TestPolicyNamesEachField: a field that is added to the status of a NodeFence is the actor's, unless the policy says otherwise.
func TestPolicyNamesEachField(t *testing.T) {
	policy, err := os.ReadFile(recoveryFiles + "admission-roles.yaml")
	must(t, err)
	status := reflect.TypeFor[fencingv1.NodeFenceStatus]()
	for field := range status.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		same := "object.?status.?" + name + " == oldObject.?status.?" + name
		if name == "intents" { // but for a field of the version before
			same = "variables.intents == oldObject.?status.?intents"
		}
		if name != "evidence" && !strings.Contains(string(policy), same) {
			t.Errorf("the policy belay-fence-roles leaves status.%s to the fencer", name)
		}
	}
}
