package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// Unbound reports whether a claim has no volume, or not the one that it names.
func Unbound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName == "" || claim.Status.Phase == corev1.ClaimPending || claim.Status.Phase == corev1.ClaimLost
}

// claimsOf returns the claims of a pod that are missing, not bound, bound to nothing, or not the pod's.
func (x *state) claimsOf(pod *corev1.Pod) []Finding {
	var found []Finding
	for i := range pod.Spec.Volumes {
		name := kube.ClaimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		v := &Volume{Namespace: pod.Namespace, Claim: name, WantedOn: pod.Spec.NodeName}
		w := x.claimOfPod(pod, &pod.Spec.Volumes[i], v)
		if w.reason == "" {
			continue
		}
		f := x.finding(pod, w, v, nil)
		f.Facts = x.eventFacts(pod)
		found = append(found, f)
	}
	return found
}

// claimOfPod returns what a pod waits for at one of its claims; without a reason for nothing, or for the scheduler.
func (x *state) claimOfPod(pod *corev1.Pod, volume *corev1.Volume, v *Volume) wait {
	claim := x.claims[join(pod.Namespace, v.Claim)]
	since := pod.CreationTimestamp.Time
	switch {
	case claim == nil:
		return x.claimMissing(pod, volume, v.Claim)
	case volume.Ephemeral != nil && !kube.OwnsClaim(pod, claim):
		return wait{reason: explain.EphemeralClaimNotOwned, since: since, detail: ownersOf(claim)}
	case claim.DeletionTimestamp != nil && pod.Spec.NodeName == "":
		return x.claimEnding(claim)
	case claim.Spec.VolumeName == "" && pod.Spec.NodeName == "" && (refused(pod) || gated(pod)) && x.waitsForConsumer(claim):
		return wait{} // the scheduler chooses a node first, and has found none, or does not look for one
	case claim.Spec.VolumeName == "" && pod.Spec.NodeName != "" && x.delayed(claim):
		return wait{reason: explain.ClaimNotBound, since: since, failed: true, fill: func(s *explain.Situation) { s.Class, s.Cause = kube.ClassOf(claim), explain.NodeWithoutScheduler }}
	}
	v.PersistentVolume = claim.Spec.VolumeName
	if w := x.claimWait(claim, since); w.reason != explain.Incomplete {
		return w
	}
	return wait{} // volumesOfPod has what the pod's events say of it
}

// ownersOf says what a claim belongs to.
func ownersOf(claim *corev1.PersistentVolumeClaim) string {
	for _, o := range claim.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			return "it belongs to " + strings.ToLower(o.Kind) + "/" + o.Name
		}
	}
	return "it belongs to no pod"
}

// claimMissing returns what a pod waits for whose claim was not read. What the scheduler says of it counts where the claim may not be read.
func (x *state) claimMissing(pod *corev1.Pod, volume *corev1.Volume, name string) wait {
	w := wait{reason: explain.ClaimMissing, since: pod.CreationTimestamp.Time}
	w.fill = func(s *explain.Situation) { s.Ephemeral = volume.Ephemeral != nil }
	if volume.Ephemeral != nil {
		// The ephemeral volume controller: k/k v1.36.3 pkg/controller/volume/ephemeral/controller.go:245.
		if e := x.lastEvent(string(pod.UID), "FailedBinding"); e != nil {
			w.detail = w.says(x.foreign(strings.TrimPrefix(e.Message, fmt.Sprintf("ephemeral volume %s: ", volume.Name))))
		}
	}
	said := slices.ContainsFunc(reasonsOf(schedulerSays(pod)), func(text string) bool {
		found := missingClaim.FindStringSubmatch(text)
		return found != nil && found[1] == name
	})
	if !said && x.exists(Ref{Resource: Claims, Namespace: pod.Namespace, Name: name}) != decision.No {
		w.reason, w.detail = explain.Incomplete, "claim "+name+" could not be read"
	}
	return w
}

// claimWait returns what a claim waits for; without a reason if it is bound.
func (x *state) claimWait(claim *corev1.PersistentVolumeClaim, since time.Time) wait {
	pv := x.volumes[claim.Spec.VolumeName]
	switch {
	case claim.Spec.VolumeName == "":
		return x.unprovisioned(claim, since)
	case pv == nil && x.exists(Ref{Resource: Volumes, Name: claim.Spec.VolumeName}) != decision.No:
		if e := x.claimFailure(claim); e != nil && Unbound(claim) {
			w := wait{reason: explain.VolumeMismatch, since: since, failed: true, said: true, fill: func(s *explain.Situation) { s.Volume = claim.Spec.VolumeName }}
			w.detail = w.says(x.foreign(e.Message))
			return w
		}
		return wait{reason: explain.Incomplete, since: since, detail: "PersistentVolume " + claim.Spec.VolumeName + " could not be read"}
	case pv == nil:
		return wait{reason: explain.PersistentVolumeMissing, since: since}
	case Unbound(claim):
		return x.mismatch(claim, pv, since)
	}
	return wait{}
}

// class returns the StorageClass of a claim, nil if it was not read.
func (x *state) class(claim *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	name := kube.ClassOf(claim)
	i := slices.IndexFunc(x.Classes, func(c *storagev1.StorageClass) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return x.Classes[i]
}

// delayed reports whether a claim gets a volume only once the scheduler has chosen a node for a pod, which it has not.
func (x *state) delayed(claim *corev1.PersistentVolumeClaim) bool {
	class := x.class(claim)
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && claim.Annotations[kube.SelectedNodeAnnotation] == ""
}

// waitsForConsumer reports whether a claim is provisioned only after a pod that uses it has a node. Where its StorageClass was not read, events
// tell, and a failure says that there was a node.
func (x *state) waitsForConsumer(claim *corev1.PersistentVolumeClaim) bool {
	if x.class(claim) != nil {
		return x.delayed(claim)
	}
	return x.claimFailure(claim) == nil && x.lastEvent(string(claim.UID), "WaitForFirstConsumer", "WaitForPodScheduled") != nil
}

// claimFailures are the reasons of the warnings that say why a claim has no volume (k/k v1.36.3
// pkg/controller/volume/events/event.go and persistentvolume/pv_controller.go:471,503,551; the library of provisioners,
// sig-storage-lib-external-provisioner v11.0.1 controller/controller.go:1439,1524).
var claimFailures = []string{"ProvisioningFailed", "FailedBinding", "VolumeMismatch", "ProvisioningCleanupFailed", "ClaimLost", "ClaimMisbound"}

// claimFailure returns the newest warning that says why a claim has no volume. The controller repeats that it waits every 15 seconds, whatever
// has failed: that is no later news. Other programs warn about claims too: theirs do not count.
func (x *state) claimFailure(claim *corev1.PersistentVolumeClaim) *corev1.Event {
	for _, e := range x.events[string(claim.UID)] {
		if e.Reason == "ProvisioningSucceeded" {
			return nil
		}
		if e.Type == corev1.EventTypeWarning && slices.Contains(claimFailures, e.Reason) && (from(e, claimControllers) || ofProvisioner(e, x.provisioner(claim))) {
			return e
		}
	}
	return nil
}

// claimControllers emit events of claims in kube-controller-manager (k/k v1.30.14 pkg/controller/volume/persistentvolume/pv_controller_base.go:81, v1.37.2 :79).
var claimControllers = []string{"persistentvolume-controller"}

// provisioner is what provisions a claim; empty if that is unknown.
func (x *state) provisioner(claim *corev1.PersistentVolumeClaim) string {
	if class := x.class(claim); class != nil {
		return cmp.Or(claim.Annotations[ProvisionerAnnotation], class.Provisioner)
	}
	return claim.Annotations[ProvisionerAnnotation]
}

// ofProvisioner reports whether a provisioner emitted an event: its component is the provisioner's name, and behind it the host and a UID
// (sig-storage-lib-external-provisioner v11.0.1 controller/controller.go:635). Where the provisioner is unknown, it may be.
func ofProvisioner(e *corev1.Event, provisioner string) bool {
	return provisioner == "" || componentOf(e) == provisioner || strings.HasPrefix(componentOf(e), provisioner+"_")
}

// unprovisioned returns what a claim without a volume waits for.
func (x *state) unprovisioned(claim *corev1.PersistentVolumeClaim, since time.Time) wait {
	w := wait{reason: explain.ClaimNotBound, since: since}
	name, class, failure := kube.ClassOf(claim), x.class(claim), x.claimFailure(claim)
	provisioner := x.provisioner(claim)
	cause := explain.Cause("")
	w.fill = func(s *explain.Situation) {
		s.Class, s.AClass, s.Provisioner, s.Cause = name, x.onlyClass(), provisioner, cause
		s.SourceKind, s.SourceName, s.SourceNamespace = sourceOf(claim)
		s.ProvisionerPod = provisionerHost(failure, provisioner)
		s.ProvisionerNamespace = x.namespaceOf(s.ProvisionerPod)
	}
	switch {
	case name == "":
		w.failed, w.detail = true, x.withoutClass(claim)
		if cause = explain.NoClass; claim.Spec.StorageClassName != nil {
			cause = explain.NoDynamicClass
		}
	case class == nil && x.exists(Ref{Resource: StorageClasses, Name: name}) == decision.No:
		cause, w.failed, w.detail = explain.ClassMissing, true, fmt.Sprintf("the StorageClass %s does not exist", name)
	case class != nil && class.Provisioner == kube.NoProvisioner:
		w.reason, w.detail = explain.NoVolumeToBind, x.bindable(claim, class)
	case failure != nil && failure.Reason == "ProvisioningFailed":
		w.reason, w.failed = explain.ProvisioningFailed, true
		cause, w.detail = provisioningCause(provisioner, failure.Message)
		w.answer.Right = rightTo(provisioner, drivers.Create)
		w.detail = w.says(x.foreign(w.detail))
		if cause == explain.ClassMissing {
			w.reason = explain.ClaimNotBound
		}
	case failure != nil:
		w.failed, w.detail = true, w.says(x.foreign(failure.Message))
	default:
		if reason, detail := x.provisionerAbsent(claim, provisioner, since); reason != "" {
			w.reason, w.detail = reason, detail
		} else if e := x.lastEvent(string(claim.UID)); e != nil {
			w.detail = w.says(x.foreign(e.Message))
		}
	}
	return w
}

// sourceOf is what the volume of a claim is to be filled from.
func sourceOf(claim *corev1.PersistentVolumeClaim) (kind, name, namespace string) {
	switch ref := claim.Spec.DataSourceRef; {
	case ref != nil && ref.Namespace != nil:
		return strings.ToLower(ref.Kind), ref.Name, *ref.Namespace
	case ref != nil:
		return strings.ToLower(ref.Kind), ref.Name, claim.Namespace
	case claim.Spec.DataSource != nil:
		return strings.ToLower(claim.Spec.DataSource.Kind), claim.Spec.DataSource.Name, claim.Namespace
	}
	return "", "", ""
}

// provisionerHost is the host on which the provisioner runs that emitted an event, which is its pod unless it has the network of its node: the component is
// the name of the provisioner, the host and a UID (sig-storage-lib-external-provisioner v11.0.1 controller/controller.go:635).
func provisionerHost(e *corev1.Event, provisioner string) string {
	if e == nil || provisioner == "" {
		return ""
	}
	rest, ok := strings.CutPrefix(componentOf(e), provisioner+"_")
	host, _, _ := strings.Cut(rest, "_")
	if !ok {
		return ""
	}
	return host
}

func componentOf(e *corev1.Event) string {
	return cmp.Or(e.Source.Component, e.ReportingController)
}

// withoutClass says why a claim that names no StorageClass gets no volume.
func (x *state) withoutClass(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.StorageClassName != nil {
		return `its storageClassName is "", so nothing is provisioned, and no PersistentVolume without a class fits`
	}
	isDefault := func(c *storagev1.StorageClass) bool { return c.Annotations[explain.DefaultClass] == "true" }
	if !slices.Contains(x.Whole, StorageClasses) || slices.ContainsFunc(x.Classes, isDefault) {
		return "no persistent volumes available for this claim and no storage class is set"
	}
	if len(x.Classes) == 0 {
		return "no storage class is set, and the cluster has no StorageClass"
	}
	var names []string
	for _, c := range x.Classes {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return "no storage class is set, and no StorageClass is the default; there are " + few(names)
}

// onlyClass is the StorageClass whose driver is installed, if there is one alone: which of several a claim should have, only its owner knows.
func (x *state) onlyClass() string {
	var names []string
	for _, c := range x.Classes {
		if x.drivers[c.Provisioner] != nil {
			names = append(names, c.Name)
		}
	}
	if len(names) != 1 {
		return ""
	}
	return names[0]
}

// namespaceOf is that of the pod of a name, if one alone has it that was read and may be named; empty for none.
func (x *state) namespaceOf(name string) string {
	namespaces := map[string]bool{}
	for _, pod := range x.Pods {
		if pod.Name == name && name != "" {
			namespaces[pod.Namespace] = true
		}
	}
	for namespace := range namespaces {
		if len(namespaces) == 1 && x.mayName(namespace) {
			return namespace
		}
	}
	return ""
}

// few lists the first names.
func few(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// asked is when a provisioner that runs has reported something about a claim: it does so at once.
const asked = time.Minute

// provisionerAbsent reports that no component does what a claim waits for: the controller has asked the provisioner, which has said nothing. One
// that runs emits an event before it does anything else (sig-storage-lib-external-provisioner v11.0.1 controller/controller.go:1486).
func (x *state) provisionerAbsent(claim *corev1.PersistentVolumeClaim, provisioner string, since time.Time) (decision.Reason, string) {
	if claim.Annotations[ProvisionerAnnotation] == "" || x.Now.Sub(since) < asked || slices.ContainsFunc(x.Unread, func(u Unread) bool {
		return u.Resource == Events && (u.Namespace == "" || u.Namespace == claim.Namespace)
	}) {
		return "", ""
	}
	if slices.ContainsFunc(x.events[string(claim.UID)], func(e *corev1.Event) bool { return ofProvisioner(e, provisioner) }) {
		return "", ""
	}
	// An external provisioner's lease has its name (external-provisioner v5.3.0 cmd/csi-provisioner/csi-provisioner.go:672), as those of the
	// library have (sig-storage-lib-external-provisioner v11.0.1 controller/controller.go).
	lease := strings.ReplaceAll(provisioner, "/", "-")
	for _, l := range slices.Concat(x.Leases, x.OtherLeases) {
		if l.Name != lease {
			continue
		}
		if x.held(l) {
			return "", ""
		}
		return explain.ProvisionerNotRunning, "its lease was last renewed at " + stamp(renewed(l))
	}
	switch {
	case x.removed(provisioner):
		return explain.ProvisionerNotRunning, "it is not installed (no CSIDriver, CSINode or Lease names it)"
	case x.drivers[provisioner] != nil:
		return explain.ProvisionerNotRunning, "the driver is installed, and its provisioner holds no lease and has not reported anything about the claim"
	}
	return explain.ProvisionerNotRunning, "it has not reported anything about the claim"
}
