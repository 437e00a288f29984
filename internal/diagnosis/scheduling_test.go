package diagnosis

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// TestSchedulerTexts: each text is made by the lines that stand beside it, in pkg/scheduler/framework/plugins of kubernetes/kubernetes, around it
// pkg/scheduler/framework/types.go FitError.Error.
func TestSchedulerTexts(t *testing.T) {
	const none, other = " preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling.", explain.PodUnschedulable
	for _, one := range []struct {
		source, message string
		want            decision.Reason
	}{
		{"v1.30.14 volumebinding/binder.go:65", "0/5 nodes are available: 1 Insufficient memory, 4 node(s) had volume node affinity conflict." + none, explain.VolumeTopologyConflict},
		{"v1.35.0 volumebinding/binder.go:66", "0/5 nodes are available: 2 node(s) had untolerated taint {a: b}, 3 node(s) didn't match PersistentVolume's node affinity. no new claims to deallocate, preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling.", explain.VolumeTopologyConflict},
		{"v1.31.4 volumezone/volume_zone.go:58", "0/5 nodes are available: 5 node(s) had no available volume zone." + none, explain.VolumeTopologyConflict},
		{"v1.32.3 nodevolumelimits/csi.go:43, and volumebinding/binder.go:68", "0/5 nodes are available: 1 node(s) exceed max volume count, 4 node(s) had volume node affinity conflict." + none, explain.AttachLimitReached},
		{"v1.33.2 volumerestrictions/volume_restrictions.go:58", "0/5 nodes are available: 5 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode." + none, explain.ReadWriteOncePodInUse},
		{"v1.37.2 volumerestrictions/volume_restrictions.go:61", "0/5 nodes are available: 1 node(s) were unschedulable, 4 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod." + none, explain.ReadWriteOncePodInUse},
		{"v1.34.2 volumebinding/binder.go:69", "0/5 nodes are available: 2 Too many pods, 3 node(s) did not have enough free storage." + none, explain.NotEnoughStorage},
		{"v1.36.3 volumebinding/binder.go:64", "0/5 nodes are available: 5 node(s) didn't find available persistent volumes to bind." + none, explain.NoVolumeToBind},
		{"v1.30.14 volumebinding/volume_binding.go:161", `0/5 nodes are available: persistentvolumeclaim "data" is being deleted.` + none, explain.ClaimTerminating},
		{"v1.35.0 volumebinding/volume_binding.go:341", `0/5 nodes are available: persistentvolumeclaim "data" bound to non-existent persistentvolume "pv-1".` + none, explain.PersistentVolumeMissing},
		{"v1.33.2 volumebinding/binder.go:71", "0/5 nodes are available: 5 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)." + none, explain.PersistentVolumeMissing},
		{"v1.31.4 volumebinding/volume_binding.go:297", `0/5 nodes are available: waiting for ephemeral volume controller to create the persistentvolumeclaim "web-0-scratch".` + none, explain.ClaimMissing},
		{"v1.37.2 volumebinding/volume_binding.go, client-go's lister", `0/5 nodes are available: persistentvolumeclaim "data" not found. not found`, explain.ClaimMissing},
		{"component-helpers v0.36.3 storage/ephemeral/ephemeral.go:54", "0/5 nodes are available: PVC ns/web-0-scratch was not created for pod ns/web-0 (pod is not owner)." + none, explain.EphemeralClaimNotOwned},

		{"v1.36.3 volumebinding/binder.go:649", `running PreBind plugin "VolumeBinding": binding volumes: pv "pvc-1" node affinity doesn't match node "w1": no matching NodeSelectorTerms`, explain.VolumeTopologyConflict},

		// The same words in another place.
		{"a taint with such a name", "0/5 nodes are available: 5 node(s) had untolerated taint {node(s)-exceed-max-volume-count: }." + none, other},
		{"a taint with such a value", "0/5 nodes are available: 5 node(s) had untolerated taint {why: node(s) had volume node affinity conflict}." + none, other},
		{"preemption", "0/5 nodes are available: 5 Insufficient cpu. preemption: 0/5 nodes are available: 5 node(s) exceed max volume count.", other},
		{"preemption, behind other words", "0/5 nodes are available: 5 Insufficient cpu. no new claims to deallocate, preemption: 0/5 nodes are available: 1 Insufficient cpu, 4 node(s) had volume node affinity conflict.", other},
		{"the pod's own affinity: v1.36.3 nodeaffinity/node_affinity.go:66", "0/5 nodes are available: 5 node(s) didn't match Pod's node affinity/selector." + none, other},
		{"an in-tree disk: v1.36.3 volumerestrictions/volume_restrictions.go:58", "0/5 nodes are available: 5 node(s) had no available disk." + none, other},
		{"claims that are to be bound: v1.36.3 volumebinding/volume_binding.go:378", unboundText, other},
		{"a bind: v1.36.3 volumebinding/binder.go:501", preBindText, other},
		{"another scheduler", "volcano: node(s) exceed max volume count", other},
		{"a plugin that fails: v1.36.3 framework/runtime/framework.go:1118", `running "VolumeBinding" filter plugin: node(s) had volume node affinity conflict`, other},
		{"a resource claim: v1.36.3 dynamicresources/dynamicresources.go", `0/5 nodes are available: resourceclaim "data" not found.` + none, other},
		{"a part of a reason", "0/5 nodes are available: 5 node(s) did not have enough free storage classes." + none, other},
	} {
		if got := unschedulable(one.message); got != one.want {
			t.Errorf("%s: %q is %s, want %s", one.source, one.message, got, one.want)
		}
	}
}

// zone makes the volume one of a zone, and the nodes those of others.
func (s scene) zone(key, of string, nodes ...string) {
	s.Volumes[0].Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{of}}},
	}}}}
	for i, value := range nodes {
		s.Nodes[i].Labels = map[string]string{key: value}
	}
}

// disk makes the volume a disk of a node, of a class with the provisioner, or of one that does not exist.
func (s scene) disk(provisioner string) {
	s.Volumes[0].Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/disks/ssd0"}}
	s.Attachments, s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, nil, nil
	s.Claims[0].Spec.StorageClassName = new("local")
	if provisioner != "" {
		s.Snapshot.Classes = append(s.Classes, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: provisioner})
	}
}

// TestWhereVolumesCanBeUsed says where, which nodes are there, and why they do not take the pod.
func TestWhereVolumesCanBeUsed(t *testing.T) {
	const zone = corev1.LabelTopologyZone
	quantity := func(text string) *resource.Quantity { q := resource.MustParse(text); return &q }
	free := func(s scene, name, node, size string) {
		s.Snapshot.Capacities = append(s.Snapshot.Capacities, &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Name: name}, StorageClassName: "fast", Capacity: quantity("900Gi"), MaximumVolumeSize: quantity(size),
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}},
		})
	}
	waits := func(s scene, message string) { s.waiter.Spec.NodeName = ""; s.schedules(message) }
	asks := func(s scene, message string) {
		s.unbound()
		s.delays("")
		waits(s, message)
		s.Claims[0].Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")}
		for _, n := range s.Nodes {
			n.Labels = map[string]string{corev1.LabelHostname: n.Name, zone: "zone-" + n.Name}
		}
	}
	for name, one := range map[string]struct {
		make   func(scene)
		reason decision.Reason
		want   string
	}{
		"no node": {func(s scene) {
			s.zone(zone, "c", "a", "b")
			waits(s, "0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
		}, explain.VolumeTopologyConflict, "only where topology.kubernetes.io/zone is c; the nodes have a, b"},
		"one node, which is full": {func(s scene) {
			s.zone(zone, "b", "a", "b")
			waits(s, "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match PersistentVolume's node affinity.")
		}, explain.VolumeTopologyConflict, "zone is b: b, where the pod does not fit: Insufficient cpu"},
		"the label of the volume": {func(s scene) {
			s.zone(zone, "b", "a", "a")
			s.Volumes[0].Spec.NodeAffinity, s.Volumes[0].Labels = nil, map[string]string{zone: "b__c"}
			waits(s, "0/2 nodes are available: 2 node(s) had no available volume zone.")
		}, explain.VolumeTopologyConflict, "only where topology.kubernetes.io/zone is b__c; the nodes have a"},
		"what the scheduler said, without its event": {func(s scene) {
			s.zone(zone, "c", "a", "b")
			waits(s, "0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
		}, explain.VolumeTopologyConflict, "FailedScheduling: 0/2 nodes are available: 2 node(s) had volume node affinity conflict."},
		"the nodes could not be read": {func(s scene) {
			s.zone(zone, "c")
			s.Whole, s.Nodes = []Resource{Pods, Claims, Volumes}, nil
			waits(s, "0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
		}, explain.VolumeTopologyConflict, "only where topology.kubernetes.io/zone is c"},
		"the node of a local volume is gone": {func(s scene) {
			s.zone(corev1.LabelHostname, "old", "a", "b")
			waits(s, "0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
		}, explain.VolumeNodeGone, "is on node old, which does not exist"},
		"the node of a disk is gone, and nothing makes another one": {
			func(s scene) {
				s.zone(corev1.LabelHostname, "old", "a", "b")
				s.disk(kube.NoProvisioner)
				waits(s, "0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
			}, explain.VolumeNodeGone,
			"first create a local PersistentVolume on another node: StorageClass local makes none.|kubectl get pv pv -o yaml|leave out claimRef|Then delete the claim",
		},
		"the node of a disk is gone, and its class too": {func(s scene) {
			s.zone(corev1.LabelHostname, "old", "a", "b")
			s.disk("")
			s.Whole = append(s.Whole, StorageClasses)
			waits(s, "0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
		}, explain.VolumeNodeGone, "first create a local PersistentVolume on another node: StorageClass local makes none."},
		"the node of a disk is gone, and its class was not read": {func(s scene) {
			s.zone(corev1.LabelHostname, "old", "a", "b")
			s.disk("")
			waits(s, "0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
		}, explain.VolumeNodeGone, "first create a local PersistentVolume on another node, unless StorageClass local makes one."},
		"the node of a disk is gone, and a provisioner makes another one": {func(s scene) {
			s.zone(corev1.LabelHostname, "old", "a", "b")
			s.disk("rancher.io/local-path")
			waits(s, "0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
		}, explain.VolumeNodeGone, "delete the claim, then the pod. A StatefulSet creates both again, with an empty volume"},
		"the node of a driver's volume is gone": {func(s scene) {
			s.zone("topology.topolvm.io/node", "old", "a", "b")
			waits(s, "0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.")
		}, explain.VolumeNodeGone, "is on node old"},
		"the pod was put on another node": {func(s scene) {
			s.Attachments, s.Pods, s.a.Status.VolumesInUse, s.a.Status.VolumesAttached = nil, s.Pods[1:], nil, nil
			s.zone(zone, "a", "a", "b")
		}, explain.VolumeTopologyConflict, "is on node b, which does not reach its volume"},
		"too little storage": {func(s scene) {
			asks(s, "0/2 nodes are available: 2 node(s) did not have enough free storage.")
			free(s, "1", "a", "5Gi")
			free(s, "2", "b", "7Gi")
			s.Whole = append(s.Whole, Capacities)
		}, explain.NotEnoughStorage, "asks for 100Gi of StorageClass fast, and the largest volume that its driver has room for is 7Gi on b"},
		"no storage is reported": {func(s scene) {
			asks(s, "0/2 nodes are available: 2 node(s) did not have enough free storage.")
			s.Whole = append(s.Whole, Capacities)
		}, explain.NotEnoughStorage, "no CSIStorageCapacity has this class"},
		"the capacities could not be read": {func(s scene) { asks(s, "0/2 nodes are available: 2 node(s) did not have enough free storage.") }, explain.NotEnoughStorage, "enough free storage"},
		"the class allows other zones": {func(s scene) {
			asks(s, "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.")
			s.Classes[0].AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: []string{"zone-x", "zone-y"}}}}}
		}, explain.NoVolumeToBind, "provisions only where topology.kubernetes.io/zone is one of zone-x, zone-y: no node is there"},
		"volumes by hand": {func(s scene) {
			pv := s.Volumes[0]
			asks(s, "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.")
			s.Classes[0].Provisioner = kube.NoProvisioner
			pv.Spec.ClaimRef, pv.Spec.StorageClassName, pv.Spec.Capacity = nil, "fast", corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}
			s.Volumes = append(s.Volumes, pv)
		}, explain.NoVolumeToBind, "of the 1 PersistentVolumes of that class, 0 are free and large enough, 1 are free and too small"},
		"the claim is being deleted": {func(s scene) {
			s.Claims[0].DeletionTimestamp, s.Claims[0].Finalizers = &metav1.Time{Time: s.Now.Add(-time.Hour)}, []string{claimProtection}
			waits(s, `0/2 nodes are available: persistentvolumeclaim "claim" is being deleted.`)
		}, explain.ClaimTerminating, "kubernetes.io/pvc-protection keeps it while pod holder (Running) uses it"},
		"the claim may not be read, and the scheduler knows": {func(s scene) {
			s.Claims, s.Whole = nil, nil
			waits(s, `0/2 nodes are available: persistentvolumeclaim "claim" not found.`)
		}, explain.ClaimMissing, "does not exist"},
		"the claim may not be read, and another does not exist": {func(s scene) {
			s.Claims, s.Whole = nil, nil
			waits(s, `0/2 nodes are available: persistentvolumeclaim "claim-2" not found.`)
		}, explain.Incomplete, "could not be read"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			one.make(s)
			e, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
			if err != nil || e.Reason != one.reason || !says(&e, one.want) {
				t.Errorf("%s: %s (%v), want %s and %q", e.Reason, e.Summary, err, one.reason, one.want)
			}
		})
	}
}
