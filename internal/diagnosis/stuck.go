package diagnosis

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
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

// Stuck finds what is blocked: what Explain says of each pod, claim, volume and VolumeAttachment, each finding once. Only objects of the
// namespace count, and the volumes of its claims; "" is for all, and for the fences whose evidence is contradicted. What has waited for
// less than olderThan is left out. A Node is left out: what waits for it has its own finding.
func Stuck(s *Snapshot, namespace string, olderThan time.Duration) StuckList {
	x := newState(s)
	list := StuckList{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "StuckList"}, Namespace: namespace, Time: s.Now, Verdict: Clear,
		Items: []Finding{}, Unread: s.Unread,
	}
	found := x.found(namespace)
	if namespace == "" {
		found = append(found, x.contradictedFences()...)
	}
	found = append(found, x.stuckOwners(namespace)...)
	for _, f := range untold(found) {
		if !stuck(&f) || f.Since != nil && s.Now.Sub(*f.Since) < olderThan {
			continue
		}
		list.Items, list.Verdict = append(list.Items, f), worse(list.Verdict, f.Verdict)
	}
	slices.SortStableFunc(list.Items, longest)
	if list.Verdict == Clear && slices.ContainsFunc(s.Unread, func(u Unread) bool { return slices.Contains(neededForStuck, u.Resource) }) {
		list.Verdict = Unknown
	}
	return list
}

// sameFinding tells findings apart: one may be found by way of the pod, of its claim and of its volume.
type sameFinding struct {
	subject      Ref
	reason       decision.Reason
	volume, node string
}

// found returns what is wrong with the objects of a namespace, or of all for "".
func (x *state) found(namespace string) (all []Finding) {
	seen := map[sameFinding]bool{}
	ask := func(r Ref) {
		found, _, _ := x.about(r) // of an object that the snapshot has there is no error
		for i := range found {
			f := &found[i]
			id := sameFinding{subject: f.Subject, reason: f.Reason}
			in := f.Subject.Namespace
			if v := f.Volume; v != nil {
				in = cmp.Or(in, v.Namespace)
				id.volume, id.node = cmp.Or(v.Driver+v.Handle, v.PersistentVolume, v.Claim), v.WantedOn
			}
			if seen[id] || namespace != "" && in != namespace {
				continue
			}
			seen[id] = true
			all = append(all, *f)
		}
	}
	for _, pod := range x.Pods {
		if x.within(namespace, pod.Namespace) {
			ask(podRef(pod))
		}
	}
	for _, claim := range x.Claims {
		if x.within(namespace, claim.Namespace) {
			ask(Ref{Resource: Claims, Namespace: claim.Namespace, Name: claim.Name})
		}
	}
	for _, pv := range x.Volumes {
		if !x.explained[pv] { // else its claim has all of it
			ask(Ref{Resource: Volumes, Name: pv.Name})
		}
	}
	for _, va := range x.Attachments {
		ask(Ref{Resource: Attachments, Name: va.Name})
	}
	return all
}

// untold drops findings about VolumeAttachments of which another one tells: that of a pod which waits for the volume, or, for the same reason,
// that of the node.
func untold(found []Finding) []Finding {
	told := map[string]bool{}
	for i := range found {
		switch f := &found[i]; {
		case !stuck(f):
		case f.Subject.Resource == Nodes:
			told[f.Subject.Name+" "+string(f.Reason)] = true
		case f.Subject.Resource == Pods && f.Volume != nil:
			for _, h := range f.Holders {
				told[h.Attachment] = true
			}
		}
	}
	return slices.DeleteFunc(found, func(f Finding) bool {
		return f.Subject.Resource == Attachments && (told[f.Subject.Name] || told[f.Holders[0].Node.Name+" "+string(f.Reason)])
	})
}

// within reports whether an object of the namespace was asked about, and may be named.
func (x *state) within(asked, namespace string) bool {
	return (asked == "" || namespace == asked) && x.mayName(namespace)
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
