// Package golden compares what `kubectl belay explain` prints in a lab with stored texts, and stores what it was printed from, so
// that the text can be made again without the lab.
package golden

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
)

// placeholders replace what differs between two runs. Names are numbered in the order of their appearance.
var placeholders = []struct {
	pattern  *regexp.Regexp
	word     string
	numbered bool
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[ ]?\+\d\d:?\d\d)?( UTC)?`), "TIME", false},
	{regexp.MustCompile(`pvc-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "PV", true},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "UID", true},
	{regexp.MustCompile(`csi-[0-9a-f]{64}`), "VA", true},
	{regexp.MustCompile(`lab(disk|share)-\d+-[0-9a-f]{10}`), "HANDLE", true},
	{regexp.MustCompile(`\b(\d+d)?(\d+h)?(\d+m)?(\d+s)? ago\b`), "DURATION ago", false},
	{regexp.MustCompile(`\bfor (\d+(\.\d+)?(d|h|ms|m|s))+`), "for DURATION", false},
	// What belay's node agent says first is not what it says after a while.
	{regexp.MustCompile(`Unable to attach or mount volumes: (timed out after 20s, and waiting again: )?(waiting( since TIME)?: )?`), "Unable to attach or mount volumes: ", false},
	// The other nodes of a lab come and go with its other situations.
	{regexp.MustCompile(`\d+/\d+ nodes are available: .*? \(([A-Z]\w+|DURATION ago)\)`), "0/N nodes are available: ... ($1)", false},
	{regexp.MustCompile(`/[^ "]*/labs/[^ ":]*`), "PATH", false},
	{regexp.MustCompile(`kubectl logs -n (\S+) \S+`), "kubectl logs -n $1 POD", false},
	{regexp.MustCompile(`([a-z]+(?:-[a-z]+)*)-[0-9a-f]{8,10}-[a-z0-9]{5}\b`), "$1-HASH", true},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS", false},
}

// Normalize replaces times, durations and generated names.
func Normalize(text string) string {
	for _, p := range placeholders {
		if !p.numbered {
			text = p.pattern.ReplaceAllString(text, p.word)
			continue
		}
		var seen []string
		text = p.pattern.ReplaceAllStringFunc(text, func(found string) string {
			if !slices.Contains(seen, found) {
				seen = append(seen, found)
			}
			return fmt.Sprintf("%s-%d", p.pattern.ReplaceAllString(found, p.word), 1+slices.Index(seen, found))
		})
	}
	return text
}

// Stored is a snapshot with the object that was asked about.
type Stored struct {
	Subject  diagnosis.Ref       `json:"subject"`
	Snapshot *diagnosis.Snapshot `json:"snapshot"`
}

// Write stores the snapshot of a situation without what an explanation of it does not look at.
func Write(file, situation string, s Stored) error {
	strip(s, situation)
	document, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return fmt.Errorf("encode the snapshot: %w", err)
	}
	return os.WriteFile(file, append(document, '\n'), 0o600)
}

// Read reads what Write has stored.
func Read(file string) (Stored, error) {
	var s Stored
	document, err := os.ReadFile(file)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(document, &s); err != nil {
		return s, fmt.Errorf("decode %s: %w", file, err)
	}
	return s, nil
}

// strip drops the objects of other situations in the same lab, and the fields that make most of a Node. The names of a situation's
// objects begin with its own.
func strip(stored Stored, situation string) {
	s := stored.Snapshot
	foreign := func(name string) bool { return !strings.HasPrefix(name, situation) }
	s.Pods = slices.DeleteFunc(s.Pods, func(p *corev1.Pod) bool { return foreign(p.Name) })
	s.Claims = slices.DeleteFunc(s.Claims, func(c *corev1.PersistentVolumeClaim) bool { return foreign(c.Name) })
	s.Volumes = slices.DeleteFunc(s.Volumes, func(v *corev1.PersistentVolume) bool {
		return foreign(v.Name) && (v.Spec.ClaimRef == nil || foreign(v.Spec.ClaimRef.Name))
	})
	volumes := map[string]bool{}
	for _, v := range s.Volumes {
		if key, ok := kube.KeyOfVolume(v); ok {
			volumes[v.Name], volumes[kube.UniqueVolumeName(key.Driver, key.Handle)] = true, true
		}
	}
	s.Attachments = slices.DeleteFunc(s.Attachments, func(va *storagev1.VolumeAttachment) bool {
		return !volumes[kube.SourceName(va)] && va.Name != stored.Subject.Name
	})
	s.Events = slices.DeleteFunc(s.Events, func(e *corev1.Event) bool { return foreign(e.InvolvedObject.Name) })
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n *corev1.Node) bool { return !concerns(s, n.Name, stored.Subject) })
	s.CSINodes = slices.DeleteFunc(s.CSINodes, func(n *storagev1.CSINode) bool { return !concerns(s, n.Name, stored.Subject) })
	s.Drivers = slices.DeleteFunc(s.Drivers, func(d *storagev1.CSIDriver) bool { return d.Name == "lablocal.belay.dev" })
	s.Leases = slices.DeleteFunc(s.Leases, func(l *coordinationv1.Lease) bool {
		return l.Namespace == corev1.NamespaceNodeLease && !slices.ContainsFunc(s.Nodes, func(n *corev1.Node) bool { return n.Name == l.Name })
	})
	for _, v := range s.Volumes {
		v.ManagedFields = nil
	}
	for _, c := range s.Claims {
		c.ManagedFields = nil
	}
	for _, n := range s.Nodes {
		stripNode(n, volumes)
	}
}

func stripNode(n *corev1.Node, volumes map[string]bool) {
	info, lists := n.Status.NodeInfo, n.Status
	n.Labels, n.ManagedFields = nil, nil
	n.Status = corev1.NodeStatus{
		NodeInfo:        corev1.NodeSystemInfo{MachineID: info.MachineID, SystemUUID: info.SystemUUID, BootID: info.BootID},
		VolumesAttached: slices.DeleteFunc(lists.VolumesAttached, func(v corev1.AttachedVolume) bool { return !volumes[string(v.Name)] }),
		VolumesInUse:    slices.DeleteFunc(lists.VolumesInUse, func(v corev1.UniqueVolumeName) bool { return !volumes[string(v)] }),
	}
	for _, c := range lists.Conditions {
		if c.Type == corev1.NodeReady {
			n.Status.Conditions = []corev1.NodeCondition{c}
		}
	}
}

// ReadSnapshot reads what a command has dumped.
func ReadSnapshot(file string) (*diagnosis.Snapshot, error) {
	document, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var s diagnosis.Snapshot
	if err := json.Unmarshal(document, &s); err != nil {
		return nil, fmt.Errorf("decode %s: %w", file, err)
	}
	return &s, nil
}

// concerns reports whether a node has one of the objects of a situation, or is what was asked about.
func concerns(s *diagnosis.Snapshot, node string, subject diagnosis.Ref) bool {
	return subject.Name == node || slices.ContainsFunc(s.Pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == node }) ||
		slices.ContainsFunc(s.Attachments, func(va *storagev1.VolumeAttachment) bool { return va.Spec.NodeName == node })
}
