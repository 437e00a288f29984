package rights

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/recovery"
	"belay.dev/belay/internal/testing/fixture"
	"belay.dev/belay/internal/testing/wait"
)

// TestMigratedVolumeIsOfItsDriver: an in-tree volume is that of the one CSI driver to which csi-translation-lib translates it. The account of that driver
// writes to it, and that of no other shares it or gives it to a claim of its own.
func TestMigratedVolumeIsOfItsDriver(t *testing.T) {
	sources := map[string]corev1.PersistentVolumeSource{
		"gce":      {GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}},
		"aws":      {AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}},
		"cinder":   {Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "volume"}},
		"disk":     {AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "disk", DataDiskURI: "/subscriptions/s/disk", Kind: new(corev1.AzureManagedDisk)}},
		"file":     {AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "s", SecretNamespace: new("default"), ShareName: "share"}},
		"vsphere":  {VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[store] disk.vmdk"}},
		"portworx": {PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "volume"}},
	}
	drivers, stated := map[string]string{}, []string{}
	for kind, source := range sources {
		pv := fixture.PersistentVolume("migrated-"+kind, "", "")
		pv.Spec.PersistentVolumeSource = source
		translated, err := csitranslation.New().TranslateInTreePVToCSI(klog.Background(), pv.DeepCopy())
		must(t, err)
		drivers[kind] = translated.Spec.CSI.Driver
		stated = append(stated, fmt.Sprintf("'migrated-%s': ['%s']", kind, drivers[kind]))
	}
	policies(t, "migrated", attacherFiles+"drivers/admission.yaml",
		"{'system:serviceaccount:belay-system:belay-attacher': ['"+tokenDriver+"']}", "{"+strings.Join(stated, ", ")+"}")
	foreign := fixture.PersistentVolume("migrated-foreign", "other.example.com", "foreign")
	create(t, foreign)
	const share, give = `{"spec":{"accessModes":["ReadWriteMany"]}}`, `{"spec":{"claimRef":{"namespace":"default","name":"mine"}}}`
	tokens := map[string]client.Client{}
	for kind := range sources {
		server.Grant(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "migrated-" + kind}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"persistentvolumes"}, Verbs: []string{"patch"}},
		}}, "migrated-"+kind)
		tokens[kind] = withFences(t, server.User(t, "migrated-"+kind))
		attempts(t, tokens[kind], attempt{"shares a CSI volume of another", "patch", foreign, share, "belay-migrated-driver-volumes"})
	}
	for of, source := range sources {
		pv := fixture.PersistentVolume("migrated-"+of, "", "")
		pv.Spec.PersistentVolumeSource = source
		create(t, pv)
		for by, token := range tokens {
			for what, patch := range map[string]string{"shares": share, "gives away": give} {
				if err := (attempt{what, "patch", pv, patch, byNone}).send(t.Context(), token, metav1.DryRunAll); (err == nil) != (by == of) {
					t.Errorf("the account of %s %s a volume of %s: %v", drivers[by], what, drivers[of], err)
				}
			}
		}
	}
}

// TestRecordsOfAMachine: which machine a VolumeAttachment is at is belay-controller's to say. With the token of a driver's attacher a client does not forge
// it on its own VolumeAttachment, the newest of a deleted Node, and the fence is about the machine that belay-controller recorded.
func TestRecordsOfAMachine(t *testing.T) {
	f := newFleet(t)
	_, token := driverToken(t)
	const machine, boot = "4c4c4544-0051-3910-8052-b4c04f4d3532", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	record := func(name, driver string) *storagev1.VolumeAttachment {
		va := published(t, name, driver, "records", name)
		f.must(f.admin.Patch(t.Context(), va, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"uid",%q:%q,%q:%q,%q:%q}}}`,
			kube.NodeUIDAnnotation, kube.BootIDAnnotation, boot, kube.SystemUUIDAnnotation, machine, kube.VolumeHandleAnnotation, name))))
		return va
	}
	other := record("records-other", "other.example.com")
	created := func() time.Time { // in seconds
		must(t, server.Client.Get(t.Context(), client.ObjectKeyFromObject(other), other))
		return other.CreationTimestamp.Time
	}()
	var own *storagev1.VolumeAttachment
	wait.Until(t, "the driver has the newest VolumeAttachment", func() bool {
		own = record(fmt.Sprintf("records-own-%d", time.Now().UnixNano()), tokenDriver)
		return own.CreationTimestamp.Time.After(created)
	})
	says := func(name, value string) string {
		return fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, name, value)
	}
	var all []attempt
	for _, name := range []string{
		kube.NodeUIDAnnotation, kube.BootIDAnnotation, kube.SystemUUIDAnnotation, kube.ProviderIDAnnotation, kube.SameMachineAnnotation, kube.VolumeHandleAnnotation,
		kube.UnfencedBootAnnotation, kube.DetachRequestedAnnotation, kube.DetachCalledOffAnnotation,
	} {
		all = append(all, attempt{"says " + name, "patch", own, says(name, `"2b4e28ba-2fa1-11d2-883f-0016d3cca427"`), "belay-driver-attachments"})
	}
	all = append(all,
		attempt{"takes the boot away", "patch", own, says(kube.BootIDAnnotation, "null"), "belay-driver-attachments"},
		attempt{"takes all annotations away", "patch", own, `{"metadata":{"annotations":null}}`, "belay-driver-attachments"},
	)
	for _, name := range []string{kube.NodeIDAnnotation, kube.PublishedHandleAnnotation, kube.PublishSecretAnnotation, kube.UnpublishedFromAnnotation, kube.LeadingSinceAnnotation,
		kube.PendingCallAnnotation, kube.PublishedElsewhereAnnotation} {
		all = append(all, attempt{"says " + name + ", which is the attacher's", "patch", own, says(name, `"x"`), byNone})
	}
	attempts(t, token, all...)
	f.runs("detector", recovery.Roles{Detector: true})
	fence := &fencingv1.NodeFence{}
	wait.Until(t, "the deleted node is fenced", func() bool { return f.admin.Get(t.Context(), client.ObjectKey{Name: "records"}, fence) == nil })
	if fence.Spec.MachineID != machine || fence.Spec.BootID != boot {
		t.Errorf("the fence is about machine %s, boot %s", fence.Spec.MachineID, fence.Spec.BootID)
	}
}
