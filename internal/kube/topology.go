package kube

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"
	volumehelpers "k8s.io/component-helpers/storage/volume"
)

// ZoneLabels are the labels of a PersistentVolume that the scheduler compares with those of a node (k/k v1.36.3
// pkg/scheduler/framework/plugins/volumezone/volume_zone.go topologyLabels).
var ZoneLabels = []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion}

// zoneDelimiter separates several zones in such a label (k8s.io/component-helpers v0.36.3 storage/volume/helpers.go LabelZonesToSet, LabelMultiZoneDelimiter).
const zoneDelimiter = "__"

// Reaches reports whether a volume can be used on a node with these labels: by its node affinity, and by its zone labels, which count for nodes that
// have them.
func Reaches(pv *corev1.PersistentVolume, labels map[string]string) bool {
	if volumehelpers.CheckNodeAffinity(pv, labels) != nil {
		return false
	}
	return !slices.ContainsFunc(ZoneLabels, func(label string) bool {
		zones, there := pv.Labels[label], labels[label]
		return zones != "" && there != "" && !slices.Contains(strings.Split(zones, zoneDelimiter), there)
	})
}

// InTopologies reports whether a node with these labels is in one of the topologies; none are all.
func InTopologies(terms []corev1.TopologySelectorTerm, labels map[string]string) bool {
	fits := func(term corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, has := labels[e.Key]
			return !has || !slices.Contains(e.Values, value)
		})
	}
	return len(terms) == 0 || slices.ContainsFunc(terms, fits)
}

// InSegment reports whether a node with these labels is in the topology of a capacity; nil is none.
func InSegment(selector *metav1.LabelSelector, labels map[string]string) bool {
	if selector == nil {
		return false
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(k8slabels.Set(labels))
}

// NoProvisioner is the provisioner of StorageClasses whose volumes are created by hand.
const NoProvisioner = volumehelpers.NotSupportedProvisioner

// SelectedNodeAnnotation is set by the scheduler on a claim that is provisioned for a node.
const SelectedNodeAnnotation = volumehelpers.AnnSelectedNode

// ClassOf returns the name of a claim's StorageClass, or "".
func ClassOf(claim *corev1.PersistentVolumeClaim) string {
	return volumehelpers.GetPersistentVolumeClaimClass(claim)
}

// ClassOfVolume returns the name of a PersistentVolume's StorageClass, or "".
func ClassOfVolume(pv *corev1.PersistentVolume) string {
	return volumehelpers.GetPersistentVolumeClass(pv)
}

// OwnsClaim reports whether a claim is the one that was created for a generic ephemeral volume of the pod.
func OwnsClaim(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return ephemeral.VolumeIsForPod(pod, claim) == nil
}
