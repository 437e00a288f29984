package attachdetach

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

func aDriver(attachRequired bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: &attachRequired},
	}
}

// withSandbox is the condition that the kubelet sets to True once it has mounted the volumes of a pod and made its sandbox.
func withSandbox(status corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: status})
	}
}

func changed(p *corev1.Pod, change ...func(*corev1.Pod)) *corev1.Pod {
	for _, f := range change {
		f(p)
	}
	return p
}

func pending(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }
func running(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }

// Upstream's e2e "AttachRequired changes from true to false": the CSIDriver is deleted and created again while a pod
// waits for its attach. A kubelet that sees the new one stages without an attach, which a driver like hostpathplugin
// with --enable-attach refuses when the volume is detached by then.
func TestDriverChangeKeepsWantedAttachment(t *testing.T) {
	k := key{Driver: driver, Handle: "h"}
	unique := []string{kube.UniqueVolumeName(k.Driver, k.Handle)}
	for name, tt := range map[string]struct {
		pod      []func(*corev1.Pod)
		node     []func(*corev1.Node)
		attached bool
		detaches bool
	}{
		"attach in flight, kubelet has not listed it yet":    {pod: []func(*corev1.Pod){pending}},
		"attached, kubelet has not listed it yet":            {pod: []func(*corev1.Pod){pending}, attached: true},
		"attached, kubelet lists it":                         {pod: []func(*corev1.Pod){pending}, node: []func(*corev1.Node){listing(unique, unique)}, attached: true},
		"kubelet dropped it from the list, and stages it":    {pod: []func(*corev1.Pod){pending}, node: []func(*corev1.Node){listing(nil, unique)}, attached: true},
		"mounted, kubelet still lists it":                    {pod: []func(*corev1.Pod){running}, node: []func(*corev1.Node){listing(unique, unique)}, attached: true},
		"node restarted, the pod's phase is of before":       {pod: []func(*corev1.Pod){running, withSandbox(corev1.ConditionFalse)}, attached: true},
		"mounted and no longer listed":                       {pod: []func(*corev1.Pod){running}, attached: true, detaches: true},
		"mounted without an answer to the attach":            {pod: []func(*corev1.Pod){running}, detaches: true},
		"mounted, its image cannot be pulled":                {pod: []func(*corev1.Pod){pending, withSandbox(corev1.ConditionTrue)}, attached: true, detaches: true},
		"the pod has ended":                                  {pod: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }}, attached: true, detaches: true},
		"mounted, its images were pulled and it is starting": {pod: []func(*corev1.Pod){pending, withSandbox(corev1.ConditionTrue)}, detaches: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(t)
			m.put(aDriver(true))
			m.put(aVolume("pv", k.Handle))
			m.put(aClaim("pv"))
			m.put(aNode("a", append(tt.node, isReady)...))
			m.put(changed(aPod("p", "a", byClaimOf("pv")), tt.pod...))
			va := anAttachment(k, "a", "pv", true)
			va.Status.Attached = tt.attached
			m.put(va)
			m.remove(aDriver(true))
			if woken := m.put(aDriver(false)); !slices.Contains(woken, k) {
				t.Errorf("the new CSIDriver woke %v", woken)
			}
			d := m.decide(k)
			if got := does[attachment.WithdrawReport](d) || does[attachment.Detach](d); got != tt.detaches {
				t.Errorf("detaches %v: %v", got, d.Steps)
			}
			if got := attaches(d); len(got) > 0 {
				t.Errorf("attaches to %v", got)
			}
		})
	}
}

// A volume of a driver that requires no attach is attached nowhere else, and its mount wakes it.
func TestDriverChangeAttachesNowhereElse(t *testing.T) {
	m, k := newModel(t), key{Driver: driver, Handle: "h"}
	m.put(aDriver(false))
	m.put(aVolume("pv", k.Handle, corev1.ReadWriteMany))
	m.put(aClaim("pv"))
	for _, node := range []string{"a", "b"} {
		m.put(aNode(node, isReady))
		m.put(changed(aPod("on-"+node, node, byClaimOf("pv")), pending))
	}
	m.put(anAttachment(k, "a", "pv", true))
	d := m.decide(k)
	if got := attaches(d); len(got) > 0 || does[attachment.WithdrawReport](d) {
		t.Errorf("attaches to %v: %v", got, d.Steps)
	}
	if woken := m.put(changed(aPod("on-a", "a", byClaimOf("pv")), running)); !slices.Contains(woken, k) {
		t.Errorf("the mount woke %v", woken)
	}
	if d := m.decide(k); !does[attachment.WithdrawReport](d) {
		t.Errorf("stays attached after the mount: %v", d.Steps)
	}
	m.put(aDriver(true))
	m.put(changed(aPod("on-b", "b", byClaimOf("pv")), pending))
	if woken := m.put(changed(aPod("on-b", "b", byClaimOf("pv")), running)); len(woken) > 0 {
		t.Errorf("the start of a pod woke %v of a driver that attaches", woken)
	}
}

// An upgrade deletes the CSIDriver of a driver without attach, and creates it again (k/k#100445). A pod comes in between.
func TestDeletedDriverCountsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := newModel(t), key{Driver: driver, Handle: "h"}
		m.put(aDriver(false))
		m.put(aVolume("pv", k.Handle))
		m.put(aClaim("pv"))
		m.put(aNode("a", isReady))
		m.put(aPod("p", "a", byClaimOf("pv")))
		c, sent := m.hungController(t, func(string, string) bool { return false })
		attached := func() bool { return sent.has("create " + kube.AttachmentName(k.Handle, k.Driver, "a")) }
		reconcile := func() time.Duration {
			t.Helper()
			r, err := c.Reconcile(t.Context(), k)
			if err != nil {
				t.Fatal(err)
			}
			return r.RequeueAfter
		}
		for range 2 { // the second time, the CSIDriver does not come back
			if woken := m.remove(aDriver(false)); !slices.Contains(woken, k) {
				t.Fatalf("the deletion woke %v", woken)
			}
			m.put(aPod("q", "a", byClaimOf("pv")))
			time.Sleep(driverGrace - time.Second)
			if again := reconcile(); again != time.Second || attached() {
				t.Fatalf("after %v attached %v, decides again after %v", driverGrace-time.Second, attached(), again)
			}
			if !m.attachRequired("other.test") {
				t.Error("a driver that never had a CSIDriver requires no attach")
			}
			m.put(aDriver(false))
			if again := reconcile(); again != 0 || attached() {
				t.Fatalf("with its CSIDriver attached %v, decides again after %v", attached(), again)
			}
			time.Sleep(time.Hour)
		}
		m.remove(aDriver(false))
		if woken := m.put(aDriver(true)); !slices.Contains(woken, k) {
			t.Errorf("a new CSIDriver that requires attach woke %v", woken)
		}
		m.put(aDriver(false))
		m.remove(aDriver(false))
		time.Sleep(reconcile())
		if reconcile(); !attached() {
			t.Errorf("not attached %v after the deletion", driverGrace)
		}
	})
}

// The answer of a CSIDriver that exists counts at once, also after another one was deleted.
func TestDriverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t)
		for i, want := range []bool{false, true, false, true} {
			m.put(aDriver(want))
			if got := m.attachRequired(driver); got != want {
				t.Errorf("%d: required %v, want %v", i, got, want)
			}
			m.remove(aDriver(want))
			if got := m.attachRequired(driver); got != want {
				t.Errorf("%d: just deleted: required %v, want %v", i, got, want)
			}
		}
		m.put(aDriver(false))
		m.remove(aDriver(false))
		for i := range 3 { // being asked does not make it longer
			if m.attachRequired(driver) {
				t.Errorf("%d: requires attach %v after its deletion", i, time.Duration(i)*driverGrace/3)
			}
			time.Sleep(driverGrace / 3)
		}
		if !m.attachRequired(driver) {
			t.Error("requires no attach for longer than driverGrace")
		}
	})
}
