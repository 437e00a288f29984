package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/process"
	"belay.dev/belay/internal/testing/wait"
)

const bmcPassword = "hunter2-Zx9"

// indiscreet is an agent that repeats its password wherever it can. Its power is what the file power says.
const indiscreet = `#!/bin/sh
d="${0%/*}"
while IFS= read -r line; do
	case "$line" in action=*) action="${line#action=}";; password=*) password="${line#password=}";; esac
done
tr '\000' ' ' < /proc/$$/cmdline >> "$d/processes"; echo >> "$d/processes"
env >> "$d/processes"
if [ "$action" = metadata ]; then
	cat <<X
<?xml version="1.0" ?>
<resource-agent name="fence_test" shortdesc="$password"><parameters><parameter name="ip"/><parameter name="username"/><parameter name="password"/></parameters>
<actions><action name="off"/><action name="status"/><action name="identity"/></actions></resource-agent>
X
	exit 0
fi
echo "logging in with $password"
echo "password=$password" >&2
case "$action" in
identity) echo "Identity: hw-secret-1"; exit 0;;
status) power=$(cat "$d/power")
	[ "$power" = broken ] && { echo "login with $password failed" >&2; exit 1; }
	echo "Status: $power"; [ "$power" = ON ] && exit 0; exit 2;;
esac
`

// TestSecretsNeverShow: the password of a power switch is in no log at any verbosity, no event, no object but its Secret, no metric, and not
// in the arguments or the environment of a process, whatever the agent prints.
func TestSecretsNeverShow(t *testing.T) {
	cluster.Start(t)
	ctx, dir := t.Context(), t.TempDir()
	scheme := runtime.NewScheme()
	must(t, clientscheme.AddToScheme(scheme))
	must(t, fencingv1.AddToScheme(scheme))
	cluster.Apply(t, "../../deploy/belay-recovery/fencing.belay.dev_nodefences.yaml", "../../deploy/belay-recovery/fencing.belay.dev_fencesources.yaml")
	c, err := client.New(cluster.Config(), client.Options{Scheme: scheme})
	must(t, err)
	wait.Until(t, "the CRDs are served", func() bool {
		return c.List(ctx, &fencingv1.NodeFenceList{}) == nil && c.List(ctx, &fencingv1.FenceSourceList{}) == nil
	})
	power := func(p string) { must(t, os.WriteFile(filepath.Join(dir, "power"), []byte(p), 0o600)) }
	power("broken")
	must(t, os.WriteFile(filepath.Join(dir, "fence_test"), []byte(indiscreet), 0o700))
	must(t, c.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bmc", Annotations: map[string]string{kube.AddressesAnnotation: "192.0.2.0/24,fence_test"}},
		Data:       map[string][]byte{"username": []byte("root"), "password": []byte(bmcPassword)},
	}))
	stop := livingNode(t, c, "secret-1")
	_ = livingNode(t, c, "secret-2")
	_ = livingNode(t, c, "secret-3")
	source := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: "secret-1"}, Spec: fencingv1.FenceSourceSpec{Levels: []fencingv1.FenceLevel{{
		Feeds: []fencingv1.Feed{{
			Agent: "fence_test", Options: map[string]fencingv1.FeedOption{"ip": "192.0.2.7"},
			SecretRef: &fencingv1.SecretReference{Namespace: "default", Name: "bmc"}, OffTested: "this test",
		}},
	}}}}
	must(t, c.Create(ctx, source))
	metrics := process.FreeAddress()
	p := execute(t, "--kubeconfig="+apiserver.Kubeconfig(t, cluster.User(t, "recovery-admin", "system:masters")), "--controllers=recovery",
		"--recovery-profile=fast", "--recovery-agent-path="+dir, "--leader-elect=false", "--metrics-bind-address="+metrics, "--metrics-secure=false", "--v=10")
	status := func() fencingv1.FenceSourceStatus {
		must(t, c.Get(ctx, client.ObjectKey{Name: "secret-1"}, source))
		return source.Status
	}
	wait.Until(t, "it is recorded that the agent gave no answer", func() bool {
		c := meta.FindStatusCondition(status().Conditions, "FenceReady")
		return c != nil && c.Reason == "NoAnswer"
	})
	power("ON")
	var changed time.Time
	wait.Until(t, "the switch is bound", func() bool {
		if status().Bound != nil {
			return true
		}
		if time.Since(changed) >= 10*time.Second { // it is asked again at once, but may have been asked before the power was ON
			changed = time.Now()
			before := client.MergeFromWithOptions(source.DeepCopy(), client.MergeFromWithOptimisticLock{})
			source.Spec.Levels[0].Feeds[0].Options["ip"] = fencingv1.FeedOption(fmt.Sprintf("192.0.2.%d", 8+changed.Unix()%100))
			if err := c.Patch(ctx, source, before); !apierrors.IsConflict(err) {
				must(t, err)
			}
		}
		return false
	})
	power("OFF")
	stop()
	fence := &fencingv1.NodeFence{}
	wait.Until(t, "the node is fenced", func() bool {
		return c.Get(ctx, client.ObjectKey{Name: "secret-1"}, fence) == nil && fence.Status.Phase == "Moved"
	})
	places := map[string]any{"FenceSource": status(), "NodeFence": fence}
	events := &corev1.EventList{}
	must(t, c.List(ctx, events))
	places["events"] = events
	_, places["metrics"] = process.Get(t, metrics, "/metrics")
	places["log"] = p.Output()
	var dumped strings.Builder // client-go writes the bodies of requests as dumps of 16 bytes a line
	for _, m := range dump.FindAllStringSubmatch(p.Output(), -1) {
		dumped.WriteString(m[1])
	}
	places["dumps in the log"] = dumped.String()
	processes, err := os.ReadFile(filepath.Join(dir, "processes"))
	must(t, err)
	places["processes"] = string(processes)
	for name, place := range places {
		text, ok := place.(string)
		if !ok {
			raw, err := json.Marshal(place)
			must(t, err)
			text = string(raw)
		}
		if len(text) < 50 {
			t.Errorf("%s is empty: %q", name, text)
		}
		for _, form := range []string{bmcPassword, base64.StdEncoding.EncodeToString([]byte(bmcPassword)), bmcPassword[:7]} {
			if i := strings.Index(text, form); i >= 0 {
				t.Errorf("%s has the password: …%s…", name, text[max(0, i-200):min(len(text), i+60)])
			}
		}
	}
	if !strings.Contains(places["log"].(string), "(secret)") {
		t.Error("the agent's output, with which this test is about something, is not logged")
	}
}

var dump = regexp.MustCompile(`\|(.{1,16})\|(?:\\n|\n|")`)

// livingNode makes a node that renews its lease until the returned function is called; then it is not Ready.
func livingNode(t *testing.T, c client.Client, name string) (stop func()) {
	t.Helper()
	ctx := t.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must(t, c.Create(ctx, node))
	ready := func(status corev1.ConditionStatus) {
		must(t, c.Get(ctx, client.ObjectKeyFromObject(node), node))
		before := client.MergeFrom(node.DeepCopy())
		node.Status.NodeInfo = corev1.NodeSystemInfo{BootID: "boot-" + name, SystemUUID: "hw-" + name}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		must(t, c.Status().Patch(ctx, node, before))
	}
	ready(corev1.ConditionTrue)
	must(t, c.Create(ctx, fixture.Pod("default", "db-of-"+name, name, "data"))) // without one there is nothing to fence the node for
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = new(name), new(int32(10))
	must(t, c.Create(ctx, lease))
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			now := metav1.NowMicro()
			lease.Spec.RenewTime = &now
			_ = c.Update(ctx, lease)
			select {
			case <-ended:
				return
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	}()
	return func() {
		close(ended)
		<-done
		ready(corev1.ConditionUnknown)
	}
}
