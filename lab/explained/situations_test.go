package explained

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// Verdicts as the first words of the output.
const (
	blocked, unsafe, inProgress = "BLOCKED for", "BLOCKED, UNSAFE TO FORCE", "IN PROGRESS"
)

// together are the situations that disturb no other.
var together = []situation{
	{name: "in-use", is: inUse, cheap: true},
	{name: "two-replicas", is: twoReplicas},
	{name: "rolling-update", is: rollingUpdate, cheap: true},
	{name: "pod-once", is: podOnce, cheap: true},
	{name: "claim-not-bound", is: claimNotBound, cheap: true},
	{name: "missing-pv", is: missingVolume, cheap: true},
	{name: "missing-secret", is: missingSecret},
	{name: "unmounting", is: unmounting},
	{name: "unmount-error", is: unmountError},
	{name: "kubelet-hangs", is: kubeletHangs},
	{name: "detach-error", is: detachError},
	{name: "detach-hangs", is: detachHangs},
	{name: "attach-error", is: attachError},
	{name: "attach-hangs", is: attachHangs},
	{name: "driver-unavailable", is: driverUnavailable},
	{name: "storage-full-node", is: storageLimit},
	{name: "attach-limit", is: attachLimit},
	{name: "driver-not-on-node", is: driverNotOnNode},
	{name: "driver-removed", is: driverRemoved},
	{name: "foreign-va", is: foreignAttachment},
	{name: "orphan-va", is: orphanAttachment, only: cluster.PlaneUpstream},
	{name: "uncertain-attach", is: uncertainAttach},
	{name: "backend-disagrees", is: backendDisagrees},
	{name: "va-deleted-by-hand", is: attachmentDeletedByHand},
	{name: "mount-error", is: mountError},
	{name: "migrated", is: migrated},
	{name: "dead-node", is: deadNode},
	{name: "partition", is: partition},
	{name: "taint-on-ready-node", is: taintOnReadyNode, only: cluster.PlaneBelay},
	{name: "node-deleted", is: nodeDeleted},
	{name: "node-recreated", is: nodeRecreated, only: cluster.PlaneBelay},
}

// alone are those that stop a part that others need.
var alone = []situation{
	{name: "node-unmanaged", is: nodeUnmanaged},
	{name: "attacher-down", is: attacherDown},
	{name: "driver-down", is: driverDown},
}

func volumeRef(name string) diagnosis.Ref {
	return diagnosis.Ref{Resource: diagnosis.Volumes, Name: name}
}

func attachmentRef(name string) diagnosis.Ref {
	return diagnosis.Ref{Resource: diagnosis.Attachments, Name: name}
}

// inUse: another pod runs and is meant to.
func inUse(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	s.Wait()
	s.explains("in-use", s.waiter(), blocked, "HeldByRunningPod")
	s.explains("in-use-claim", diagnosis.Ref{Resource: diagnosis.Claims, Namespace: scenario.Namespace, Name: s.Name}, blocked, "HeldByRunningPod")
}

// deployment makes a Deployment whose pods use the claim.
func (s *stuck) deployment(replicas int32, change func(*corev1.PodTemplateSpec)) *appsv1.Deployment {
	s.Helper()
	labels := map[string]string{"app": s.Name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: scenario.Namespace, Name: s.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: s.podWith("", s.Name).Spec},
		},
	}
	change(&d.Spec.Template)
	d, err := s.Scene.Client.AppsV1().Deployments(scenario.Namespace).Create(s.Context(), d, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// podOf waits for a pod of the Deployment that is as asked for.
func (s *stuck) podOf(d *appsv1.Deployment, what string, is func(*corev1.Pod) bool) diagnosis.Ref {
	s.Helper()
	ref := diagnosis.Ref{Resource: diagnosis.Pods, Namespace: d.Namespace}
	labtest.Until(s.T, labtest.StuckLimit, "a pod of "+d.Name+" that "+what, func() error {
		pods, err := s.Scene.Client.CoreV1().Pods(d.Namespace).List(s.Context(), metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if is(&pods.Items[i]) {
				ref.Name = pods.Items[i].Name
				return nil
			}
		}
		return fmt.Errorf("none of %d", len(pods.Items))
	})
	return ref
}

func running(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }

// on are nodes by their host names.
func on(nodes ...string) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes}}}
}

// change updates a Deployment.
func (s *stuck) change(d *appsv1.Deployment, do func(*appsv1.DeploymentSpec)) {
	s.Helper()
	s.patch("the update of "+d.Name, func(ctx context.Context, _ []byte) error {
		now, err := s.Scene.Client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		do(&now.Spec)
		_, err = s.Scene.Client.AppsV1().Deployments(d.Namespace).Update(ctx, now, metav1.UpdateOptions{})
		return err
	}, "")
}

// twoReplicas: a Deployment with two pods on two nodes and one volume for one node.
func twoReplicas(s *stuck) {
	s.Claim(scenario.StorageClass)
	d := s.deployment(1, func(t *corev1.PodTemplateSpec) {
		t.Spec.Affinity = &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution:  &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{on(labtest.Holding, labtest.Waiting)}},
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: on(labtest.Holding)}},
			},
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: t.Labels}, TopologyKey: corev1.LabelHostname,
			}}},
		}
	})
	s.podOf(d, "runs", running)
	s.change(d, func(spec *appsv1.DeploymentSpec) { spec.Replicas = new(int32(2)) })
	s.explains("two-replicas", s.podOf(d, "waits", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" && !running(p) }), blocked, "HeldByRunningPod")
}

// rollingUpdate: the new pod waits for the old one, and the old one for the new.
func rollingUpdate(s *stuck) {
	s.Claim(scenario.StorageClass)
	d := s.deployment(1, func(t *corev1.PodTemplateSpec) { onto(labtest.Holding)(&t.Spec) })
	s.podOf(d, "runs", running)
	s.change(d, func(spec *appsv1.DeploymentSpec) { onto(labtest.Waiting)(&spec.Template.Spec) })
	s.explains("rolling-update", s.podOf(d, "waits", func(p *corev1.Pod) bool { return p.Spec.NodeName == labtest.Waiting }), blocked, "RollingUpdateDeadlock")
}

// podOnce: the scheduler lets one pod use the claim.
func podOnce(s *stuck) {
	s.claimAs("", func(c *corev1.PersistentVolumeClaimSpec) {
		c.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	})
	s.podAs("holder", s.Name, onto(labtest.Holding))
	s.runs("holder")
	s.podAs("waiter", s.Name, func(*corev1.PodSpec) {})
	s.explains("pod-once", s.waiter(), blocked, "ReadWriteOncePodInUse")
}

// claimNotBound: no such class, and a provisioner that fails.
func claimNotBound(s *stuck) {
	s.claimAs("", func(c *corev1.PersistentVolumeClaimSpec) { c.StorageClassName = new("fast") })
	s.podAs("waiter", s.Name, func(*corev1.PodSpec) {})
	s.explains("claim-not-bound", s.waiter(), blocked, "ClaimNotBound")
}

// missingVolume: the PersistentVolume was deleted, finalizers and all.
func missingVolume(s *stuck) {
	s.Claim(scenario.StorageClass)
	volumes := s.Scene.Client.CoreV1().PersistentVolumes()
	if err := volumes.Delete(s.Context(), s.Volume, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	labtest.Until(s.T, time.Minute, "the volume to be gone", func() error {
		_, err := volumes.Patch(s.Context(), s.Volume, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%w)", err)
	})
	s.Wait()
	s.explains("missing-pv", s.waiter(), blocked, "PersistentVolumeMissing")
}

// missingSecret: the class names a Secret that does not exist.
func missingSecret(s *stuck) {
	_, err := s.Scene.Client.StorageV1().StorageClasses().Create(s.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name}, Provisioner: labdisk.DriverDisk,
		Parameters: map[string]string{
			"csi.storage.k8s.io/fstype": "ext4", "csi.storage.k8s.io/controller-publish-secret-name": "storage-login",
			"csi.storage.k8s.io/controller-publish-secret-namespace": scenario.Namespace,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.Claim(s.Name)
	s.Wait()
	s.explains("missing-secret", s.waiter(), blocked, "SecretMissing")
}

// unmounting: the other pod is gone and its node does not get the volume unmounted.
func unmounting(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	s.Fault(labdisk.Fault{Method: "NodeUnstageVolume", Node: labtest.Holding, Effect: labdisk.EffectHang})
	s.ends()
	s.Wait()
	s.explainsFor(fleeting, "unmounting", s.waiter(), inProgress, "StillInUse")
	s.explains("unmount-hangs", s.waiter(), unsafe, "UnmountFailing")
}

// unmountError: the driver refuses to unmount.
func unmountError(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	s.Fault(labdisk.Fault{
		Method: "NodeUnpublishVolume", Node: labtest.Holding, Effect: labdisk.EffectError, Code: "Internal", Message: "target is busy",
	})
	s.Remove("holder")
	labtest.UntilPod(s.T, s.Scene, s.Pod("holder"), "ends", func(pod *corev1.Pod) bool { return pod != nil && pod.Status.Phase == corev1.PodSucceeded })
	s.Wait()
	s.explains("unmount-error", s.waiter(), unsafe, "UnmountFailing")
	s.explains("unmount-error-holder", s.podRef("holder"), unsafe, "UnmountFailing")
}

// detachError: the storage says no.
func detachError(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	s.Fault(labdisk.Fault{
		Method: "ControllerUnpublishVolume", Effect: labdisk.EffectError, Code: "Internal", Message: "a snapshot of the disk is being taken",
	})
	s.ends()
	s.Wait()
	s.explains("detach-error", s.waiter(), blocked, "DetachFailed")
	s.explains("detach-error-va", attachmentRef(kube.AttachmentName(s.Handle, labdisk.DriverDisk, labtest.Holding)), blocked, "DetachFailed")
}

// detachHangs: the storage does not answer.
func detachHangs(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	s.Fault(labdisk.Fault{Method: "ControllerUnpublishVolume", Effect: labdisk.EffectHang})
	s.ends()
	s.Wait()
	s.explains("detach-hangs", s.waiter(), blocked, "DriverUnavailable")
}

// attachError: the storage refuses the attach.
func attachError(s *stuck) {
	s.Claim(scenario.StorageClass)
	s.Fault(labdisk.Fault{
		Method: "ControllerPublishVolume", Effect: labdisk.EffectError, Code: "Internal", Message: "the disk is in a failed state",
	})
	s.Wait()
	s.explains("attach-error", s.waiter(), blocked, "AttachFailed")
}

// attachHangs: the storage does not answer.
func attachHangs(s *stuck) {
	s.Claim(scenario.StorageClass)
	s.Fault(labdisk.Fault{Method: "ControllerPublishVolume", Effect: labdisk.EffectHang})
	s.Wait()
	s.explains("attach-hangs", s.waiter(), blocked, "DriverUnavailable")
}

// driverUnavailable: the driver reaches no storage.
func driverUnavailable(s *stuck) {
	s.Claim(scenario.StorageClass)
	s.Fault(labdisk.Fault{
		Method: "ControllerPublishVolume", Effect: labdisk.EffectError, Code: "Unavailable", Message: "no route to the array",
	})
	s.Wait()
	s.explains("driver-unavailable", s.waiter(), blocked, "AttachFailed")
}

// storageLimit: the storage says that the node is full.
func storageLimit(s *stuck) {
	s.Claim(scenario.StorageClass)
	s.Fault(labdisk.Fault{Node: labtest.Waiting, Effect: labdisk.EffectLimit, Message: "too many disks"})
	s.Wait()
	s.explains("storage-full-node", s.waiter(), blocked, "AttachLimitReached")
}

// attachLimit: the node has one slot, which a pod takes, and later a VolumeAttachment that no pod needs. The driver is one that only
// the scheduler knows of: the lab's has no limit, and registers again when its entry is changed.
func attachLimit(s *stuck) {
	const driver = "slots.example.com"
	s.register(full, storagev1.CSINodeDriver{Name: driver, NodeID: full, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1))}})
	s.own("", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "disk-1"}})
	s.own("-other", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "disk-2"}})
	s.Create("holder", full)
	s.podAs("waiter", s.Name+"-other", onto(full))
	s.explains("attach-limit", s.waiter(), blocked, "AttachLimitReached")
	s.attachmentOf(driver, "attach-limit-by-hand", full)
	s.Remove("holder")
	s.explains("orphans-fill-node", s.waiter(), blocked, "OrphansFillNode")
}

// register adds a driver to a node, or takes all away.
func (s *stuck) register(node string, drivers ...storagev1.CSINodeDriver) {
	s.Helper()
	csiNodes := s.Scene.Client.StorageV1().CSINodes()
	s.patch("the change of CSINode "+node, func(ctx context.Context, _ []byte) error {
		n, err := csiNodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(drivers) == 0 {
			n.Spec.Drivers = nil
		}
		n.Spec.Drivers = append(n.Spec.Drivers, drivers...)
		_, err = csiNodes.Update(ctx, n, metav1.UpdateOptions{})
		return err
	}, "")
}

// attachmentOf creates a VolumeAttachment by hand.
func (s *stuck) attachmentOf(driver, name, node string) {
	s.Helper()
	_, err := s.Scene.Client.StorageV1().VolumeAttachments().Create(s.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &s.Volume}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

// attach creates a VolumeAttachment by hand, and waits until it is attached.
func (s *stuck) attach(name, node string) {
	s.Helper()
	s.attachmentOf(labdisk.DriverDisk, name, node)
	labtest.Until(s.T, time.Minute, "VolumeAttachment "+name+" to be attached", func() error {
		va, err := s.Scene.Client.StorageV1().VolumeAttachments().Get(s.Context(), name, metav1.GetOptions{})
		if err == nil && !va.Status.Attached {
			err = fmt.Errorf("it is not: %+v", va.Status)
		}
		return err
	})
}

// detaches waits until the VolumeAttachments of the volume are being deleted.
func (s *stuck) detaches() {
	s.Helper()
	labtest.Until(s.T, time.Minute, "the detach of volume "+s.Volume, func() error {
		list, err := s.Scene.Client.StorageV1().VolumeAttachments().List(s.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if va := &list.Items[i]; ptr.Deref(va.Spec.Source.PersistentVolumeName, "") == s.Volume && va.DeletionTimestamp == nil {
				return fmt.Errorf("VolumeAttachment %s on node %s is not being deleted", va.Name, va.Spec.NodeName)
			}
		}
		return nil
	})
}

// own makes a volume and a claim that are bound to each other.
func (s *stuck) own(suffix string, source corev1.PersistentVolumeSource) {
	s.Helper()
	claim, volume := s.Name+suffix, s.Name+suffix+"-volume"
	if suffix == "" {
		s.Volume = volume
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}
	_, err := s.Scene.Client.CoreV1().PersistentVolumes().Create(s.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeSource: source,
			ClaimRef: &corev1.ObjectReference{Namespace: scenario.Namespace, Name: claim}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.claimAs(suffix, func(c *corev1.PersistentVolumeClaimSpec) { c.StorageClassName, c.VolumeName = new(""), volume })
	labtest.Until(s.T, time.Minute, "claim "+claim+" to be bound", func() error {
		c, err := s.Scene.Client.CoreV1().PersistentVolumeClaims(scenario.Namespace).Get(s.Context(), claim, metav1.GetOptions{})
		if err == nil && c.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("it is %s", c.Status.Phase)
		}
		return err
	})
}

// driverRemoved: a VolumeAttachment of a driver that is not installed any more is being deleted.
func driverRemoved(s *stuck) {
	const driver = "gone.example.com"
	s.own("", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "disk-17"}})
	name := kube.AttachmentName("disk-17", driver, labtest.Holding)
	attachments := s.Scene.Client.StorageV1().VolumeAttachments()
	_, err := attachments.Create(s.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{kube.AttacherFinalizer(driver)}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: labtest.Holding, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &s.Volume}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if err := attachments.Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	s.explains("driver-removed-va", attachmentRef(name), blocked, "DriverRemoved")
	s.Wait()
	s.explains("driver-removed", s.waiter(), blocked, "DriverRemoved")
}

// foreignAttachment: another client has attached the volume under a name of its own.
func foreignAttachment(s *stuck) {
	s.Claim(scenario.StorageClass)
	s.attach("foreign-va-by-hand", labtest.Holding)
	s.explains("foreign-va-va", attachmentRef("foreign-va-by-hand"), blocked, "ForeignAttachment")
	s.Wait()
	s.explains("foreign-va", s.waiter(), blocked, "ForeignAttachment")
}

// orphanAttachment: upstream's controller forgets a VolumeAttachment that it did not create in this run.
func orphanAttachment(s *stuck) {
	s.Claim(scenario.StorageClass)
	name := kube.AttachmentName(s.Handle, labdisk.DriverDisk, labtest.Holding)
	s.attach(name, labtest.Holding)
	s.explains("orphan-va", attachmentRef(name), blocked, "OrphanAttachment")
}

// uncertainAttach: an attach to another node got no clear answer.
func uncertainAttach(s *stuck) {
	s.Claim(scenario.StorageClass)
	s.Fault(labdisk.Fault{
		Method: "ControllerPublishVolume", Node: labtest.Holding, Effect: labdisk.EffectLostReply,
		Code: "DeadlineExceeded", Message: "the storage did not answer in time",
	})
	s.Create("holder", labtest.Holding)
	s.Called("ControllerPublishVolume", labtest.Holding, false)
	s.Wait()
	s.explains("uncertain-attach", s.waiter(), blocked, "OtherWriterAttached")
	s.explains("uncertain-attach-holder", s.podRef("holder"), blocked, "AttachFailed")
}

// backendDisagrees: the finalizer was removed by hand while the volume was attached at the storage.
func backendDisagrees(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	s.Fault(labdisk.Fault{
		Method: "ControllerUnpublishVolume", Effect: labdisk.EffectError, Code: "Internal", Message: "a snapshot of the disk is being taken",
	})
	s.ends()
	name := kube.AttachmentName(s.Handle, labdisk.DriverDisk, labtest.Holding)
	attachments := s.Scene.Client.StorageV1().VolumeAttachments()
	labtest.Until(s.T, labtest.StuckLimit, "the detach to fail", func() error {
		va, err := attachments.Get(s.Context(), name, metav1.GetOptions{})
		if err == nil && va.Status.DetachError == nil {
			err = fmt.Errorf("it has not: %+v", va)
		}
		return err
	})
	labtest.Until(s.T, time.Minute, "the VolumeAttachment to be gone", func() error {
		_, err := attachments.Patch(s.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there (%w)", err)
	})
	s.Wait()
	s.explains("backend-disagrees", s.waiter(), unsafe, "BackendDisagrees")
}

// attachmentDeletedByHand: nothing attaches the volume under its mount again.
func attachmentDeletedByHand(s *stuck) {
	s.Hold(labtest.Holding, scenario.StorageClass)
	s.Fault(labdisk.Fault{
		Method: "ControllerPublishVolume", Effect: labdisk.EffectError, Code: "Internal", Message: "the disk is in a failed state",
	})
	name := kube.AttachmentName(s.Handle, labdisk.DriverDisk, labtest.Holding)
	if err := s.Scene.Client.StorageV1().VolumeAttachments().Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	s.explains("va-deleted-by-hand", s.podRef("holder"), unsafe, "UsedWithoutAttachment")
	s.explains("va-deleted-by-hand-pv", volumeRef(s.Volume), unsafe, "UsedWithoutAttachment")
}

// mountError: the volume is attached, and the node does not get it mounted.
func mountError(s *stuck) {
	s.Claim(scenario.StorageClass)
	s.Fault(labdisk.Fault{Method: "NodeStageVolume", Effect: labdisk.EffectError, Code: "Internal", Message: "the file system is damaged, run fsck"})
	s.Wait()
	s.explains("mount-error", s.waiter(), blocked, "FileSystemDamaged")
}

// migrated: an in-tree volume, of a CSI driver that is not installed.
func migrated(s *stuck) {
	s.own("", corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-0123456789", FSType: "ext4"}})
	s.Wait()
	s.explains("migrated", s.waiter(), blocked, "DriverNotOnNode")
}
