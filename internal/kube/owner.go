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

// FieldManager is the manager of belay-controller's writes in managed fields: the API
// server takes it from the user agent.
const FieldManager = "belay-controller"

// AttachesVolumes reports whether an attach/detach controller writes under this field manager: belay-controller, or
// kube-controller-manager. One that is part of another program, as in k3s, is not known by its name.
func AttachesVolumes(manager string) bool {
	return manager == FieldManager || manager == "kube-controller-manager"
}

// Writer is the last writer of a field. A client chooses its manager name freely, so the name proves nothing against a malicious
// client. Time has whole seconds and covers all fields that the manager owns in the object: it may be newer than the write in
// question.
type Writer struct {
	Manager string
	Time    time.Time
}

// IsKubectl reports whether kubectl, and so a person, writes under this field manager.
func IsKubectl(manager string) bool { return strings.HasPrefix(manager, "kubectl") }

// ReportWriter returns the last writer of a Node's status.volumesAttached. An empty list
// has none. It also works on a Node from the cache.
func ReportWriter(node *corev1.Node) (Writer, bool) {
	return writerOf(node.ManagedFields, "f:status", "f:volumesAttached")
}

// AttachmentCreator returns the creator of a VolumeAttachment. It needs the whole object:
// the cache drops managed fields.
func AttachmentCreator(va *storagev1.VolumeAttachment) (Writer, bool) {
	return writerOf(va.ManagedFields, "f:spec", "f:attacher")
}

// EventWriter returns the component that emitted the event.
func EventWriter(e *corev1.Event) (Writer, bool) {
	return writerOf(e.ManagedFields, "f:source", "f:component")
}

// writerOf returns the manager that owns the field below the section. If several own it,
// belay is preferred, then the one that wrote last.
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
	if !bytes.Contains(raw, []byte(field)) { // false for nearly all entries
		return false
	}
	var fields map[string]map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return false
	}
	_, ok := fields[section][field]
	return ok
}

// keptEntry marks the only entry that the cache keeps: that of the report's writer.
const keptEntry = "report"

// keepReportWriter returns the managed fields that the controller reads.
func keepReportWriter(node *corev1.Node) []metav1.ManagedFieldsEntry {
	w, ok := ReportWriter(node)
	if !ok || w.Manager == FieldManager {
		return nil // the usual case takes no memory
	}
	return []metav1.ManagedFieldsEntry{{Manager: w.Manager, FieldsType: keptEntry, Time: &metav1.Time{Time: w.Time}}}
}

// AttachmentTaker returns the last writer of the finalizers of a VolumeAttachment: the attacher, which adds its own before it calls
// the driver. Time is that of its last write outside of the status.
func AttachmentTaker(va *storagev1.VolumeAttachment) (Writer, bool) {
	return writerOf(va.ManagedFields, "f:metadata", "f:finalizers")
}

// AttachedWriter returns the last writer of status.attached of a VolumeAttachment. Time is that of its last write of the status.
func AttachedWriter(va *storagev1.VolumeAttachment) (Writer, bool) {
	return writerOf(va.ManagedFields, "f:status", "f:attached")
}
