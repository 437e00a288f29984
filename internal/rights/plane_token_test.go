package rights

import (
	"context"
	"slices"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/attacher"
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// tokenDriver is the driver that deploy/belay-attacher/drivers/admission.yaml states.
const tokenDriver = "csi.example.com"

func controllerToken(tb testing.TB) (*rest.Config, client.Client) {
	tb.Helper()
	return tokenOf(tb, "belay-controller", controllerFiles+"belay-controller.yaml", controllerFiles+"admission-nodes.yaml", controllerFiles+"admission-writes.yaml")
}

func driverToken(tb testing.TB) (*rest.Config, client.Client) {
	tb.Helper()
	return tokenOf(tb, "belay-attacher", attacherFiles+"rbac.yaml", attacherFiles+"rbac-nodes.yaml", attacherFiles+"drivers/admission.yaml")
}

func lease(namespace, name string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func secret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "password"}}
}

// published makes a VolumeAttachment as belay-attacher has left it.
func published(tb testing.TB, name, driver, node, pv string) *storagev1.VolumeAttachment {
	tb.Helper()
	va := fixture.Attachment(name, driver, node, pv)
	va.Finalizers = []string{"external-attacher/" + driver}
	va.Annotations = map[string]string{kube.NodeIDAnnotation: "id-" + node}
	create(tb, va)
	tb.Cleanup(func() {
		_ = server.Client.Patch(context.WithoutCancel(tb.Context()), va, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	})
	va.Status.Attached = true
	must(tb, server.Client.Status().Update(tb.Context(), va))
	return va
}

// TestTokenOfTheController: with belay-controller's token a client deletes VolumeAttachments and reports volumes, which is its work. It cannot
// release a volume without its attacher, have another volume, node or Secret sent to a driver, speak for a person, an attacher or a node,
// or say that another component leads.
func TestTokenOfTheController(t *testing.T) {
	_, token := controllerToken(t)
	create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-controller"}})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-controller"}}
	create(t, fixture.PersistentVolume("of-controller", tokenDriver, "of-controller"))
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "of-controller"}}
	create(t, lease("kube-node-lease", "of-controller"))
	create(t, secret())
	va := published(t, "of-controller", tokenDriver, "of-controller", "of-controller")
	forged := fixture.Attachment("of-controller-forged", tokenDriver, "of-controller", "of-controller")
	forged.Annotations = map[string]string{kube.DeclaredGoneAnnotation: "id-of-controller"}
	annotates := func(name, value string) string {
		return `{"metadata":{"annotations":{"` + name + `":"` + value + `"}}}`
	}
	attempts(t, token,
		attempt{"releases a volume without its attacher", "patch", va, `{"metadata":{"finalizers":null}}`, "belay-attachments"},
		attempt{"says where it was published", "patch", va, annotates(kube.NodeIDAnnotation, "id-of-another"), "belay-attachments"},
		attempt{"says which volume was published", "patch", va, annotates(kube.PublishedHandleAnnotation, "another"), "belay-attachments"},
		attempt{"has a Secret sent to the driver", "patch", va, annotates(kube.PublishSecretAnnotation, "kube-system/password"), "belay-attachments"},
		attempt{"declares the machine gone", "patch", va, annotates(kube.DeclaredGoneAnnotation, "id-of-controller"), "belay-attachments"},
		attempt{"declares it gone from the start", "create", forged, "", "belay-attachments"},
		attempt{"has it deleted with another object", "patch", va, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]}}`, "belay-attachments"},
		attempt{"confirms it", "status", va, `{"status":{"attached":true}}`, byRBAC},
		attempt{"shares a volume", "patch", pv, `{"spec":{"accessModes":["ReadWriteMany"]}}`, byRBAC},
		attempt{"says what is in use", "status", node, `{"status":{"volumesInUse":["kubernetes.io/csi/` + tokenDriver + `^of-controller"]}}`, "belay-nodes"},
		attempt{"says that a node is not Ready", "status", node, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "belay-nodes"},
		attempt{"taints a node", "patch", node, `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`, byRBAC},
		attempt{"deletes a node", "delete", node, "", byRBAC},
		attempt{"renews the lease of a node", "patch", lease("kube-node-lease", "of-controller"), `{"spec":{"holderIdentity":"x"}}`, byRBAC},
		attempt{"makes the lease of another component", "create", lease("kube-system", "external-attacher-leader-"+tokenDriver), "", "belay-leases"},
		attempt{"takes the lease of kube-controller-manager", "patch", lease("kube-system", "kube-controller-manager"), `{"spec":{"holderIdentity":"x"}}`, byRBAC},
		attempt{"deletes a pod", "delete", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}, "", byRBAC},
		attempt{"reads a Secret", "get", secret(), "", byRBAC},
		attempt{"becomes another account", "token", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "belay-system", Name: "belay-controller"}}, "", byRBAC},

		attempt{"records the machine", "patch", va, annotates(kube.BootIDAnnotation, "b"), byNone},
		attempt{"reports a volume that the node does not have", "status", node, `{"status":{"volumesAttached":[{"name":"v","devicePath":""}]}}`, byNone},
		attempt{"makes a second VolumeAttachment", "create", fixture.Attachment("of-controller-second", tokenDriver, "another", "of-controller"), "", byNone},
		attempt{"asks for a detach", "delete", va, "", byNone},
	)
	_ = server.Client.Delete(t.Context(), fixture.Attachment("of-controller-second", "", "", ""))
}

// TestTokenOfADriver: with the token of a driver's attacher a client does with the volumes of that driver what it likes. With its drivers stated it
// touches no other's, and in no case makes or deletes a VolumeAttachment, or speaks for a node or for belay.
func TestTokenOfADriver(t *testing.T) {
	_, token := driverToken(t)
	create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-driver"}})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-driver"}}
	create(t, secret())
	own, other := published(t, "of-driver-own", tokenDriver, "of-driver", "own"), published(t, "of-driver-other", "other.example.com", "of-driver", "other")
	ownPV, otherPV := fixture.PersistentVolume("of-driver-own", tokenDriver, "own"), fixture.PersistentVolume("of-driver-other", "other.example.com", "other")
	fibre, migrated := fixture.PersistentVolume("of-driver-fc", "", ""), fixture.PersistentVolume("of-driver-migrated", "", "")
	fibre.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5009"}, Lun: new(int32)}}
	migrated.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
	for _, pv := range []*corev1.PersistentVolume{ownPV, otherPV, fibre, migrated} {
		create(t, pv)
	}
	const share, keep = `{"spec":{"accessModes":["ReadWriteMany"]}}`, `{"metadata":{"annotations":{"a":"b"}}}`
	attempts(t, token,
		attempt{"confirms another's publish", "status", other, `{"status":{"attachmentMetadata":{"path":"/dev/sda"}}}`, "belay-driver-attachments"},
		attempt{"releases another's volume", "patch", other, `{"metadata":{"finalizers":null}}`, "belay-driver-attachments"},
		attempt{"declares another's machine gone", "patch", other, `{"metadata":{"annotations":{"` + kube.DeclaredGoneAnnotation + `":"id-of-driver"}}}`, "belay-driver-attachments"},
		attempt{"takes another's records away", "patch", other, `{"metadata":{"annotations":null}}`, "belay-driver-attachments"},
		attempt{"shares another's volume", "patch", otherPV, share, "belay-driver-volumes"},
		attempt{"gives another's volume away", "patch", otherPV, `{"spec":{"claimRef":{"namespace":"default","name":"mine"}}}`, "belay-driver-volumes"},
		attempt{"shares a Fibre Channel volume", "patch", fibre, share, "belay-driver-volumes"},
		attempt{"shares a migrated volume of another", "patch", migrated, share, "belay-driver-volumes"},
		attempt{"points its volume to another handle", "patch", ownPV, `{"spec":{"csi":{"volumeHandle":"other"}}}`, byRules},
		attempt{"says that all attachments are recorded", "create", lease("belay-system", "belay-controller-records"), "", "belay-driver-leases"},
		attempt{"makes a lease in kube-system", "create", lease("kube-system", "belay-controller-records"), "", byRBAC},
		attempt{"makes a VolumeAttachment", "create", fixture.Attachment("of-driver-forged", tokenDriver, "of-driver", "own"), "", byRBAC},
		attempt{"deletes one", "delete", own, "", byRBAC},
		attempt{"reports a volume", "status", node, `{"status":{"volumesAttached":[{"name":"v","devicePath":""}]}}`, byRBAC},
		attempt{"writes to a node", "patch", node, keep, byRBAC},
		attempt{"names the node's ID", "create", &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "of-driver"}}, "", byRBAC},
		attempt{"reads a Secret", "get", secret(), "", byRBAC},

		attempt{"makes an API server's watch caches catch up", "patch", other, `{"metadata":{"annotations":{"` + kube.LeadingSinceAnnotation + `":"now"}}}`, byNone},
		attempt{"shares its volume", "patch", ownPV, share, byNone},
		attempt{"leads", "create", lease("belay-system", "external-attacher-leader-csi-example-com"), "", byNone},
		attempt{"takes back what it confirmed", "status", own, `{"status":{"attached":false}}`, byNone},
		attempt{"releases its volume without an unpublish", "patch", own, `{"metadata":{"finalizers":null}}`, byNone},
	)
	must(t, server.Client.Delete(t.Context(), lease("belay-system", "external-attacher-leader-csi-example-com")))
}

// TestTokenOfTheNodeAgent: the ClusterRole of belay-node, for nodes without a credential of their own, cannot tell one node from another: who has it writes the
// status and the CSINode of each. It makes and deletes no VolumeAttachment and no pod, taints no node, and reads no Secret.
func TestTokenOfTheNodeAgent(t *testing.T) {
	fencingServed(t)
	token := bound(t, "of-node-agent", "../../deploy/belay-node/belay-node.yaml", "belay-node")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-node-agent"}}
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "of-node-agent"}}
	pv := fixture.PersistentVolume("of-node-agent", "disk.test", "of-node-agent")
	claim := fixture.Claim("default", "of-node-agent", pv)
	for _, o := range []client.Object{node, csiNode, pv, claim, secret()} {
		create(t, o)
	}
	va := published(t, "of-node-agent", "disk.test", "of-node-agent", pv.Name)
	pod := fixture.Pod("default", "of-node-agent", "of-node-agent", claim.Name)
	create(t, pod)
	attempts(t, token,
		attempt{"makes a VolumeAttachment", "create", fixture.Attachment("of-node-agent-2", "disk.test", "a", pv.Name), "", byRBAC},
		attempt{"deletes one", "delete", va, "", byRBAC},
		attempt{"releases one", "patch", va, `{"metadata":{"finalizers":null}}`, byRBAC},
		attempt{"confirms one", "status", va, `{"status":{"attached":false}}`, byRBAC},
		attempt{"shares a volume", "patch", pv, `{"spec":{"accessModes":["ReadWriteMany"]}}`, byRBAC},
		attempt{"gives a claim another volume", "patch", claim, `{"spec":{"volumeName":"another"}}`, byRBAC},
		attempt{"deletes a pod", "delete", pod, "", byRBAC},
		attempt{"ends a pod", "status", pod, `{"status":{"phase":"Failed"}}`, byRBAC},
		attempt{"taints a node", "patch", node, taints(outOfService), byRBAC},
		attempt{"renews the lease of a node", "create", lease("kube-node-lease", "of-node-agent"), "", byRBAC},
		attempt{"reads a Secret", "get", secret(), "", byRBAC},
		attempt{"gets a token of a pod's account", "token", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}, "", byRBAC},
		attempt{"reads a fence", "get", &fencingv1.NodeFence{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, "", byRBAC},

		attempt{"taints a node by its status", "status", node, taints(outOfService), byNone}, // and it has no effect, below
		attempt{"says what another node has in use", "status", node, `{"status":{"volumesInUse":["v"]}}`, byNone},
		attempt{"reports a volume to another node", "status", node, `{"status":{"volumesAttached":[{"name":"v","devicePath":""}]}}`, byNone},
		attempt{"says that another node is not Ready", "status", node, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, byNone},
		attempt{"labels and annotates another node", "status", node, `{"metadata":{"labels":{"zone":"b"},"annotations":{"` + kube.FencedBootAnnotation + `":"b"}}}`, byNone},
		attempt{"says what a claim's volume can hold", "status", claim, `{"status":{"capacity":{"storage":"1Ti"}}}`, byNone},
		attempt{"takes another node's drivers away", "delete", csiNode, "", byNone},
	)
	must(t, server.Client.Get(t.Context(), client.ObjectKeyFromObject(node), node))
	if slices.ContainsFunc(node.Spec.Taints, func(x corev1.Taint) bool { return x.Key == kube.OutOfServiceTaint }) {
		t.Errorf("it taints nodes by their status: %v", node.Spec.Taints)
	}
}

// attaches runs belay-attacher until the test ends.
func attaches(t *testing.T, config *rest.Config, driver *csidriver.Driver) {
	t.Helper()
	controller, err := csi.NewController(t.Context(), driver.Connect(t))
	must(t, err)
	a, err := attacher.New(attacher.Config{
		Client: kubernetes.NewForConfigOrDie(config), Driver: driver.Name, Controller: controller,
		Timeout: wait.Timeout, RetryStart: 50 * time.Millisecond, RetryMax: time.Second, WorkerThreads: 10, DrainTimeout: time.Second,
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	a.Warm(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the attacher ended: %v", err)
		}
	})
}

// TestTokensLetThePartsWork: with the rights and policies of their own tokens belay-controller and belay-attacher attach and detach a volume. A second
// VolumeAttachment that a client makes with the controller's token, also with an inline source that says the volume is shared, waits: belay-attacher
// sends nothing to the driver for it.
func TestTokensLetThePartsWork(t *testing.T) {
	controllerConfig, forger := controllerToken(t)
	attacherConfig, _ := driverToken(t)
	driver := csidriver.New(t, tokenDriver)
	driver.Address = csidriver.SocketDir(t) + "/csi.sock"
	driver.ControllerServices = []csispec.ControllerServiceCapability_RPC_Type{csispec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	driver.Start()
	t.Cleanup(driver.Stop)
	t.Cleanup(func() { noLeader(t) })
	for _, node := range []string{"work-a", "work-b"} {
		create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}})
		create(t, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: tokenDriver, NodeID: "id-" + node}},
		}})
	}
	create(t, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: tokenDriver}})
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}})
	disk := attachment.VolumeKey{Driver: tokenDriver, Handle: "work-disk"}
	boundVolume(t, "work", fixture.PersistentVolume("work-disk", disk.Driver, disk.Handle))
	pod := fixture.Pod("work", "pod", "work-a", "work-disk")
	create(t, pod)

	attaches(t, attacherConfig, driver)
	stop := lead(t, controllerConfig)
	unique := kube.UniqueVolumeName(disk.Driver, disk.Handle)
	reported := func() bool {
		node := &corev1.Node{}
		must(t, server.Client.Get(t.Context(), client.ObjectKey{Name: "work-a"}, node))
		return slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return string(v.Name) == unique })
	}
	wait.Until(t, "the volume is attached and reported", reported)

	second := fixture.Attachment("work-second", tokenDriver, "work-b", "work-disk")
	spec := fixture.PersistentVolume("", disk.Driver, disk.Handle, corev1.ReadWriteMany).Spec
	spec.Capacity = nil // not of an inline volume
	inline := fixture.Attachment("work-inline", tokenDriver, "work-b", "")
	inline.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &spec}
	for _, va := range []*storagev1.VolumeAttachment{second, inline} {
		must(t, forger.Create(t.Context(), va))
		wait.Until(t, va.Name+" waits", func() bool {
			must(t, server.Client.Get(t.Context(), client.ObjectKeyFromObject(va), va))
			return va.Status.AttachError != nil
		})
		if va.Status.Attached {
			t.Errorf("%s is attached", va.Name)
		}
		must(t, forger.Delete(t.Context(), va))
	}
	must(t, server.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	wait.Until(t, "the volume is detached", func() bool {
		all := &storagev1.VolumeAttachmentList{}
		must(t, server.Client.List(t.Context(), all))
		return !slices.ContainsFunc(all.Items, func(va storagev1.VolumeAttachment) bool { return va.Spec.Attacher == tokenDriver })
	})
	if reported() {
		t.Error("the report is left")
	}
	stop()
	for _, c := range driver.Calls() {
		if c.Node != "id-work-a" {
			t.Errorf("%s for node %s", c.Method, c.Node)
		}
	}
}
