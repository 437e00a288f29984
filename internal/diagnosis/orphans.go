package diagnosis

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

// OrphanList is what attaches volumes without need, or without a VolumeAttachment.
type OrphanList struct {
	metav1.TypeMeta `json:",inline"`

	// Time is when the objects were read, by the clock of the API server.
	Time time.Time `json:"time"`
	// Verdict is the most severe of the items; Clear without any; Unknown if nothing may be called an orphan.
	Verdict Verdict `json:"verdict"`
	// Missing lists what has to be read before anything may be called an orphan, and was not: the list is empty then.
	Missing []Resource `json:"missing,omitempty"`
	// Items come most severe first, and the longest first of each severity.
	Items []Orphan `json:"items"`
	// Unread lists what could not be read, so that the list may lack it.
	Unread []Unread `json:"unread,omitempty"`
}

// The kinds of orphans.
const (
	// Unneeded: a VolumeAttachment for a node on which no pod needs the volume.
	Unneeded = "Unneeded"
	// WithoutAttachment: a node uses or reports a volume that has no VolumeAttachment there.
	WithoutAttachment = "NoVolumeAttachment"
	// Several: an exclusive volume has VolumeAttachments for several nodes.
	Several = "Several"
	// Shared: a volume that allows several nodes has VolumeAttachments for several: this is legal.
	Shared = "Shared"
)

// Orphan is a finding about a VolumeAttachment, a volume, or a node's lists.
type Orphan struct {
	Finding `json:",inline"`

	// Kind is "Unneeded", "NoVolumeAttachment", "Several" or "Shared".
	Kind string `json:"kind"`
}

// neededForOrphans are the resources of which each object has to be known: a pod, claim or volume that was not read may be what needs
// an attachment.
var neededForOrphans = []Resource{Pods, Claims, Volumes, Attachments}

// Orphans finds VolumeAttachments that no pod needs, volumes that nodes use or report without a VolumeAttachment, and exclusive
// volumes with several. With all it adds what is about to end by itself, and what is legal.
func Orphans(s *Snapshot, all bool) OrphanList {
	list := OrphanList{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: "OrphanList"}, Time: s.Now, Verdict: Clear, Items: []Orphan{}, Unread: s.Unread,
	}
	if list.Missing = s.missingForOrphans(); len(list.Missing) > 0 {
		list.Verdict = Unknown
		return list
	}
	x := newState(s)
	add := func(kind string, found ...Finding) {
		for i := range found {
			if f := &found[i]; all || stuck(f) {
				list.Items, list.Verdict = append(list.Items, Orphan{Finding: *f, Kind: kind}), worse(list.Verdict, f.Verdict)
			}
		}
	}
	for _, va := range x.Attachments {
		key, known := x.volumeOf(va)
		if !known {
			key = attachment.VolumeKey{Driver: va.Spec.Attacher}
		} else if len(x.usersOn(key, va.Spec.NodeName)) > 0 {
			continue
		}
		add(Unneeded, x.unneeded(key, va)...)
	}
	for _, key := range x.irregularKeys() {
		for _, f := range x.irregular(key) {
			if f.Reason == explain.TwoAttachments {
				add(Several, f)
				continue
			}
			add(WithoutAttachment, f)
		}
		if len(x.attached[key]) > 1 && x.shared(key) == decision.Yes {
			add(Shared, x.severalNodes(key))
		}
	}
	slices.SortStableFunc(list.Items, func(a, b Orphan) int {
		return cmp.Or(b.Verdict.Severity()-a.Verdict.Severity(), longest(a.Finding, b.Finding))
	})
	return list
}

// missingForOrphans returns the resources that were not read as a whole, without which nothing may be called an orphan.
func (s *Snapshot) missingForOrphans() (missing []Resource) {
	for _, r := range neededForOrphans {
		if !slices.Contains(s.Whole, r) || r == Pods && !s.AllNamespaces {
			missing = append(missing, r)
		}
	}
	return missing
}

// irregularKeys returns the volumes that have several VolumeAttachments or that a node lists, in order.
func (x *state) irregularKeys() []attachment.VolumeKey {
	keys := map[attachment.VolumeKey]bool{}
	for key, of := range x.attached {
		if len(of) > 1 {
			keys[key] = true
		}
	}
	for unique := range x.listed {
		if key, ok := keyOf(unique); ok {
			keys[key] = true
		}
	}
	return slices.SortedFunc(maps.Keys(keys), func(a, b attachment.VolumeKey) int {
		return cmp.Or(strings.Compare(a.Driver, b.Driver), strings.Compare(a.Handle, b.Handle))
	})
}

// severalNodes says that a volume is attached to several nodes, and may be.
func (x *state) severalNodes(key attachment.VolumeKey) Finding {
	v := x.describe(key, x.volume(key))
	var nodes []string
	for _, va := range x.attached[key] {
		nodes = append(nodes, va.Spec.NodeName)
	}
	slices.Sort(nodes)
	f := x.finding(nil, wait{reason: explain.SharedAttachments, detail: strings.Join(nodes, ", ")}, v, nil)
	f.Subject, f.Holders = Ref{Resource: Volumes, Name: v.PersistentVolume}, x.holders(key, "")
	return f
}
