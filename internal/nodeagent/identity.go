package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
)

// migratedPluginsAnnotation on a CSINode names the in-tree plugins whose volumes
// this node mounts through CSI. The scheduler and the attach/detach controller read it.
const migratedPluginsAnnotation = "storage.alpha.kubernetes.io/migrated-plugins"

var migratedPlugins = strings.Join([]string{
	"kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/azure-file", "kubernetes.io/cinder",
	"kubernetes.io/gce-pd", "kubernetes.io/portworx-volume", "kubernetes.io/vsphere-volume",
}, ",")

// identity keeps what the cluster must know of this node's drivers: the managed
// annotation, node IDs and topology labels on the Node, and the CSINode.
type identity struct {
	node   string
	client kubernetes.Interface
	// slot is taken by who writes; one write is made from one read.
	slot chan struct{}
	// changed wakes keepIdentity.
	changed chan struct{}

	mu sync.Mutex
	// Under mu:
	drivers map[string]csi.NodeInfo
	// gone are drivers whose traces must be removed.
	gone map[string]bool
}

func newIdentity(node string, client kubernetes.Interface) *identity {
	return &identity{
		node: node, client: client, slot: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		drivers: map[string]csi.NodeInfo{}, gone: map[string]bool{},
	}
}

// keepIdentity makes CSINode and the annotation at start, and again when they are
// lost, with the Node for example.
func (a *Agent) keepIdentity(ctx context.Context) {
	a.identity.wake()
	failures := 0
	for {
		var retry <-chan time.Time
		if failures > 0 {
			retry = time.After(apiBackOff(failures))
		}
		select {
		case <-ctx.Done():
			return
		case <-a.identity.changed:
		case <-retry:
		}
		failures++
		switch err := a.identity.sync(ctx); {
		case err == nil:
			failures = 0
		case ctx.Err() == nil:
			a.log.Info("Node identity not written", "failures", failures, "problem", err.Error())
		}
	}
}

func (i *identity) wake() {
	select {
	case i.changed <- struct{}{}:
	default:
	}
}

// see looks whether a version of the Node lacks what this agent keeps there.
func (i *identity) see(node *corev1.Node) {
	patch, err := i.nodePatch(node)
	if err != nil || patch != nil {
		i.wake()
	}
}

// install makes a driver known to the cluster.
func (i *identity) install(ctx context.Context, driver string, info csi.NodeInfo) error {
	if info.NodeID == "" {
		return errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	i.mu.Lock()
	i.drivers[driver] = info
	delete(i.gone, driver)
	i.mu.Unlock()
	if err := i.sync(ctx); err != nil {
		return fmt.Errorf("error updating CSINode and Node of driver %s: %w", driver, err)
	}
	return nil
}

// remove takes a driver's traces away. They go with the next write at the latest.
func (i *identity) remove(driver string) {
	i.mu.Lock()
	delete(i.drivers, driver)
	i.gone[driver] = true
	i.mu.Unlock()
	i.wake()
}

// conflicts is how often a write is made anew, from a new read, because another
// writer of the Node came between.
const conflicts = 10

// sync makes Node and CSINode say what they must.
func (i *identity) sync(ctx context.Context) error {
	select {
	case i.slot <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-i.slot }()
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	var err error
	for range conflicts {
		if err = i.syncOnce(ctx); !apierrors.IsConflict(err) {
			return err
		}
	}
	return err
}

func (i *identity) syncOnce(ctx context.Context) error {
	node, err := i.client.CoreV1().Nodes().Get(ctx, i.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", i.node, err)
	}
	patch, err := i.nodePatch(node)
	if err != nil {
		return err
	}
	if patch != nil {
		if _, err := i.client.CoreV1().Nodes().Patch(ctx, i.node, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return fmt.Errorf("annotate and label node %s: %w", i.node, err)
		}
	}
	return i.syncCSINode(ctx, node)
}

// nodePatch is what the Node lacks; nil if nothing.
func (i *identity) nodePatch(node *corev1.Node) ([]byte, error) {
	i.mu.Lock()
	drivers, gone := maps.Clone(i.drivers), maps.Clone(i.gone)
	i.mu.Unlock()

	annotations, labels := map[string]any{}, map[string]any{}
	if node.Annotations[kube.ManagedAttachAnnotation] != "true" {
		annotations[kube.ManagedAttachAnnotation] = "true"
	}
	ids := map[string]string{}
	if raw := node.Annotations[kube.CSINodeIDsAnnotation]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &ids); err != nil {
			return nil, fmt.Errorf("read annotation %s of node %s: %w", kube.CSINodeIDsAnnotation, node.Name, err)
		}
	}
	before := maps.Clone(ids)
	for driver := range gone {
		delete(ids, driver)
	}
	for driver, info := range drivers {
		ids[driver] = info.NodeID
		for key, value := range info.Topology {
			existing, ok := node.Labels[key]
			if ok && existing != value {
				return nil, fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, value, key, existing)
			}
			if !ok {
				labels[key] = value
			}
		}
	}
	if !maps.Equal(before, ids) {
		annotations[kube.CSINodeIDsAnnotation] = nil
		if len(ids) > 0 {
			raw, err := json.Marshal(ids)
			if err != nil {
				return nil, fmt.Errorf("encode node IDs: %w", err)
			}
			annotations[kube.CSINodeIDsAnnotation] = string(raw)
		}
	}
	if len(annotations) == 0 && len(labels) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": annotations, "labels": labels,
	}})
}

// syncCSINode creates or updates the CSINode of the Node as it was just read.
func (i *identity) syncCSINode(ctx context.Context, node *corev1.Node) error {
	api := i.client.StorageV1().CSINodes()
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	current, err := api.Get(ctx, i.node, metav1.GetOptions{})
	if err == nil && !slices.ContainsFunc(current.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == node.UID }) {
		// It belongs to an earlier Node of this name.
		if err := api.Delete(ctx, i.node, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &current.UID}}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete CSINode %s of an earlier node: %w", i.node, err)
		}
		current, err = api.Get(ctx, i.node, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		fresh := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: i.node, OwnerReferences: []metav1.OwnerReference{owner}}}
		i.fill(fresh)
		if _, err := api.Create(ctx, fresh, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create CSINode %s: %w", i.node, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("read CSINode %s: %w", i.node, err)
	}
	if !i.fill(current) {
		return nil
	}
	if _, err := api.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update CSINode %s: %w", i.node, err)
	}
	return nil
}

// fill writes the drivers into a CSINode and says whether that changed it. Entries
// of drivers that this agent has not seen come or go are left as they are.
func (i *identity) fill(object *storagev1.CSINode) (changed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if object.Annotations[migratedPluginsAnnotation] != migratedPlugins {
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, migratedPluginsAnnotation, migratedPlugins)
		changed = true
	}
	kept := slices.DeleteFunc(slices.Clone(object.Spec.Drivers), func(d storagev1.CSINodeDriver) bool {
		info, here := i.drivers[d.Name]
		if i.gone[d.Name] || (here && !sameDriver(d, csiNodeDriver(d.Name, info))) {
			changed = true
			return true
		}
		return false
	})
	for _, name := range slices.Sorted(maps.Keys(i.drivers)) {
		if !slices.ContainsFunc(kept, func(d storagev1.CSINodeDriver) bool { return d.Name == name }) {
			kept, changed = append(kept, csiNodeDriver(name, i.drivers[name])), true
		}
	}
	object.Spec.Drivers = kept
	return changed
}

func csiNodeDriver(name string, info csi.NodeInfo) storagev1.CSINodeDriver {
	d := storagev1.CSINodeDriver{Name: name, NodeID: info.NodeID, TopologyKeys: slices.Sorted(maps.Keys(info.Topology))}
	if info.MaxVolumes > 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: &info.MaxVolumes}
	}
	return d
}

func sameDriver(a, b storagev1.CSINodeDriver) bool {
	limit := func(d storagev1.CSINodeDriver) int32 {
		if d.Allocatable == nil || d.Allocatable.Count == nil {
			return 0
		}
		return *d.Allocatable.Count
	}
	return a.NodeID == b.NodeID && slices.Equal(a.TopologyKeys, b.TopologyKeys) && limit(a) == limit(b)
}
