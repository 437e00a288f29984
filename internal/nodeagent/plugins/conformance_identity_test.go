package plugins

import (
	"encoding/json"
	"maps"
	"math"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/wait"
)

const (
	testedDriver = "com.example.csi.driver1"
	otherDriver  = "net.example.storage.other-driver"
)

func entry(driver, id string, keys ...string) storagev1.CSINodeDriver {
	return storagev1.CSINodeDriver{Name: driver, NodeID: id, TopologyKeys: keys}
}

func limited(d storagev1.CSINodeDriver, limit int32) storagev1.CSINodeDriver {
	d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
	return d
}

// before puts into Node and CSINode what earlier plugins left. A CSINode without an owner of its own is the Node's.
func (w *world) before(k known, owner types.UID) {
	w.Helper()
	node := w.node()
	node.Labels = k.Labels
	node.Annotations = map[string]string{kube.ManagedAttachAnnotation: "true"}
	if k.IDs != nil {
		raw, err := json.Marshal(k.IDs)
		must(w, err)
		node.Annotations[kube.CSINodeIDsAnnotation] = string(raw)
	}
	node, err := w.admin.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{})
	must(w, err)
	if k.Drivers == nil && owner == "" {
		return // and no CSINode
	}
	if owner == "" {
		owner = node.UID
	}
	_, err = w.admin.StorageV1().CSINodes().Create(w.ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{
			Name:            w.name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: w.name, UID: owner}},
			Annotations:     map[string]string{migratedPluginsAnnotation: migratedPlugins},
		},
		Spec: storagev1.CSINodeSpec{Drivers: k.Drivers},
	}, metav1.CreateOptions{})
	must(w, err)
}

// TestInstallCSIDriver has the cases of upstream's test of this name: the content of Node and CSINode after a driver
// was registered. A driver that cannot be registered gets the error, and the content stays as it was.
func TestInstallCSIDriver(t *testing.T) {
	zone, rack := "com.example.csi/zone", "net.example.storage/rack"
	id, otherID := "com.example.csi/csi-node1", "net.example.storage/test-node"
	other := known{
		IDs: map[string]string{otherDriver: otherID}, Labels: map[string]string{rack: "rack1"},
		Drivers: []storagev1.CSINodeDriver{entry(otherDriver, otherID, rack)},
	}
	same := known{
		IDs: map[string]string{testedDriver: id}, Labels: map[string]string{zone: "zoneA"},
		Drivers: []storagev1.CSINodeDriver{entry(testedDriver, id, zone)},
	}
	plain := known{IDs: same.IDs, Drivers: []storagev1.CSINodeDriver{entry(testedDriver, id)}}
	with := func(d storagev1.CSINodeDriver) known {
		return known{IDs: map[string]string{testedDriver: d.NodeID}, Drivers: []storagev1.CSINodeDriver{d}}
	}
	tests := map[string]struct {
		before known
		owner  types.UID // of the CSINode; empty: the Node
		id     string
		zone   map[string]string
		limit  int64
		want   known
		fails  string
	}{
		"empty node": {id: id, zone: map[string]string{zone: "zoneA"}, want: same},
		"pre-existing node info from the same driver": {
			before: same, id: id, zone: map[string]string{zone: "zoneA"}, want: same,
		},
		"pre-existing node info from the same driver, but without topology info": {
			before: plain, id: id, zone: map[string]string{zone: "zoneA"}, want: same,
		},
		"pre-existing node info from different driver": {
			before: other, id: id, zone: map[string]string{zone: "zoneA"}, want: known{
				IDs:     map[string]string{testedDriver: id, otherDriver: otherID},
				Labels:  map[string]string{zone: "zoneA", rack: "rack1"},
				Drivers: []storagev1.CSINodeDriver{other.Drivers[0], same.Drivers[0]},
			},
		},
		"pre-existing node info from the same driver, but different node ID and topology values; labels should conflict": {
			before: same, id: id, zone: map[string]string{zone: "other-zone"}, want: same,
			fails: `detected topology value collision: driver reported "` + zone + `":"other-zone" but existing label is "` + zone + `":"zoneA"`,
		},
		"pre-existing node info from the same driver, but different node ID and topology keys; new labels should be added": {
			before: same, id: "com.example.csi/other-node", zone: map[string]string{"com.example.csi/rack": "rack1"}, want: known{
				IDs:     map[string]string{testedDriver: "com.example.csi/other-node"},
				Labels:  map[string]string{zone: "zoneA", "com.example.csi/rack": "rack1"},
				Drivers: []storagev1.CSINodeDriver{entry(testedDriver, "com.example.csi/other-node", "com.example.csi/rack")},
			},
		},
		"pre-existing node info, but owned by previous node": {owner: "an-earlier-node", id: id, want: plain},
		"pre-existing node info with driver, but owned by previous node": {
			before: known{Drivers: []storagev1.CSINodeDriver{entry("com.example.csi.old-driver", "com.example.csi/csi-node2")}},
			owner:  "an-earlier-node", id: id, want: plain,
		},
		"nil topology, empty node": {id: id, want: plain},
		"nil topology, pre-existing node info from the same driver": {
			before: same, id: id, want: known{IDs: same.IDs, Labels: same.Labels, Drivers: plain.Drivers},
		},
		"nil topology, pre-existing node info from different driver": {
			before: other, id: id, want: known{
				IDs: map[string]string{testedDriver: id, otherDriver: otherID}, Labels: other.Labels,
				Drivers: []storagev1.CSINodeDriver{other.Drivers[0], plain.Drivers[0]},
			},
		},
		"empty node ID": {fails: "error adding CSI driver node info: driverNodeID must not be empty"},
		"new node with valid max limit of volumes": {
			id: id, limit: 10, want: with(limited(entry(testedDriver, id), 10)),
		},
		"new node with max limit of volumes": {
			id: id, limit: math.MaxInt32, want: with(limited(entry(testedDriver, id), math.MaxInt32)),
		},
		"new node with overflown max limit of volumes": {
			id: id, limit: math.MaxInt32 + 1, want: with(limited(entry(testedDriver, id), math.MaxInt32)),
		},
		"new node without max limit of volumes": {id: id, want: plain},
		"node with existing valid max limit of volumes": {
			before: known{Drivers: with(limited(entry(testedDriver, id), 10)).Drivers}, id: id, limit: 20, want: with(limited(entry(testedDriver, id), 20)),
		},
		// Not among upstream's cases.
		"negative max limit of volumes": {id: id, limit: -1, want: plain},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.before(test.before, test.owner)
			w.driver.Lock()
			w.driver.Plugin = &registration.PluginInfo{Type: registration.CSIPlugin, Name: testedDriver, SupportedVersions: []string{"1.0.0"}}
			w.driver.NodeInfo = &csispec.NodeGetInfoResponse{
				NodeId: test.id, MaxVolumesPerNode: test.limit, AccessibleTopology: &csispec.Topology{Segments: test.zone},
			}
			w.driver.Unlock()
			w.plugins()
			w.driver.WantRegistered(test.fails)
			if test.fails != "" && test.before.Drivers == nil {
				wait.Until(w, "there is a CSINode", func() bool {
					_, err := w.admin.StorageV1().CSINodes().Get(w.ctx, w.name, metav1.GetOptions{})
					return err == nil
				})
			}
			if diff := cmp.Diff(test.want, w.knows()); diff != "" {
				t.Errorf("Node and CSINode (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUninstallCSIDriver has the cases of upstream's test of this name: the content of Node and CSINode after a driver
// was removed. Labels stay, and nothing is written needlessly.
func TestUninstallCSIDriver(t *testing.T) {
	zone := "com.example.csi/zone"
	of := func(driver, id string) known {
		return known{IDs: map[string]string{driver: id}, Labels: map[string]string{zone: "zoneA"}, Drivers: []storagev1.CSINodeDriver{entry(driver, id, zone)}}
	}
	same, other := of(testedDriver, "csi-node1"), of(otherDriver, "csi-node1")
	tests := map[string]struct {
		before, want known
		written      bool
	}{
		"empty node and empty CSINode":                 {},
		"pre-existing node info from the same driver":  {before: same, want: known{Labels: same.Labels}, written: true},
		"pre-existing node info from different driver": {before: other, want: other},
		"pre-existing info about the same driver in node, but empty CSINode": {
			before: known{IDs: same.IDs}, written: true,
		},
		"pre-existing info about a different driver in node, but empty CSINode": {
			before: known{IDs: other.IDs}, want: known{IDs: other.IDs},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.before(test.before, "")
			node := w.node()
			who := newIdentity(w.config())
			who.remove(testedDriver)
			_, err := who.sync(w.ctx)
			must(t, err)
			if diff := cmp.Diff(test.want, w.knows()); diff != "" {
				t.Errorf("Node and CSINode (-want +got):\n%s", diff)
			}
			if written := w.node().ResourceVersion != node.ResourceVersion; written != test.written {
				t.Errorf("Node written: %v, want %v", written, test.written)
			}
		})
	}
}

// TestInstallCSIDriverExistingAnnotation: a Node's annotation without a CSINode is no hindrance.
func TestInstallCSIDriverExistingAnnotation(t *testing.T) {
	for name, ids := range map[string]map[string]string{
		"pre-existing info about the same driver in node, but empty CSINode":    {testedDriver: "csi-node1"},
		"pre-existing info about a different driver in node, but empty CSINode": {otherDriver: "csi-node1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.before(known{IDs: ids}, "")
			w.driver.Lock()
			w.driver.Plugin = &registration.PluginInfo{Type: registration.CSIPlugin, Name: testedDriver, SupportedVersions: []string{"1.0.0"}}
			w.driver.Unlock()
			w.plugins()
			w.driver.WantRegistered("")
			got := w.knows()
			want := maps.Clone(ids)
			want[testedDriver] = "id-of-" + w.name // another one than the annotation had
			if diff := cmp.Diff(want, got.IDs); diff != "" {
				t.Errorf("node IDs (-want +got):\n%s", diff)
			}
			if len(got.Drivers) != 1 || got.Drivers[0].Name != testedDriver || got.Drivers[0].NodeID != want[testedDriver] {
				t.Errorf("CSINode has %+v", got.Drivers)
			}
		})
	}
}

// TestCSINodeLifecycle: the CSINode exists without any driver, is recreated when it is lost, and goes with the Node
// (the garbage collector follows its owner reference).
func TestCSINodeLifecycle(t *testing.T) {
	w := newWorld(t)
	w.driver.Stop()
	w.plugins()
	api := w.admin.StorageV1().CSINodes()
	there := func() bool { _, err := api.Get(w.ctx, w.name, metav1.GetOptions{}); return err == nil }
	wait.Until(w, "there is a CSINode", there)
	if got := w.knows(); len(got.Drivers) != 0 {
		t.Errorf("CSINode has %+v", got.Drivers)
	}
	must(t, api.Delete(w.ctx, w.name, metav1.DeleteOptions{}))
	w.driver.Start()
	w.driver.WantRegistered("")
	node := w.untilNode("the managed annotation is set", func(n *corev1.Node) bool {
		return n.Annotations[kube.ManagedAttachAnnotation] == "true"
	})
	w.wantCSINode()
	if got, want := node.Annotations[kube.CSINodeIDsAnnotation], `{"`+w.driverName()+`":"id-of-`+w.name+`"}`; got != want {
		t.Errorf("node IDs are %s, want %s", got, want)
	}
	if got := node.Labels["topology.test.belay.dev/rack"]; got != "r1" {
		t.Errorf("topology label is %q", got)
	}
	// Another client removes the annotation: it is set again.
	w.changeNode(func(node *corev1.Node) { delete(node.Annotations, kube.ManagedAttachAnnotation) })
	w.untilNode("the managed annotation is set again", func(n *corev1.Node) bool {
		return n.Annotations[kube.ManagedAttachAnnotation] == "true"
	})
}

// TestNullNodeIDsAnnotation: the annotation holds valid JSON that is not a map.
func TestNullNodeIDsAnnotation(t *testing.T) {
	w := newWorld(t)
	node := w.node()
	node.Annotations = map[string]string{kube.CSINodeIDsAnnotation: "null"}
	_, err := w.admin.CoreV1().Nodes().Update(w.ctx, node, metav1.UpdateOptions{})
	must(t, err)
	w.plugins()
	w.driver.WantRegistered("")
	if diff := cmp.Diff(map[string]string{w.driverName(): "id-of-" + w.name}, w.knows().IDs); diff != "" {
		t.Errorf("node IDs (-want +got):\n%s", diff)
	}
}
