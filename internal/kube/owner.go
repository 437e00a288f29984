package kube

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FieldManager is belay-controller's name in the managed fields of what it writes: the
// API server takes it from the user agent.
const FieldManager = "belay-controller"

// Writer is who wrote a field last. The time has whole seconds, and is that of the last
// change to any field that the writer holds in the object: it may be newer than the
// change in question.
type Writer struct {
	Manager string
	Time    time.Time
}

// ByHand tells of a field manager whether a person writes under that name, who does not
// go on and on as a controller does.
func ByHand(manager string) bool { return strings.HasPrefix(manager, "kubectl") }

// ReportWriter tells who changed status.volumesAttached of a Node last. An empty list
// has no writer. Works on a Node from the cache too.
func ReportWriter(node *corev1.Node) (Writer, bool) {
	return writerOf(node.ManagedFields, "f:status", "f:volumesAttached")
}

// AttachmentMaker tells who made the VolumeAttachment. It needs the whole object: the
// cache does not keep this.
func AttachmentMaker(va *storagev1.VolumeAttachment) (Writer, bool) {
	return writerOf(va.ManagedFields, "f:spec", "f:attacher")
}

// writerOf finds who holds the field below the section. Where several do, belay counts
// first, and then the last one.
func writerOf(entries []metav1.ManagedFieldsEntry, section, field string) (found Writer, ok bool) {
	for i := range entries {
		entry := &entries[i]
		if entry.FieldsType != keptEntry && !holds(entry, section, field) {
			continue
		}
		w := Writer{Manager: entry.Manager}
		if entry.Time != nil {
			w.Time = entry.Time.Time
		}
		if w.Manager == FieldManager {
			return w, true
		}
		if !ok || w.Time.After(found.Time) {
			found, ok = w, true
		}
	}
	return found, ok
}

func holds(entry *metav1.ManagedFieldsEntry, section, field string) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	raw := entry.FieldsV1.GetRawBytes()
	if !bytes.Contains(raw, []byte(field)) { // nearly all entries end here
		return false
	}
	var fields map[string]map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return false
	}
	_, ok := fields[section][field]
	return ok
}

// keptEntry marks the entry that the cache keeps of all: that of the report's writer.
const keptEntry = "report"

// keepReportWriter is the managed fields without all that the controller does not read.
func keepReportWriter(node *corev1.Node) []metav1.ManagedFieldsEntry {
	w, ok := ReportWriter(node)
	if !ok || w.Manager == FieldManager {
		return nil // the usual case costs nothing
	}
	return []metav1.ManagedFieldsEntry{{Manager: w.Manager, FieldsType: keptEntry, Time: &metav1.Time{Time: w.Time}}}
}
