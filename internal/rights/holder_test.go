package rights

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/attachdetach"
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

var recordsLease = client.ObjectKey{Namespace: "kube-system", Name: "belay-controller-records"}

// lead runs belay-controller's attach/detach controller as the leader, until stop.
func lead(t *testing.T, config *rest.Config) (stop func()) {
	t.Helper()
	mgr, err := kube.NewManager(config, kube.ManagerConfig{
		Lease: &kube.LeaseConfig{
			Namespace: "kube-system", Name: "belay-controller", RenewDeadline: wait.Timeout, Identity: fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano()),
		},
		LeaseDuration: wait.Timeout + 5*time.Second, RetryPeriod: 100 * time.Millisecond,
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	must(t, attachdetach.Setup(ctx, mgr, attachdetach.Options{
		Policy: attachment.Policy{OutOfService: true}, WarnOfRivals: true, Records: recordsLease,
	}))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the controller ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// noLeader removes what a leader leaves behind.
func noLeader(t *testing.T) {
	t.Helper()
	_ = server.Client.DeleteAllOf(context.WithoutCancel(t.Context()), &storagev1.VolumeAttachment{})
	for _, name := range []string{recordsLease.Name, "belay-controller"} {
		_ = server.Client.Delete(context.WithoutCancel(t.Context()), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: recordsLease.Namespace, Name: name}})
	}
}

// forge lets a kubelet write both lists of its own Node.
func forge(t *testing.T, config client.Client, node string, volumes ...string) {
	t.Helper()
	attached := make([]map[string]string, 0, len(volumes))
	for _, v := range volumes {
		attached = append(attached, map[string]string{"name": v, "devicePath": ""})
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": attached, "volumesInUse": volumes}})
	must(t, err)
	must(t, config.Status().Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch("application/merge-patch+json", body)))
}

// boundVolume makes a PersistentVolume with a claim of the namespace.
func boundVolume(t *testing.T, namespace string, pv *corev1.PersistentVolume) {
	t.Helper()
	claim := fixture.Claim(namespace, pv.Name, pv)
	status := claim.Status
	create(t, claim)
	create(t, fixture.Bind(pv, claim))
	claim.Status = status
	must(t, server.Client.Status().Update(t.Context(), claim))
}

// awaitAttachment waits until the volume has a VolumeAttachment for the node, and none for another.
func awaitAttachment(t *testing.T, k attachment.VolumeKey, node string) {
	t.Helper()
	wait.Until(t, "the volume "+k.Handle+" is attached to "+node+" alone", func() bool {
		all := &storagev1.VolumeAttachmentList{}
		must(t, server.Client.List(t.Context(), all))
		var nodes []string
		for i := range all.Items {
			if key, ok := kube.VolumeOfAttachment(&all.Items[i]); ok && key == k {
				nodes = append(nodes, all.Items[i].Spec.NodeName)
			}
		}
		return slices.Equal(nodes, []string{node})
	})
}

// A compromised kubelet writes the volumes of others into volumesAttached and volumesInUse of its own Node, which NodeRestriction allows. A next
// leader gives them to the pods that use their claims all the same. A first leader takes over what it finds, and records it once.
func TestKubeletsStatusMakesNoHolder(t *testing.T) {
	config := kubelet(t, "evil")
	evil, err := client.New(config, client.Options{})
	must(t, err)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "holder"}})
	managed := map[string]string{kube.ManagedAttachAnnotation: "true"}
	create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "holder-good", Annotations: managed}})
	lun, evilVolume := int32(1), attachment.VolumeKey{Driver: kube.FibreChannelPlugin, Handle: "[5009]:1"}
	disk, fc := attachment.VolumeKey{Driver: "disk.example.com", Handle: "holder-disk"}, attachment.VolumeKey{Driver: kube.FibreChannelPlugin, Handle: "[5008]:1"}
	boundVolume(t, "holder", fixture.PersistentVolume("holder-disk", disk.Driver, disk.Handle))
	fibre := fixture.PersistentVolume("holder-fc", "", "")
	fibre.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"5008"}, Lun: &lun}}
	boundVolume(t, "holder", fibre)

	// Upstream's controller has attached a volume to its node, and its pod is gone: the first leader takes that over.
	unique := func(k attachment.VolumeKey) string { return kube.UniqueVolumeName(k.Driver, k.Handle) }
	forge(t, evil, "evil", unique(evilVolume))
	t.Cleanup(func() { noLeader(t) })
	stop := lead(t, server.Config())
	wait.Until(t, "the records are made", func() bool {
		return server.Client.Get(t.Context(), recordsLease, &coordinationv1.Lease{}) == nil
	})
	awaitAttachment(t, evilVolume, "evil")
	stop()

	// Now the kubelet claims what it never had.
	forge(t, evil, "evil", unique(evilVolume), unique(disk), unique(fc))
	mirror := fixture.Pod("holder", "mirror-evil", "evil", "holder-disk")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	if err := evil.Create(t.Context(), mirror); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet made a mirror pod that uses a claim: %v", err)
	}
	mirror = fixture.Pod("holder", "mirror-evil", "evil")
	mirror.Spec.Volumes = []corev1.Volume{{Name: "fc", VolumeSource: corev1.VolumeSource{FC: fibre.Spec.FC}}}
	node := &corev1.Node{}
	must(t, server.Client.Get(t.Context(), client.ObjectKey{Name: "evil"}, node))
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "evil", UID: node.UID, Controller: new(true)}}
	must(t, evil.Create(t.Context(), mirror))
	t.Cleanup(func() {
		_ = server.Client.Delete(context.WithoutCancel(t.Context()), mirror, client.GracePeriodSeconds(0))
	})
	lead(t, server.Config())
	create(t, fixture.Pod("holder", "good", "holder-good", "holder-disk", "holder-fc"))
	awaitAttachment(t, disk, "holder-good")
	awaitAttachment(t, fc, "holder-good")
	awaitAttachment(t, evilVolume, "evil") // and what was taken over stays
}

// TestTenantNamesNoVolumeOfAnother: a tenant names the LUN of another namespace's PersistentVolume inline in a pod, on any node. It neither obtains the volume
// nor keeps it from the pod that has the claim: who can create pods has no right to a volume that has a PersistentVolume.
func TestTenantNamesNoVolumeOfAnother(t *testing.T) {
	edit, err := client.New(tenant(t, "names-inline"), client.Options{})
	must(t, err)
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "inline-owner"}})
	managed := map[string]string{kube.ManagedAttachAnnotation: "true"}
	for _, n := range []string{"inline-evil", "inline-good"} {
		create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, Annotations: managed}})
	}
	key := attachment.VolumeKey{Driver: kube.FibreChannelPlugin, Handle: "[500a]:1"}
	pv := fixture.PersistentVolume("inline-fc", "", "")
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"500a"}, Lun: new(int32(1))}}
	boundVolume(t, "inline-owner", pv)
	aws := fixture.PersistentVolume("inline-aws", "ebs.csi.aws.com", "vol-0123456789")
	boundVolume(t, "inline-owner", aws)
	disk := attachment.VolumeKey{Driver: "ebs.csi.aws.com", Handle: "vol-0123456789"}
	pod := fixture.Pod("names-inline", "thief", "inline-evil")
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "fc", VolumeSource: corev1.VolumeSource{FC: pv.Spec.FC}},
		{Name: "aws", VolumeSource: corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-0123456789"}}},
	}
	must(t, edit.Create(t.Context(), pod))
	t.Cleanup(func() {
		_ = server.Client.Delete(context.WithoutCancel(t.Context()), pod, client.GracePeriodSeconds(0))
	})
	t.Cleanup(func() { noLeader(t) })
	lead(t, server.Config())
	at := func(k attachment.VolumeKey) (nodes []string) {
		all := &storagev1.VolumeAttachmentList{}
		must(t, server.Client.List(t.Context(), all))
		for i := range all.Items {
			if found, ok := kube.VolumeOfAttachment(&all.Items[i]); ok && found == k {
				nodes = append(nodes, all.Items[i].Spec.NodeName)
			}
		}
		return nodes
	}
	wait.Until(t, "the controller leads", func() bool { return server.Client.Get(t.Context(), recordsLease, &coordinationv1.Lease{}) == nil })
	served(t, "inline-owner", "inline-good", "inline.example.com") // it works through what there is
	create(t, fixture.Pod("inline-owner", "good", "inline-good", "inline-fc", "inline-aws"))
	var fc, ebs []string
	wait.Until(t, "both volumes are attached somewhere", func() bool {
		fc, ebs = at(key), at(disk)
		return len(fc) > 0 && len(ebs) > 0
	})
	wait.Until(t, "the tenant reads why its pod waits", func() bool {
		events := &corev1.EventList{}
		must(t, edit.List(t.Context(), events, client.InNamespace(pod.Namespace)))
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.UID == pod.UID && e.Reason == explain.FailedAttachVolume && strings.Contains(e.Message, explain.OfAnotherNamespace)
		})
	})
	if slices.Contains(fc, "inline-evil") {
		t.Errorf("the tenant has the Fibre Channel volume of another namespace, whose own pod waits: attached to %v", fc)
	}
	if slices.Contains(ebs, "inline-evil") {
		t.Errorf("the tenant has the disk of another namespace, whose own pod waits: attached to %v", ebs)
	}
}
