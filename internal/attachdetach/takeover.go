package attachdetach

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
)

const (
	// recordsLast is how long the records count after a leader of belay-controller last confirmed them. Another attach/detach controller may
	// have led since, and made none.
	recordsLast = 10 * time.Minute
	// recordsConfirmed is how often the leader confirms them.
	recordsConfirmed = time.Minute
)

// records is a Lease that says that each volume which this cluster's nodes had when belay-controller took over has a VolumeAttachment.
// While it is fresh, a Node's report makes no holder: a node writes its own status (k8s.io/kubernetes v1.36.3
// plugin/pkg/admission/noderestriction admitNode), and could keep any volume from others by it.
type records struct {
	client client.Client
	live   client.Reader
	clock  Clock
	key    client.ObjectKey // without a name, there is none, and the records never count
}

// complete reports whether the records count.
func (r *records) complete(ctx context.Context) (bool, error) {
	if r.key.Name == "" {
		return false, nil
	}
	lease := &coordinationv1.Lease{}
	if err := r.live.Get(ctx, r.key, lease); apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("read the Lease %s, which says since when attachments are recorded: %w", r.key, err)
	}
	at := lease.Spec.RenewTime
	return at != nil && r.clock.Now().Sub(at.Time).Abs() < recordsLast, nil // a time far ahead is of no leader
}

// confirm says that they do.
func (r *records) confirm(ctx context.Context) error {
	if r.key.Name == "" {
		return nil
	}
	now, seconds := metav1.NewMicroTime(r.clock.Now()), int32(recordsLast/time.Second)
	lease := &coordinationv1.Lease{}
	lease.Namespace, lease.Name = r.key.Namespace, r.key.Name
	err := r.live.Get(ctx, r.key, lease)
	lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &now, &seconds
	switch {
	case apierrors.IsNotFound(err):
		lease.Spec.AcquireTime = &now
		err = r.client.Create(ctx, lease)
	case err == nil:
		err = r.client.Update(ctx, lease)
	}
	if err != nil {
		return fmt.Errorf("confirm by the Lease %s that attachments are recorded: %w", r.key, err)
	}
	return nil
}

// keepRecords confirms them while this process leads.
func (c *Controller) keepRecords(ctx context.Context) error {
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil
	}
	for c.records.key.Name != "" {
		select {
		case <-time.After(recordsConfirmed):
		case <-ctx.Done():
			return nil
		}
		if err := c.records.confirm(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Failed to confirm the records; a next leader takes over what Nodes report if this lasts for ten minutes")
		}
	}
	return nil
}

// takeOver makes what Nodes report known to this leader. Where no leader has recorded it, another controller did the reports, and may have
// given volumes to nodes whose pods are gone: they are recorded once.
func (c *Controller) takeOver(ctx context.Context) error {
	recorded, err := c.records.complete(ctx)
	if err != nil && !apierrors.IsForbidden(err) {
		return err
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "What Nodes report counts at each start of a leader", "remedy", "apply the Role belay-controller of this version")
	}
	if !recorded {
		if err := c.recordReports(ctx); err != nil {
			return err
		}
	}
	c.state.adopt(recorded)
	err = c.records.confirm(ctx)
	if apierrors.IsForbidden(err) {
		log.FromContext(ctx).Error(err, "The next leader takes over what Nodes report", "remedy", "apply the Role belay-controller of this version")
		return nil
	}
	return err
}

// recordReports creates a VolumeAttachment for each reported volume that the node connects by itself. Other volumes have theirs.
func (c *Controller) recordReports(ctx context.Context) error {
	taken := 0
	for _, node := range c.state.nodes.Cached() {
		for _, v := range node.Status.VolumesAttached {
			k, ok := keyOfName(string(v.Name))
			if !ok || !kube.NoAttacher(k.Driver) {
				continue
			}
			name := kube.AttachmentName(k.Handle, k.Driver, node.Name)
			if _, recorded := c.state.attachments.Get(name); recorded {
				continue
			}
			machine := kube.MachineOf(node)
			machine.NodeUID = attachment.InDoubt // an earlier Node object may have had the volume
			va := newAttachment(k, node.Name, machine, kube.OwnSource(k, c.state.modes(k)))
			if err := c.client.Create(ctx, va); err == nil {
				taken++
				c.state.attachments.Wrote(kube.StripAttachment(va))
			} else if !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("record that node %s has the volume %s: create VolumeAttachment %s: %w", node.Name, v.Name, name, err)
			}
		}
	}
	if taken > 0 {
		log.FromContext(ctx).Info("Recorded the Fibre Channel and iSCSI volumes that Nodes report", "attachments", taken)
	}
	return nil
}

// newAttachment returns the VolumeAttachment of a volume on a node, with what is recorded of the machine.
func newAttachment(k key, node string, machine attachment.Machine, source storagev1.VolumeAttachmentSource) *storagev1.VolumeAttachment {
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Name: kube.AttachmentName(k.Handle, k.Driver, node),
			Annotations: annotations(map[string]string{
				kube.VolumeHandleAnnotation: annotatable(k.Handle),
				kube.NodeUIDAnnotation:      machine.NodeUID,
				kube.BootIDAnnotation:       machine.BootID,
				kube.SystemUUIDAnnotation:   machine.SystemUUID,
				kube.ProviderIDAnnotation:   machine.ProviderID,
			}),
		},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: kube.AttacherOf(k.Driver), NodeName: node, Source: source},
	}
	if kube.NoAttacher(k.Driver) { // a person who takes belay out can select them
		va.Labels = map[string]string{kube.ManagedByLabel: kube.FieldManager}
	}
	return va
}

// modes are the access modes to record with a volume that the node connects by itself. Without a PersistentVolume, it is one of pods' specs,
// which may be on several nodes, as upstream has it.
func (w *clusterState) modes(k key) []corev1.PersistentVolumeAccessMode {
	volumes := list[*corev1.PersistentVolume](w.volumes, byVolume, kube.UniqueVolumeName(k.Driver, k.Handle))
	if slices.ContainsFunc(volumes, kube.Exclusive) {
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	known := len(volumes) > 0
	for range w.needs(k, volumes) {
		known = true
		break
	}
	if known {
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}
	return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
}

// usedByPod reports whether a pod of the node uses the volume through its claim, also one that has ended: its object stays until the kubelet
// has unmounted its volumes. A kubelet can create no pod that uses a claim (k8s.io/kubernetes v1.36.3
// plugin/pkg/admission/noderestriction admitPodCreate).
func (w *clusterState) usedByPod(k key, node string) bool {
	for _, pv := range list[*corev1.PersistentVolume](w.volumes, byVolume, kube.UniqueVolumeName(k.Driver, k.Handle)) {
		claim, name := w.claimOf(pv)
		if claim != nil && slices.ContainsFunc(list[*corev1.Pod](w.pods, byClaim, name), func(pod *corev1.Pod) bool {
			return pod.Spec.NodeName == node && kube.UsesClaim(pod, claim)
		}) {
			return true
		}
	}
	return false
}
