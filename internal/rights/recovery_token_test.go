package rights

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/recovery"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

const isolated, outOfService, persons = `{"key":"fencing.belay.dev/isolated","value":"belay-1","effect":"NoSchedule"}`,
	`{"key":"node.kubernetes.io/out-of-service","value":"belay-1","effect":"NoExecute"}`, `{"key":"node.kubernetes.io/out-of-service","value":"off","effect":"NoExecute"}`

func taints(all string) string { return `{"spec":{"taints":[` + all + `]}}` }

// statement is a patch by which a client states that a machine is off.
func statement(by, machine string) string {
	body, _ := json.Marshal(map[string]any{"spec": map[string]any{"statement": fencingv1.Statement{
		By: by, Reason: "pulled the plug", MachineID: machine, Expires: metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second)),
	}}})
	return string(body)
}

// TestTokenOfTheDetector: with the detector's token a client has nodes fenced, and takes fences back. It cannot prove, state or decide anything: a fence
// of a node that runs, made with the node's last sign of life and evidence, isolates it until its next one.
func TestTokenOfTheDetector(t *testing.T) {
	f := newFleet(t)
	_, token := tokenOf(t, "belay-recovery-detector", recoveryFiles+"detector.yaml", recoveryFiles+"admission-nodes.yaml", recoveryFiles+"admission-writes.yaml")
	f.runs("actor", recovery.Roles{Actor: true})
	const name = "of-detector"
	create(t, f.node(name))
	node := f.node(name)
	f.must(f.admin.Status().Patch(t.Context(), node, client.RawPatch("application/merge-patch+json",
		[]byte(`{"status":{"nodeInfo":{"bootID":"b","systemUUID":"4c4c4544-0051-3910-8052-b4c04f4d3533"},"conditions":[{"type":"Ready","status":"True"}]}}`))))
	f.lease(name, 3600)
	kubelet := &coordinationv1.Lease{}
	f.must(f.admin.Get(t.Context(), client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: name}, kubelet))
	pod := fixture.Pod("default", "of-detector", name, "data")
	f.must(f.admin.Create(t.Context(), pod))
	t.Cleanup(func() { _ = f.admin.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) })
	va := fixture.Attachment("of-detector", "disk.test", name, "pv")
	create(t, va)
	create(t, secret())

	fence := &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{kube.FenceFinalizer}}, Spec: fencingv1.NodeFenceSpec{
		NodeName: name, NodeUID: string(node.UID), BootID: "b", MachineID: "4c4c4544-0051-3910-8052-b4c04f4d3533", Epoch: time.Now().Unix(),
		Trigger: fencingv1.TriggerNodeSilent, LastRenewal: kube.Renewal(kubelet), Release: fencingv1.ReleaseAuto,
	}}
	stated := fence.DeepCopy()
	stated.Spec.Statement = &fencingv1.Statement{By: "system:serviceaccount:belay-system:belay-recovery-detector", Reason: "r", MachineID: fence.Spec.MachineID, Expires: metav1.NewTime(time.Now().Add(time.Hour))}
	fence.Status = fencingv1.NodeFenceStatus{
		Phase:    fencingv1.Phase(fencing.Evicting),
		Evidence: []fencingv1.Evidence{{Class: string(fencing.PoweredOff), Power: "Off", BootID: "b", MachineID: fence.Spec.MachineID, Time: metav1.NowMicro()}},
	}
	attempts(t, token,
		attempt{"fences with a statement of its own", "create", stated, "", "belay-fence-statement"},
		attempt{"fences with evidence of its own", "create", fence, "", byNone},
		attempt{"gives evidence", "status", fence, `{"status":{"phase":"Evicting"}}`, byRBAC},
		attempt{"states that the machine is off", "patch", fence, statement("admin", fence.Spec.MachineID), byRBAC},
		attempt{"taints the node", "patch", node, taints(outOfService), byRBAC},
		attempt{"says that it is not Ready", "status", node, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, byRBAC},
		attempt{"silences it", "delete", kubelet, "", byRBAC},
		attempt{"deletes its pod", "delete", pod, "", byRBAC},
		attempt{"detaches its volume", "delete", va, "", byRBAC},
		attempt{"says that all attachments are recorded", "create", lease("kube-system", "belay-controller-records"), "", "belay-leases"},
		attempt{"leads in the place of the actor", "create", lease("kube-system", "belay-recovery-actor"), "", "belay-leases"},
		attempt{"leads", "create", lease("kube-system", "belay-recovery-detector"), "", byNone},
		attempt{"reads a Secret", "get", secret(), "", byRBAC},
	)
	t.Cleanup(func() { _ = f.admin.Delete(context.Background(), lease("kube-system", "belay-recovery-detector")) })
	phase := func() fencing.Phase {
		f.must(client.IgnoreNotFound(f.admin.Get(t.Context(), client.ObjectKey{Name: name}, fence)))
		return fencing.Phase(fence.Status.Phase)
	}
	wait.Until(t, "the actor looks for evidence of its own", func() bool { return phase() == fencing.Fencing })
	if len(fence.Status.Evidence) > 0 {
		t.Errorf("the fence has evidence: %v", fence.Status.Evidence)
	}
	now := metav1.NowMicro()
	kubelet.Spec.RenewTime = &now
	f.must(f.admin.Update(t.Context(), kubelet))
	wait.Until(t, "the node's next sign of life ends the fence", func() bool { return phase() == fencing.Cancelled && len(fence.Finalizers) == 0 })
	f.must(f.admin.Get(t.Context(), client.ObjectKey{Name: name}, node))
	f.must(f.admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	f.must(f.admin.Get(t.Context(), client.ObjectKeyFromObject(va), va))
	fenced := func(x corev1.Taint) bool { return x.Key == kube.IsolationTaint || x.Key == kube.OutOfServiceTaint }
	if slices.ContainsFunc(node.Spec.Taints, fenced) || pod.DeletionTimestamp != nil || va.DeletionTimestamp != nil {
		t.Errorf("left: taints %v, pod deleted %v, VolumeAttachment deleted %v", node.Spec.Taints, pod.DeletionTimestamp, va.DeletionTimestamp)
	}
	attempts(t, token, attempt{"takes the record of a fence away", "delete", fence, "", byNone})
}

// TestNodesThatAreNotThere: with belay-controller's token a client makes VolumeAttachments of Nodes that do not exist, each of which is suspected. They hold
// back the fence of no Node that is there.
func TestNodesThatAreNotThere(t *testing.T) {
	f := newFleet(t)
	_, token := controllerToken(t)
	for i := range 8 {
		name := fmt.Sprintf("not-there-%d", i)
		va := fixture.Attachment(name, "disk.test", name, "pv")
		va.Annotations = map[string]string{
			kube.NodeUIDAnnotation: "u", kube.BootIDAnnotation: fmt.Sprintf("1b4e28ba-2fa1-11d2-883f-0016d3cca42%d", i),
			kube.SystemUUIDAnnotation: fmt.Sprintf("4c4c4544-0051-3910-8052-b4c04f4d353%d", i),
		}
		f.must(token.Create(t.Context(), va))
		t.Cleanup(func() { _ = f.admin.Delete(context.Background(), va) })
	}
	f.dead("there")
	f.runs("detector", recovery.Roles{Detector: true})
	wait.Until(t, "the node is fenced", func() bool {
		f.heldBack("there")
		return f.admin.Get(t.Context(), client.ObjectKey{Name: "there"}, &fencingv1.NodeFence{}) == nil
	})
}

// TestTokenOfTheUninstall: with the token of the Job of "helm uninstall", which is there only while it runs, a client takes the taints and finalizers of any
// fence away. It sets no taint, states nothing, and touches nothing else.
func TestTokenOfTheUninstall(t *testing.T) {
	fencingServed(t)
	_, token := tokenOf(t, "belay-recovery-leave", deployed+"leave.yaml", deployed+"admission-nodes.yaml", deployed+"admission-writes.yaml")
	admin := withFences(t, server.Config())
	fence := storeFence(t, admin, "of-uninstall", fencing.Evicting)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-uninstall"}}
	must(t, admin.Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(taints(isolated+","+persons)))))
	va := fixture.Attachment("of-uninstall", "disk.test", "of-uninstall", "pv")
	create(t, va)
	create(t, secret())
	attempts(t, token,
		attempt{"sets a fence's taint", "patch", node, taints(isolated + "," + persons + "," + `{"key":"node.kubernetes.io/out-of-service","value":"belay-1","effect":"NoSchedule"}`), "belay-nodes"},
		attempt{"takes a person's taint away", "patch", node, taints(isolated), "belay-nodes"},
		attempt{"says which boot was fenced", "patch", node, `{"metadata":{"annotations":{"` + kube.FencedBootAnnotation + `":"b"}}}`, "belay-nodes"},
		attempt{"labels a node", "patch", node, `{"metadata":{"labels":{"a":"b"}}}`, "belay-nodes"},
		attempt{"cordons a node", "patch", node, `{"spec":{"unschedulable":true}}`, "belay-nodes"},
		attempt{"reports a volume", "status", node, `{"status":{"volumesAttached":[{"name":"v","devicePath":""}]}}`, byRBAC},
		attempt{"states that the machine is off", "patch", fence, statement("system:serviceaccount:belay-system:belay-recovery-leave", "m"), "belay-fence-"},
		attempt{"gives evidence", "status", fence, `{"status":{"phase":"Detaching"}}`, byRBAC},
		attempt{"begins a fence", "create", &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, "", byRBAC},
		attempt{"deletes a fence", "delete", fence, "", byRBAC},
		attempt{"detaches a volume", "delete", va, "", byRBAC},
		attempt{"takes the lease of belay-controller", "get", lease("kube-system", "belay-controller"), "", byRBAC},
		attempt{"makes a lease", "create", lease("kube-system", "belay-controller-records"), "", byRBAC},
		attempt{"reads a Secret", "get", secret(), "", byRBAC},

		attempt{"takes the taints of a fence away", "patch", node, taints(persons), byNone},
		attempt{"takes its finalizer away", "patch", fence, `{"metadata":{"finalizers":null}}`, byNone},
	)
}

// TestWhoMayConfirm: who has the ClusterRole belay-fence-confirm says in the own name, and of the machine that is fenced, that it is off. That is all: no
// evidence, no fence of a node that is not silent, nothing on Nodes, pods and VolumeAttachments.
func TestWhoMayConfirm(t *testing.T) {
	fencingServed(t)
	token := bound(t, "of-confirm", deployed+"admission.yaml", "belay-fence-confirm")
	fence := storeFence(t, withFences(t, server.Config()), "of-confirm", fencing.Fencing)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-confirm"}}
	create(t, secret())
	attempts(t, token,
		attempt{"states it in another's name", "patch", fence, statement("admin", "m"), "belay-fence-statement"},
		attempt{"states it of another machine", "patch", fence, statement("of-confirm", "another"), "belay-fence-statement"},
		attempt{"has it fence another machine", "patch", fence, `{"spec":{"machineID":"another"}}`, "a fence is about one boot"},
		attempt{"gives evidence", "status", fence, `{"status":{"phase":"Tainting"}}`, byRBAC},
		attempt{"begins a fence", "create", &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, "", byRBAC},
		attempt{"taints a node", "patch", node, taints(outOfService), byRBAC},
		attempt{"deletes a node", "delete", node, "", byRBAC},
		attempt{"changes a switch", "create", &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, "", byRBAC},
		attempt{"detaches a volume", "delete", &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, "", byRBAC},
		attempt{"reads a Secret", "get", secret(), "", byRBAC},

		attempt{"states in the own name that the fenced machine is off", "patch", fence, statement("of-confirm", "m"), byNone},
		attempt{"takes a fence away, its taints left", "patch", fence, `{"metadata":{"finalizers":null}}`, byNone},
		attempt{"releases a node", "delete", fence, "", byNone},
	)
}

// TestWhoReadsTheSecretChangesTheSource: the fencer sends the Secret that a FenceSource names to the address that it names, so only who may read the Secret
// says where. Sixteen Secrets are not too many to ask for.
func TestWhoReadsTheSecretChangesTheSource(t *testing.T) {
	fencingServed(t)
	start(t)
	server.Apply(t, deployed+"admission.yaml")
	admin := withFences(t, server.Config())
	source := func(name string, secrets ...string) *fencingv1.FenceSource {
		s := &fencingv1.FenceSource{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for i, secret := range secrets {
			if i%4 == 0 {
				s.Spec.Levels = append(s.Spec.Levels, fencingv1.FenceLevel{})
			}
			level := &s.Spec.Levels[i/4]
			feed := fencingv1.Feed{Agent: "fence_ipmilan"}
			if secret != "" {
				feed.SecretRef = &fencingv1.SecretReference{Namespace: "belay-system", Name: secret}
			}
			level.Feeds = append(level.Feeds, feed)
		}
		return s
	}
	old, open := source("of-old", "others"), source("of-open", "")
	must(t, admin.Create(t.Context(), old))
	must(t, admin.Create(t.Context(), open))
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "of-sources"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"fencing.belay.dev"}, Resources: []string{"fencesources"}, Verbs: []string{"create", "patch", "update"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"own"}, Verbs: []string{"get"}},
	}}
	server.Grant(t, role, "of-sources")
	token := withFences(t, server.User(t, "of-sources"))
	own := slices.Repeat([]string{"own"}, 16)
	last := append(slices.Clone(own[:15]), "others")
	attempts(t, token,
		attempt{"names a Secret of others", "create", source("of-a", "others"), "", "belay-fence-source"},
		attempt{"names one as the last", "create", source("of-b", last...), "", "belay-fence-source"},
		attempt{"names one in the middle", "create", source("of-c", "own", "own", "others", "own"), "", "belay-fence-source"},
		attempt{"changes where one is sent", "patch", old, `{"spec":{"levels":[{"feeds":[{"agent":"fence_ipmilan","options":{"ip":"198.51.100.1"},"secretRef":{"namespace":"belay-system","name":"others"}}]}]}}`, "belay-fence-source"},
		attempt{"names the own one", "create", source("of-d", "own"), "", byNone},
		attempt{"names sixteen", "create", source("of-e", own...), "", byNone},
		attempt{"names none", "patch", open, `{"spec":{"levels":[{"feeds":[{"agent":"fence_example","options":{"ip":"192.0.2.1"}}]}]}}`, byNone},
		attempt{"labels one", "patch", old, `{"metadata":{"labels":{"rack":"1"}}}`, byNone},
	)
}
