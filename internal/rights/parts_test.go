package rights

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
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
	patch := func(by client.Client, change func(*fencingv1.NodeFence), status bool) error {
		t.Helper()
		f.must(f.admin.Get(t.Context(), client.ObjectKeyFromObject(fence), fence))
		before := fence.DeepCopy()
		change(fence)
		if status {
			return by.Status().Patch(t.Context(), fence, client.MergeFrom(before))
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
	wait.Until(t, "the policy is in force", func() bool { return apierrors.IsForbidden(patch(fencer, phase(fencing.Isolating), true)) })
	f.must(patch(actor, phase(fencing.Isolating), true))
	f.must(patch(actor, phase(fencing.Fencing), true))
	f.must(patch(actor, func(x *fencingv1.NodeFence) {
		x.Status.Intents = []fencingv1.Intent{{Action: "Off", Nonce: "off", NotAfter: now}}
		x.Status.Question = &fencingv1.Question{Nonce: "question", Time: now}
	}, true))
	f.must(patch(fencer, answers(), true))
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
		"the actor says Off":                {actor, answers(func(e *fencingv1.Evidence) { e.Nonce = "question" }), true},
		"the actor takes an answer back":    {actor, func(x *fencingv1.NodeFence) { x.Status.Evidence = nil }, true},
		"the actor changes the release":     {actor, func(x *fencingv1.NodeFence) { x.Spec.Release = fencingv1.ReleaseManual }, false},
		"leaving changes the release":       {leave, func(x *fencingv1.NodeFence) { x.Spec.Release = fencingv1.ReleaseManual }, false},
		"the actor states": {actor, func(x *fencingv1.NodeFence) {
			x.Spec.Statement = &fencingv1.Statement{By: "a", Reason: "r", MachineID: "m", Expires: metav1.Now()}
		}, false},
	} {
		if err := patch(tt.by, tt.change, tt.status); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f.must(patch(actor, func(x *fencingv1.NodeFence) { x.Finalizers = []string{"fencing.belay.dev/released"} }, false))
	f.must(patch(leave, func(x *fencingv1.NodeFence) { x.Finalizers = nil }, false))
	f.must(patch(actor, phase(fencing.Tainting), true))
	f.must(patch(actor, phase(fencing.Evicting), true))
}

// TestPolicyNamesEachField: a field that is added to the status of a NodeFence is the actor's, unless the policy says otherwise.
func TestPolicyNamesEachField(t *testing.T) {
	policy, err := os.ReadFile(recoveryFiles + "admission-roles.yaml")
	must(t, err)
	status := reflect.TypeFor[fencingv1.NodeFenceStatus]()
	for i := range status.NumField() {
		name, _, _ := strings.Cut(status.Field(i).Tag.Get("json"), ",")
		if same := "object.?status.?" + name + " == oldObject.?status.?" + name; name != "evidence" && !strings.Contains(string(policy), same) {
			t.Errorf("the policy belay-fence-roles leaves status.%s to the fencer", name)
		}
	}
}
