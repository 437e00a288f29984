package recovery

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// TestSecretGoesOnlyWhereItIsFor: the Secret of a power switch does not reach an agent for an address that the Secret does not name, or over a protocol
// that shows it. The condition has the line to set, in which an address of the FenceSource is one word.
func TestSecretGoesOnlyWhereItIsFor(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		ip          string
		lanplus     bool
		says        string // empty: the switch is asked
	}{
		"an old Secret":            {nil, "192.0.2.11", true, "kubectl annotate secret -n default bmc --overwrite fencing.belay.dev/addresses=192.0.2.11"},
		"its address":              {map[string]string{kube.AddressesAnnotation: "192.0.2.10, 192.0.2.11"}, "192.0.2.11", true, ""},
		"the host of another":      {map[string]string{kube.AddressesAnnotation: "192.0.2.10"}, "198.51.100.1", true, "--overwrite fencing.belay.dev/addresses=192.0.2.10,198.51.100.1"},
		"a word of a shell":        {nil, "x;reboot", true, "addresses='x;reboot'"},
		"plain":                    {map[string]string{kube.AddressesAnnotation: "192.0.2.0/24"}, "192.0.2.11", false, "fencing.belay.dev/allow-plain=true"},
		"plain, which is allowed":  {map[string]string{kube.AddressesAnnotation: "192.0.2.0/24", kube.AllowPlainAnnotation: "true"}, "192.0.2.11", false, ""},
		"plain, which is not true": {map[string]string{kube.AddressesAnnotation: "192.0.2.0/24", kube.AllowPlainAnnotation: "false"}, "192.0.2.11", false, "allow-plain=true"},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bmc", Annotations: c.annotations}, Data: map[string][]byte{"password": []byte("s3cret")}}
		source := sourceOf("n1", "bmc")
		feed := &source.Spec.Levels[0].Feeds[0]
		feed.Agent, feed.SecretRef = "fence_ipmilan", &fencingv1.SecretReference{Namespace: "default", Name: "bmc"}
		feed.Options = map[string]fencingv1.FeedOption{"ip": fencingv1.FeedOption(c.ip)}
		if c.lanplus {
			feed.Options["lanplus"] = "1"
		}
		given := ""
		p := partsOver(func(_ fencingv1.Feed, secret map[string][]byte) (Switch, error) {
			given = string(secret["password"])
			return &machine{uuid: "hw-n1", power: fencing.PowerOn}, nil
		}, source, secret, nodeOf("n1", 0))
		f := newFencer(p)
		must(t, p.client.Get(t.Context(), client.ObjectKey{Name: "n1"}, source))
		f.check(t.Context(), source, nodeOf("n1", 0), false)
		got := meta.FindStatusCondition(source.Status.Conditions, conditionFenceReady)
		if c.says == "" && (got.Reason != reasonReady || given == "") {
			t.Errorf("%s: %+v", name, got)
		}
		if c.says != "" && (given != "" || got.Status != metav1.ConditionFalse || got.Reason != "SecretNotBound" || !strings.Contains(got.Message, c.says)) {
			t.Errorf("%s: an agent got %q; %+v, want %q", name, given, got, c.says)
		}
	}
}

// TestUntestedOff: a switch whose Off does not count is not asked and not commanded, and is no evidence. Another level of the source counts.
func TestUntestedOff(t *testing.T) {
	f, bmc, source, fence := commanded(t)
	pdu := &machine{power: fencing.PowerOff}
	f.Dial = func(feed fencingv1.Feed, _ map[string][]byte) (Switch, error) {
		if feed.Agent == "fence_virsh" {
			return pdu, fmt.Errorf("%w: use another one", ErrOffUntested)
		}
		return bmc, nil
	}
	source.Spec.Levels[0].Feeds[0].Agent = "fence_virsh"
	a, _, err := f.dial(t.Context(), source)
	if len(a) > 0 || dialReason(err) != "OffUntested" {
		t.Errorf("%d levels: %v", len(a), err)
	}
	source.Spec.Levels = append(source.Spec.Levels, fencingv1.FenceLevel{Feeds: []fencingv1.Feed{{Agent: "fence_ipmilan"}}})
	_, err = f.serve(t.Context(), f.state("n1"), source, fence)
	must(t, err)
	if last := lastOf(fence.Status.Evidence, 1); len(last) != 1 || last[0].Power != powerOff || !strings.Contains(last[0].Raw, "use another one") {
		t.Errorf("%+v", last)
	}
	if asked, offs := pdu.count(); asked+offs > 0 {
		t.Errorf("asked %d times, commanded %d times", asked, offs)
	}
	if _, offs := bmc.count(); offs != 1 {
		t.Errorf("the other level was commanded %d times", offs)
	}
}
