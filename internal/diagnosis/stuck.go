package diagnosis

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// StuckList is what is blocked in a cluster or in a namespace, longest first.
type StuckList struct {
	metav1.TypeMeta `json:",inline"`

	// Namespace is empty for all.
	Namespace string `json:"namespace,omitempty"`
	// Time is when the objects were read, by the clock of the API server.
	Time time.Time `json:"time"`
	// Verdict is the most severe of the items; without any it is Clear, or Unknown if too little could be read.
	Verdict Verdict `json:"verdict"`
	// Items are findings about a pod, a claim, a volume, a VolumeAttachment, a StatefulSet, or the node of a fence each.
	Items []Finding `json:"items"`
	// Unread lists what could not be read, so that the list may lack it.
	Unread []Unread `json:"unread,omitempty"`
}

// Stuck finds what is blocked: pods that wait for volumes or stay Terminating because of their nodes, VolumeAttachments whose attach or
// detach fails or does not end, claims without a volume, claims and volumes that do not end or grow, and StatefulSets that cannot create a claim. Only objects of the namespace count, and the VolumeAttachments of its
// claims; "" is for all, and for the fences whose evidence is contradicted. What has waited for less than olderThan is left out.
func Stuck(s *Snapshot, namespace string, olderThan time.Duration) StuckList {
	x := newState(s)
	list := StuckList{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "StuckList"}, Namespace: namespace, Time: s.Now, Verdict: Clear,
		Items: []Finding{}, Unread: s.Unread,
	}
	listed := map[string]bool{} // a volume that cannot be deleted is attached, which is listed too
	add := func(found ...Finding) {
		for i := range found {
			f := &found[i]
			if !stuck(f) || f.Since != nil && s.Now.Sub(*f.Since) < olderThan {
				continue
			}
			if key := string(f.Reason) + " " + f.Subject.Namespace + " " + f.Subject.String(); f.Subject.Resource == Pods || !listed[key] {
				list.Items, list.Verdict = append(list.Items, *f), worse(list.Verdict, f.Verdict)
				listed[key] = true
			}
		}
	}
	pods := x.stuckPods(namespace)
	add(pods...)
	add(x.stuckAttachments(namespace, pods)...)
	add(x.stuckClaims(namespace)...)
	add(x.stuckVolumes(namespace)...)
	add(x.stuckOwners(namespace)...)
	if namespace == "" {
		add(x.contradictedFences()...)
	}
	slices.SortStableFunc(list.Items, longest)
	if list.Verdict == Clear && slices.ContainsFunc(s.Unread, func(u Unread) bool { return slices.Contains(neededForStuck, u.Resource) }) {
		list.Verdict = Unknown
	}
	return list
}

// within reports whether an object of the namespace was asked about, and may be named.
func (x *state) within(asked, namespace string) bool {
	return (asked == "" || namespace == asked) && x.mayName(namespace)
}

func (x *state) stuckClaims(namespace string) (found []Finding) {
	for _, claim := range x.Claims {
		if x.within(namespace, claim.Namespace) {
			found = append(found, x.stuckClaim(claim)...)
			found = append(found, x.endingOrGrowing(claim)...)
		}
	}
	return found
}

// stuckVolumes returns why volumes still exist that no claim uses any more.
func (x *state) stuckVolumes(namespace string) (found []Finding) {
	for _, pv := range x.Volumes {
		ref := pv.Spec.ClaimRef
		if (namespace == "" || ref != nil && ref.Namespace == namespace) && Ends(pv) {
			of, _ := x.ofPersistentVolume(pv)
			found = append(found, of...)
		}
	}
	return found
}

func (x *state) stuckPods(namespace string) (found []Finding) {
	for _, pod := range x.Pods {
		if x.within(namespace, pod.Namespace) {
			found = append(found, x.stuckPod(pod)...)
		}
	}
	return found
}

// stuckAttachments returns what VolumeAttachments wait for that are being deleted or fail, except those that a pod waits for.
func (x *state) stuckAttachments(namespace string, pods []Finding) (found []Finding) {
	shown := map[string]bool{}
	for i := range pods {
		if stuck(&pods[i]) && pods[i].Volume != nil {
			for _, h := range pods[i].Holders {
				shown[h.Attachment] = true
			}
		}
	}
	for _, va := range x.Attachments {
		if shown[va.Name] || va.DeletionTimestamp == nil && va.Status.AttachError == nil {
			continue
		}
		about, _ := x.ofAttachment(va)
		for _, f := range about {
			if namespace == "" || f.Volume != nil && f.Volume.Namespace == namespace {
				found = append(found, f)
			}
		}
	}
	return found
}

// neededForStuck are the resources without which nothing can be said not to wait.
var neededForStuck = []Resource{Pods, Claims, Volumes, Attachments, Nodes}

// stuck reports whether something waits, and does not end by itself soon.
func stuck(f *Finding) bool {
	return f.Verdict == Blocked || f.Verdict == Unsafe || f.Verdict == Unknown
}

func worse(a, b Verdict) Verdict {
	if b.Severity() > a.Severity() {
		return b
	}
	return a
}

// longest orders by how long something waits, then by severity and name.
func longest(a, b Finding) int {
	return cmp.Or(compareSince(a.Since, b.Since), b.Verdict.Severity()-a.Verdict.Severity(), cmp.Compare(a.Subject.Resource, b.Subject.Resource),
		strings.Compare(a.Subject.Namespace, b.Subject.Namespace), strings.Compare(a.Subject.Name, b.Subject.Name))
}

// stuckPod returns what a pod waits for, as far as a volume or the pod's node is the cause.
func (x *state) stuckPod(pod *corev1.Pod) []Finding {
	return slices.DeleteFunc(x.ofPod(pod), func(f Finding) bool {
		switch f.Reason {
		case explain.PodUnschedulable, explain.Scheduling:
			return true // for another cause than volumes
		case explain.PodTerminating:
			// It has its grace period: the API server stores when that ends. Volumes are not why one stays that has ended and has finalizers.
			return x.Now.Sub(pod.DeletionTimestamp.Time) < usual || kube.PodEnded(pod) && (len(pod.Finalizers) > 0 || len(x.keysOf(pod)) == 0)
		}
		return false
	})
}

// stuckClaim returns why a claim has no volume, if no pod shows it. A claim that was never provisioned may wait for its first pod,
// which is as it should be: it counts only after a failure.
func (x *state) stuckClaim(claim *corev1.PersistentVolumeClaim) []Finding {
	name := join(claim.Namespace, claim.Name)
	waits := func(pod *corev1.Pod) bool { return !kube.PodEnded(pod) && !mounted(pod) }
	switch {
	case slices.ContainsFunc(x.byClaim[name], waits): // the pod shows it
	case claim.Spec.VolumeName == "" && x.lastEvent(string(claim.UID)) == nil:
	case x.volumes[claim.Spec.VolumeName] != nil && !Unbound(claim):
	case claim.Spec.VolumeName != "" && x.volumes[claim.Spec.VolumeName] == nil && x.exists(Ref{Resource: Volumes, Name: claim.Spec.VolumeName}) != decision.No:
	default:
		found, _ := x.ofClaim(claim)
		return found
	}
	return nil
}
