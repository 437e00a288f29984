package kube

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/identity"
)

// Conditions of a NodeFence.
const (
	ConditionProven          = "Proven"
	ConditionTainted         = "Tainted"
	ConditionVolumesReleased = "VolumesReleased"
	ConditionContradicted    = "Contradicted"
	ConditionStorageFenced   = "StorageFenced"
	ConditionBesideEarlier   = "BesideEarlierMachine"
	// ConditionEnded says since when a fence is over, which its phase does not.
	ConditionEnded = "Ended"
)

// ConditionFenceReady is the condition of a FenceSource.
const ConditionFenceReady = "FenceReady"

// FenceFinalizer keeps a NodeFence until its taints are gone.
const FenceFinalizer = "fencing.belay.dev/release"

// BootOf returns the boot that a Node shows.
func BootOf(node *corev1.Node) fencing.Boot { return bootOf(node.Name, MachineOf(node)) }

// RecordedBoot is the boot that belay's attach/detach controller recorded on a VolumeAttachment.
func RecordedBoot(va *storagev1.VolumeAttachment) fencing.Boot {
	return bootOf(va.Spec.NodeName, RecordedMachine(va))
}

func bootOf(node string, m attachment.Machine) fencing.Boot {
	b := fencing.Boot{Node: node, NodeUID: m.NodeUID, Machine: fencing.MachineID(m.SystemUUID)}
	if identity.Of(m.BootID) != "" {
		b.ID = m.BootID
	}
	return b
}

// FenceOptedOut reports whether the owner of the node keeps it from being fenced, by belay's annotation or by medik8s' label.
func FenceOptedOut(node *corev1.Node) bool {
	value, ok := node.Annotations[FenceOptOutAnnotation]
	return ok && value != "false" || node.Labels[ExcludeLabel] == "true"
}

// FenceTaint is the value of the taints of a fence.
func FenceTaint(epoch int64) string { return FenceTaintPrefix + strconv.FormatInt(epoch, 10) }

// FenceFinished reports whether a fence is over, and only a record.
func FenceFinished(f *fencingv1.NodeFence) bool {
	return slices.Contains([]fencingv1.Phase{fencingv1.Phase(fencing.Released), fencingv1.Phase(fencing.Cancelled)}, f.Status.Phase) &&
		!slices.Contains(f.Finalizers, FenceFinalizer)
}

// FencedBoot is the boot that a NodeFence is about. The name of the object says nothing about it.
func FencedBoot(f *fencingv1.NodeFence) fencing.Boot {
	return fencing.Boot{Node: f.Spec.NodeName, NodeUID: f.Spec.NodeUID, ID: f.Spec.BootID, Machine: f.Spec.MachineID}
}

// FenceState returns the stored state of a NodeFence.
func FenceState(f *fencingv1.NodeFence) fencing.Fence {
	s := fencing.Fence{
		UID: string(f.UID), ResourceVersion: f.ResourceVersion,
		Boot:          FencedBoot(f),
		Epoch:         f.Spec.Epoch,
		Phase:         fencing.Phase(f.Status.Phase),
		ManualRelease: f.Spec.Release == fencingv1.ReleaseManual,
		Evidence:      provenBy(f),
		Deleting:      f.DeletionTimestamp != nil,
		Waits:         len(f.Status.Missing) > 0,
		BesideEarlier: apimeta.IsStatusConditionTrue(f.Status.Conditions, ConditionBesideEarlier),
		StorageProven: apimeta.IsStatusConditionTrue(f.Status.Conditions, ConditionStorageFenced),
		NodeDeleted:   f.Spec.Trigger == fencingv1.TriggerNodeDeleted,
	}
	if s.Phase == "" {
		s.Phase = fencing.Suspected
	}
	if n := len(f.Status.Intents); n > 0 {
		i := f.Status.Intents[n-1]
		s.Intent = fencing.Intent{Nonce: i.Nonce, NotAfter: i.NotAfter.Time, Renewal: i.Renewal}
	}
	if f.Status.Untainted != nil {
		s.Untainted = f.Status.Untainted.Time
	}
	if again := f.Status.SilentAgain; again != nil {
		s.SilentAgain = again.Time.Time
	}
	if x := f.Spec.Statement; x != nil {
		s.Statement = &fencing.Statement{By: x.By, Reason: x.Reason, Machine: fencing.MachineID(x.MachineID), Made: StatementMade(f), Expires: x.Expires.Time}
	}
	return s
}

// FenceRenewal is what the node's lease said when the node was last found silent. A lease that says something else is a sign of life.
func FenceRenewal(f *fencingv1.NodeFence) string {
	if again := f.Status.SilentAgain; again != nil {
		return again.Renewal
	}
	return f.Spec.LastRenewal
}

// StatementMade is when the statement was written: as it is in the record, or else as the API server recorded it; zero if it did not.
func StatementMade(f *fencingv1.NodeFence) time.Time {
	if r := f.Status.Statement; r != nil && f.Spec.Statement != nil && r.Expires.Equal(&f.Spec.Statement.Expires) {
		return r.Made.Time
	}
	return expiryWritten(f)
}

// expiryWritten is when the expiry of the statement was written. The API server keeps one time for all fields that a client manages, that of its
// latest write.
func expiryWritten(f *fencingv1.NodeFence) (at time.Time) {
	for _, m := range f.ManagedFields {
		var fields struct {
			Spec struct {
				Statement struct {
					Expires json.RawMessage `json:"f:expires"`
				} `json:"f:statement"`
			} `json:"f:spec"`
		}
		if m.Time == nil || m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil || fields.Spec.Statement.Expires == nil {
			continue
		}
		if at.IsZero() || m.Time.Time.Before(at) {
			at = m.Time.Time
		}
	}
	return at
}

// provenBy is the class of evidence with which the fence left Fencing.
func provenBy(f *fencingv1.NodeFence) fencing.Class {
	for _, c := range f.Status.Conditions {
		if c.Type == ConditionProven && c.Status == metav1.ConditionTrue {
			return fencing.Class(c.Reason)
		}
	}
	return ""
}

// Renewal is a text that changes with each renewal of a lease, also by another kubelet. It is the same for a lease from the API server and from a
// cache, which cuts the holder.
func Renewal(lease *coordinationv1.Lease) string {
	holder, at := "", ""
	if lease.Spec.HolderIdentity != nil {
		holder = Name(*lease.Spec.HolderIdentity)
	}
	if lease.Spec.RenewTime != nil {
		at = lease.Spec.RenewTime.UTC().Format(time.RFC3339Nano)
	}
	return at + " " + holder + " " + string(lease.UID)
}
