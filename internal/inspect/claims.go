package inspect

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// provisioning returns the calls that read what claims without a volume wait for: their StorageClasses, the capacity that the scheduler looks
// at, and the volumes that it could bind. There are none if all claims are bound, but for the classes of disks of nodes, which may provision no other. With all, everything else was read, except the events that are
// no warnings.
func (r *run) provisioning(ctx context.Context, namespace string, all bool) (calls []func()) {
	var classes []string
	for _, claim := range r.into.Claims {
		if claim.Spec.VolumeName == "" {
			classes = append(classes, kube.ClassOf(claim))
		}
	}
	unbound := len(classes) > 0
	classes = append(classes, r.classesOfDisks()...)
	switch {
	case len(classes) == 0:
	case all || slices.Contains(classes, ""): // which could be the default
		calls = append(calls, func() { r.classes(ctx) })
	default:
		calls = append(calls, func() { each(classes, func(name string) { r.class(ctx, name) }, func() { r.classes(ctx) }) })
	}
	if r.refused(explain.NotEnoughStorage) {
		calls = append(calls, func() { r.capacities(ctx) })
	}
	if all {
		return append(calls, r.otherEvents(ctx, namespace, unbound)...)
	}
	if r.refused(explain.NoVolumeToBind) && !r.fullPods() {
		calls = append(calls, func() { r.volumes(ctx) })
	}
	return calls
}

// classesOfDisks are the classes of claims that are bound to a disk or a path of a node, if the scheduler finds no node that has the volume of a pod.
func (r *run) classesOfDisks() (classes []string) {
	if !r.refused(explain.VolumeTopologyConflict) {
		return nil
	}
	for _, pv := range r.into.Volumes {
		if name := kube.ClassOfVolume(pv); name != "" && (pv.Spec.Local != nil || pv.Spec.HostPath != nil) && !slices.Contains(classes, name) {
			classes = append(classes, name)
		}
	}
	return classes
}

// otherEvents returns the calls that read events which are not among the warnings of a namespace: what controllers report about claims that wait, and
// why volumes of the namespace's claims cannot be deleted, which is in the default namespace (k8s.io/client-go v0.36.3 tools/record/event.go:491).
func (r *run) otherEvents(ctx context.Context, namespace string, unbound bool) (calls []func()) {
	if unbound {
		calls = append(calls, func() {
			r.events(ctx, namespace, fields.AndSelectors(fields.OneTermEqualSelector("involvedObject.kind", "PersistentVolumeClaim"), fields.OneTermEqualSelector("type", corev1.EventTypeNormal)))
		})
	}
	if namespace != "" && namespace != metav1.NamespaceDefault && slices.ContainsFunc(r.into.Volumes, func(pv *corev1.PersistentVolume) bool {
		return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Namespace == namespace && diagnosis.DeleteMayFail(pv)
	}) {
		calls = append(calls, func() { r.eventsWith(ctx, metav1.NamespaceDefault, explain.VolumeFailedDelete) })
	}
	return calls
}

// refused reports whether the scheduler refused a pod for one of the reasons.
func (r *run) refused(reasons ...decision.Reason) bool {
	return slices.ContainsFunc(r.into.Pods, func(pod *corev1.Pod) bool {
		return pod.Spec.NodeName == "" && slices.Contains(reasons, diagnosis.Unschedulable(pod))
	})
}

// placed reports whether which nodes have what a volume needs is part of the answer.
func (r *run) placed() bool {
	return r.refused(explain.VolumeTopologyConflict, explain.NotEnoughStorage, explain.NoVolumeToBind)
}

// fullPods reports whether everything is read because the scheduler found all nodes full.
func (r *run) fullPods() bool { return slices.ContainsFunc(r.into.Pods, full) }

// provisionerMissing reports whether a claim waits for a provisioner that has no CSIDriver object.
func (r *run) provisionerMissing() bool {
	return slices.ContainsFunc(r.into.Claims, func(claim *corev1.PersistentVolumeClaim) bool {
		name := claim.Annotations[diagnosis.ProvisionerAnnotation]
		return claim.Spec.VolumeName == "" && name != "" && !slices.ContainsFunc(r.into.Drivers, func(d *storagev1.CSIDriver) bool { return d.Name == name })
	})
}

// eventsOfClaims returns the calls that read the events of claims and volumes that are not bound, or that end or grow, and the pods that keep a
// claim.
func (r *run) eventsOfClaims(ctx context.Context) (calls []func()) {
	ending := map[string][]string{}
	for _, claim := range r.into.Claims {
		if diagnosis.Unbound(claim) || claim.DeletionTimestamp != nil || diagnosis.Growing(claim) {
			calls = append(calls, func() { r.eventsOf(ctx, claim.Namespace, string(claim.UID)) })
		}
		if claim.DeletionTimestamp != nil && r.into.MayName(claim.Namespace) {
			ending[claim.Namespace] = append(ending[claim.Namespace], claim.Name)
		}
	}
	for namespace, claims := range ending {
		if !slices.Contains(r.into.Absent, diagnosis.PodsIn(namespace)) {
			calls = append(calls, func() { r.podsUsing(ctx, namespace, claims) })
		}
	}
	for _, pv := range r.into.Volumes {
		if diagnosis.DeleteMayFail(pv) {
			calls = append(calls, func() { r.eventsOf(ctx, metav1.NamespaceDefault, string(pv.UID)) })
		}
	}
	return calls
}

func (r *run) class(ctx context.Context, name string) {
	get(ctx, r, diagnosis.Ref{Resource: diagnosis.StorageClasses, Name: name}, r.clients.StorageV1().StorageClasses().Get, keepClass)
}

func (r *run) classes(ctx context.Context) {
	listAll(ctx, r, diagnosis.StorageClasses, pagesOf[storagev1.StorageClass](r.clients.StorageV1().RESTClient(), diagnosis.StorageClasses, ""), keepClass)
}

// keepClass drops the parameters, which may be the driver's secrets.
func keepClass(s *diagnosis.Snapshot, class *storagev1.StorageClass) {
	kept := &storagev1.StorageClass{ObjectMeta: keepMeta(class.ObjectMeta), Provisioner: class.Provisioner, VolumeBindingMode: class.VolumeBindingMode, AllowedTopologies: class.AllowedTopologies}
	kept.Annotations = only(class.Annotations, explain.DefaultClass)
	s.Classes = append(s.Classes, kept)
}

func (r *run) capacities(ctx context.Context) {
	pages := pagesOf[storagev1.CSIStorageCapacity](r.clients.StorageV1().RESTClient(), diagnosis.Capacities, "")
	listAll(ctx, r, diagnosis.Capacities, pages, func(s *diagnosis.Snapshot, c *storagev1.CSIStorageCapacity) {
		c.ObjectMeta = keepMeta(c.ObjectMeta)
		s.Capacities = append(s.Capacities, c)
	})
}
