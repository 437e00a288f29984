package inspect

import (
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/kube"
)

// fewMarks is how many finalizers, owners and tolerations of an object are kept: there are seldom more than three, and the API server sets no limit.
const fewMarks = 20

// cut applies kube.Name and decision.Text to what a client with few rights may write into an object. Every object that enters a snapshot passes it.
// The object is changed: nothing else has it yet.
func cut(object any) {
	switch o := object.(type) {
	case *corev1.Pod:
		cutMeta(&o.ObjectMeta)
		cutPod(o)
	case *corev1.PersistentVolumeClaim:
		cutMeta(&o.ObjectMeta)
		o.Spec.VolumeName = kube.Name(o.Spec.VolumeName)
		for i := range o.Status.Conditions {
			cutTexts(&o.Status.Conditions[i].Reason, &o.Status.Conditions[i].Message)
		}
	case *corev1.PersistentVolume:
		if ref := o.Spec.ClaimRef; ref != nil {
			cutRef(ref)
		}
		cutTexts(&o.Status.Message, &o.Status.Reason)
	case *corev1.Node:
		cutMeta(&o.ObjectMeta)
		for i := range o.Status.Conditions {
			cutTexts(&o.Status.Conditions[i].Reason, &o.Status.Conditions[i].Message)
		}
	case *storagev1.StorageClass:
		cutMeta(&o.ObjectMeta)
		cutTexts(&o.Provisioner)
		o.AllowedTopologies = first(o.AllowedTopologies)
	case *storagev1.CSIStorageCapacity:
		cutMeta(&o.ObjectMeta)
		cutName(&o.StorageClassName)
	case *coordinationv1.Lease:
		cutMeta(&o.ObjectMeta)
		cutName(o.Spec.HolderIdentity)
		cutName(o.Spec.PreferredHolder)
	case *corev1.Event:
		cutMeta(&o.ObjectMeta)
		cutEvent(o)
	}
}

func cutMeta(m *metav1.ObjectMeta) {
	m.Finalizers, m.OwnerReferences = first(m.Finalizers), first(m.OwnerReferences)
	for i := range m.OwnerReferences {
		o := &m.OwnerReferences[i]
		o.APIVersion, o.Kind, o.Name, o.UID = kube.Name(o.APIVersion), kube.Name(o.Kind), kube.Name(o.Name), kube.Name(o.UID)
	}
}

// first returns the first few. It copies them from many, which would stay in memory.
func first[T any](marks []T) []T {
	if len(marks) > fewMarks {
		return slices.Clone(marks[:fewMarks])
	}
	return marks
}

func cutPod(pod *corev1.Pod) {
	kube.CutPod(pod)
	cutTexts(&pod.Status.Reason, &pod.Status.Message)
	for i := range pod.Status.Conditions {
		cutTexts(&pod.Status.Conditions[i].Reason, &pod.Status.Conditions[i].Message)
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			cutState(&statuses[i].State)
			cutState(&statuses[i].LastTerminationState)
		}
	}
}

func cutState(s *corev1.ContainerState) {
	if w := s.Waiting; w != nil {
		cutTexts(&w.Reason, &w.Message)
	}
	if t := s.Terminated; t != nil {
		cutTexts(&t.Reason, &t.Message, &t.ContainerID)
	}
}

func cutEvent(e *corev1.Event) {
	cutRef(&e.InvolvedObject)
	if e.Related != nil {
		cutRef(e.Related)
	}
	for _, name := range []*string{&e.Reason, &e.Action, &e.Source.Component, &e.Source.Host, &e.ReportingController, &e.ReportingInstance} {
		cutName(name)
	}
	cutTexts(&e.Message)
}

func cutRef(r *corev1.ObjectReference) {
	for _, name := range []*string{&r.Kind, &r.Namespace, &r.Name, &r.APIVersion, &r.ResourceVersion, &r.FieldPath} {
		cutName(name)
	}
	r.UID = kube.Name(r.UID)
}

func cutName(name *string) {
	if name != nil {
		*name = kube.Name(*name)
	}
}

func cutTexts(texts ...*string) {
	for _, text := range texts {
		*text = decision.Text(*text)
	}
}

// only returns the annotations that a diagnosis reads, nil without any.
func only(annotations map[string]string, names ...string) map[string]string {
	var kept map[string]string
	for _, name := range names {
		if value, ok := annotations[name]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[name] = kube.Name(value)
		}
	}
	return kept
}
