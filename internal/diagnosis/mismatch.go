package diagnosis

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// mismatch explains why a claim is not bound to the PersistentVolume that it names. The controller compares the same, in this order (k/k v1.36.3
// pkg/controller/volume/persistentvolume/pv_controller.go:436 to :482).
func (x *state) mismatch(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, since time.Time) wait {
	cause, detail := x.boundElsewhere(claim, pv)
	if detail == "" {
		cause, detail = differs(claim, pv)
	}
	if e := x.claimFailure(claim); detail == "" && e != nil {
		detail = x.foreign(e.Message)
	}
	if detail == "" {
		return wait{reason: explain.ClaimNotBound, since: since} // what is left is that the controller binds it
	}
	return wait{reason: explain.VolumeMismatch, detail: detail, since: since, failed: true, fill: func(s *explain.Situation) {
		s.Class, s.Cause, s.Volume = kube.ClassOf(claim), cause, pv.Name
	}}
}

// boundElsewhere says that a volume is bound to another claim than the one that names it.
func (x *state) boundElsewhere(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (explain.Cause, string) {
	ref := pv.Spec.ClaimRef
	switch {
	case ref == nil:
		return "", ""
	case ref.Namespace == claim.Namespace && ref.Name == claim.Name:
		if ref.UID != "" && claim.UID != "" && ref.UID != claim.UID {
			return explain.BoundToDeleted, "it is bound to an earlier claim of this name, which was deleted"
		}
		return "", ""
	case !x.mayName(ref.Namespace):
		return explain.BoundToAnother, "it is bound to another claim, in a namespace that you may not read"
	case ref.UID == "": // the controller writes it when it binds
		return explain.BoundToAnother, "its claimRef reserves it for another claim, " + ref.Namespace + "/" + ref.Name
	case x.claims[join(ref.Namespace, ref.Name)] == nil && x.exists(Ref{Resource: Claims, Namespace: ref.Namespace, Name: ref.Name}) == decision.No:
		return explain.BoundToDeleted, "it is bound to another claim, " + ref.Namespace + "/" + ref.Name + ", which was deleted"
	}
	return explain.BoundToAnother, "it is bound to another claim, " + ref.Namespace + "/" + ref.Name
}

// differs says in what a volume differs from a claim that names it (k/k v1.36.3 pkg/controller/volume/persistentvolume/pv_controller.go:260
// checkVolumeSatisfyClaim).
func differs(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (explain.Cause, string) {
	size, has := wanted(claim), pv.Spec.Capacity[corev1.ResourceStorage]
	lacks := func(m corev1.PersistentVolumeAccessMode) bool { return !slices.Contains(pv.Spec.AccessModes, m) }
	class, attributes := kube.ClassOfVolume(pv), text(pv.Spec.VolumeAttributesClassName)
	switch {
	case pv.DeletionTimestamp != nil:
		return "", "it is being deleted"
	case !has.IsZero() && has.Cmp(size) < 0:
		return "", fmt.Sprintf("it has %s, and the claim asks for %s", has.String(), size.String())
	case class != kube.ClassOf(claim):
		return explain.OtherClass, fmt.Sprintf("its storageClassName is %q, and that of the claim %q", class, kube.ClassOf(claim))
	case attributes != text(claim.Spec.VolumeAttributesClassName):
		return "", fmt.Sprintf("its volumeAttributesClassName is %q, and that of the claim %q", attributes, text(claim.Spec.VolumeAttributesClassName))
	case modeOf(pv.Spec.VolumeMode) != modeOf(claim.Spec.VolumeMode):
		return "", fmt.Sprintf("its volumeMode is %s, and that of the claim %s", modeOf(pv.Spec.VolumeMode), modeOf(claim.Spec.VolumeMode))
	case slices.ContainsFunc(claim.Spec.AccessModes, lacks):
		return "", fmt.Sprintf("its access modes are %v, and the claim asks for %v", pv.Spec.AccessModes, claim.Spec.AccessModes)
	}
	return "", ""
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// modeOf is the volumeMode, which is Filesystem without one.
func modeOf(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}
