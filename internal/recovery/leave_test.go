package recovery

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

// Tests of what recovery leaves alone in a dry run, and leaves behind when it is removed.

// versions has the resourceVersion of each object that recovery may change, and of a FenceSource the generation: its status is the record
// of the exercise, also in a dry run.
func (s *site) versions() map[string]string {
	s.Helper()
	found := map[string]string{}
	for kind, list := range map[string]client.ObjectList{
		"Node": &corev1.NodeList{}, "Pod": &corev1.PodList{}, "VolumeAttachment": &storagev1.VolumeAttachmentList{},
		"NodeFence": &fencingv1.NodeFenceList{}, "FenceSource": &fencingv1.FenceSourceList{},
	} {
		must(s, s.client.List(s.Context(), list))
		must(s, meta.EachListItem(list, func(o runtime.Object) error {
			object := o.(client.Object)
			found[kind+" "+object.GetName()] = object.GetResourceVersion()
			if kind == "FenceSource" {
				found[kind+" "+object.GetName()] = time.Unix(object.GetGeneration(), 0).String()
			}
			return nil
		}))
	}
	return found
}

// TestDryRun: a node that would be fenced is reported, and no object is changed. A fence that began before stays as it is: its questions and
// commands are not carried out.
func TestDryRun(t *testing.T) {
	s := newSite(t)
	s.fleet("n3", "n4", "n5", "n6")
	m, fenced := s.machine("n1"), s.machine("n2")
	for _, x := range []*machine{m, fenced} {
		x.workload()
		x.source()
	}
	stop := s.run()
	m.bound()
	fenced.bound()
	stop()
	fenced.dies(fencing.PowerOn)
	f := fenced.makeFence(fencing.Fencing)
	f.Status.Question = &fencingv1.Question{Nonce: "q", Time: micro(time.Now())}
	f.Status.Intents = []fencingv1.Intent{{Action: powerOff, Nonce: "off", NotAfter: micro(time.Now().Add(fencing.IntentFor)), Renewal: renewal(fenced.lease())}}
	must(t, s.client.Status().Update(t.Context(), f))
	m.dies(fencing.PowerOff)
	before := s.versions()
	s.run(func(o *Options) { o.DryRun, o.Proofs = true, &Proofs{} })
	wait.Until(t, "an event reports it", func() bool { return s.event(string(dryRun)) })
	time.Sleep(2 * time.Second) // what is not done must not be done later either
	if after := s.versions(); !maps.Equal(before, after) {
		for name, version := range after {
			if before[name] != version {
				t.Errorf("%s was changed", name)
			}
		}
		t.Errorf("%d objects, then %d", len(before), len(after))
	}
	if _, offs := fenced.count(); offs != 0 {
		t.Errorf("commanded %d times", offs)
	}
}

// makeFence makes a fence of the machine that is in a phase.
func (m *machine) makeFence(phase fencing.Phase) *fencingv1.NodeFence {
	m.Helper()
	f := &fencingv1.NodeFence{
		ObjectMeta: metav1.ObjectMeta{Name: m.name, Finalizers: []string{finalizer}},
		Spec: fencingv1.NodeFenceSpec{
			NodeName: m.name, NodeUID: string(m.node().UID), BootID: m.boot, MachineID: strings.ToLower(m.uuid), Epoch: 1,
			LastRenewal: renewal(m.lease()), Release: fencingv1.ReleaseAuto,
		},
	}
	must(m, m.client.Create(m.Context(), f))
	for _, p := range fencing.Phases() {
		f.Status.Phase = fencingv1.Phase(p)
		must(m, m.client.Status().Update(m.Context(), f))
		if p == phase {
			break
		}
	}
	return f
}

func (m *machine) lease() *coordinationv1.Lease {
	m.Helper()
	lease := &coordinationv1.Lease{}
	must(m, m.client.Get(m.Context(), client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: m.name}, lease))
	return lease
}

// TestUninstall: after the steps of docs/recovery/README.md nothing of recovery is left on any Node, whatever phase a fence was in: no taint, and no
// NodeFence that its finalizer keeps. The detector goes first, then the NodeFences are deleted; a machine that was off starts again.
func TestUninstall(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: takes the minute after the untaint")
	}
	s := newSite(t)
	s.fleet("n9", "na", "nb", "nc", "nd", "ne", "nf")
	phases := map[string]fencing.Phase{"n1": fencing.Fencing, "n2": fencing.Tainting, "n3": fencing.Evicting, "n4": fencing.Detaching, "n5": fencing.Moved}
	var all []*machine
	for _, name := range slices.Sorted(maps.Keys(phases)) {
		m := s.machine(name)
		m.workload()
		m.source()
		all = append(all, m)
	}
	stop := s.run(func(o *Options) {
		o.Brakes = fencing.Brakes{Share: 1, ZoneShare: 1, Window: time.Minute, Fences: 99, InFlight: 99}
	})
	for _, m := range all {
		m.bound()
	}
	for _, m := range all {
		switch phases[m.name] {
		case fencing.Fencing:
			m.mu.Lock()
			m.disobeys = true
			m.mu.Unlock()
			m.dies(fencing.PowerOn)
		case fencing.Tainting:
			m.mu.Lock()
			m.afterAnswer = 1 // the power is back after the first Off: bracketed, and fenced again
			m.mu.Unlock()
			m.dies(fencing.PowerOff)
		default:
			m.dies(fencing.PowerOff)
		}
	}
	for _, m := range all {
		m.past(phases[m.name])
	}
	stop()
	s.run(func(o *Options) { o.Roles.Detector = false }) // step 1: without the detector no new fence begins
	must(t, s.client.DeleteAllOf(t.Context(), &fencingv1.NodeFence{}))
	for _, m := range all {
		m.boots()
	}
	left := func() (found []string) {
		for _, m := range all {
			if f := m.fence(); f != nil {
				found = append(found, m.name+" has a fence, "+string(f.Status.Phase))
			}
			for _, taint := range m.node().Spec.Taints {
				if !strings.HasPrefix(taint.Value, kube.FenceTaintPrefix) {
					continue
				}
				found = append(found, m.name+" has the taint "+taint.Key)
			}
			if _, has := m.node().Annotations[kube.FencedBootAnnotation]; has {
				found = append(found, m.name+" has the annotation "+kube.FencedBootAnnotation)
			}
		}
		return found
	}
	deadline := time.Now().Add(fencing.SettleFor + wait.Timeout)
	for len(left()) > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Second)
	}
	if found := left(); len(found) > 0 {
		t.Errorf("left behind: %s", strings.Join(found, "; "))
	}
}

// TestLeftovers: the commands of docs/recovery/README.md remove what is left if the programs were removed first.
func TestLeftovers(t *testing.T) {
	s := newSite(t)
	s.fleet("n2", "n3", "n4")
	m := s.machine("n1")
	m.workload()
	m.source()
	stop := s.run()
	m.bound()
	m.dies(fencing.PowerOff)
	m.until(fencing.Moved)
	stop()
	must(t, s.client.Delete(t.Context(), m.fence()))
	if m.fence() == nil || !m.tainted(kube.OutOfServiceTaint) {
		t.Fatal("nothing was left")
	}
	shell(t, leftoverCommands(t))
	if m.fence() != nil || m.tainted(kube.OutOfServiceTaint) || m.tainted(kube.IsolationTaint) || len(m.node().Annotations) > 0 {
		t.Errorf("left: fence %v, taints %v, annotations %v", m.fence(), m.node().Spec.Taints, m.node().Annotations)
	}
}

// leftoverCommands are those of docs/recovery/README.md, with the node's name.
func leftoverCommands(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/recovery/README.md")
	must(t, err)
	for i, block := range strings.Split(string(page), "```") {
		if i%2 == 1 && strings.Contains(block, kube.IsolationTaint+"-") && strings.Contains(block, "finalizers") {
			return strings.ReplaceAll(block, "NODE", "n1")
		}
	}
	t.Fatal("docs/recovery/README.md has no commands that remove what is left")
	return ""
}

// shell runs commands of kubectl against the API server.
func shell(t *testing.T, commands string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	c.Env = append(os.Environ(), "KUBECONFIG="+apiserver.Kubeconfig(t, cluster.Config()), "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+":"+os.Getenv("PATH"))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
