package simulation

import (
	"encoding/json"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/kube"
)

// restoredID is the CSI node ID of a machine of another cluster, which a backup has recorded.
const restoredID = "another-clusters-id"

// restoreBackup has a restore tool create a VolumeAttachment of another cluster, with its finalizer and its recorded node ID, under the computed name
// or another one. The status is not restored: the API server drops it from a create. Nothing is called for it, until a person deletes it and states
// that the machine is gone. Then its volume is served.
func (s *sim) restoreBackup() {
	if s.broken != "" || s.tools.IntN(3) > 0 || s.settled() != "" || s.leftOver() != "" {
		return
	}
	d, m := s.disks[s.tools.IntN(len(s.disks))], s.machines[machineNames[s.tools.IntN(len(machineNames))]]
	slot, name := s.slotOf(d), attachmentName(d.handle, m.name)
	if _, exists := get[*storagev1.VolumeAttachment](s.api, name); exists || slot == nil || d.handle == fibre || !s.answers(d) {
		return
	}
	if s.tools.IntN(2) == 0 {
		name = "restored-" + m.name
		s.byHand[name] = d
	}
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{
		Name: name, Annotations: map[string]string{kube.NodeIDAnnotation: restoredID},
		ManagedFields: []metav1.ManagedFieldsEntry{managedBy("velero-server", kube.NodeIDAnnotation)},
	}}
	va.Spec.Attacher, va.Spec.NodeName, va.Spec.Source.PersistentVolumeName = d.key().Driver, m.name, &slot.volume
	if s.tools.IntN(3) > 0 {
		va.Finalizers = []string{kube.AttacherFinalizer(va.Spec.Attacher)}
	}
	made := s.mustCreate(va).(*storagev1.VolumeAttachment)
	s.say("a restore tool makes %s of %s at %s", short(name), d.handle, m)
	s.turns(12)
	s.declareGone(made)
	s.late(s.within(restoreTime), restoreTime)
}

// declareGone is a person who deletes a VolumeAttachment and states that its machine is gone, as kubectl belay declare-gone does.
func (s *sim) declareGone(made *storagev1.VolumeAttachment) {
	_ = s.api.remove(nil, nil, attachments, made.Name, nil)
	va, ok := get[*storagev1.VolumeAttachment](s.api, made.Name)
	if !ok || va.UID != made.UID {
		return
	}
	s.say("a person states that the machine of %s is gone", short(va.Name))
	change(s.api, va, func(va *storagev1.VolumeAttachment) {
		text, err := json.Marshal(kube.Declaration{
			UID: va.UID, ResourceVersion: va.ResourceVersion, NodeID: restoredID, By: "ada", Reason: "another cluster's", At: time.Now(),
		})
		if err != nil {
			panic(err)
		}
		va.Annotations[kube.DeclaredGoneAnnotation] = string(text)
		va.ManagedFields = append(va.ManagedFields, managedBy(kube.DeclarationManager, kube.DeclaredGoneAnnotation))
	})
}

func managedBy(manager, annotation string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:metadata":{"f:annotations":{"f:%s":{}}}}`, annotation)),
	}
}
