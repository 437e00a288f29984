package plugins

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

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodeagent/worker"
)

// migratedPluginsAnnotation on a CSINode lists the in-tree plugins that this node migrates to CSI. The scheduler and the attach/detach
// controller read it.
const migratedPluginsAnnotation = "storage.alpha.kubernetes.io/migrated-plugins"

var migratedPlugins = strings.Join([]string{
	"kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/azure-file", "kubernetes.io/cinder",
	"kubernetes.io/gce-pd", "kubernetes.io/portworx-volume", "kubernetes.io/vsphere-volume",
}, ",")

// identity writes what the cluster reads about this node's drivers: the managed-attach annotation, the node IDs and topology labels on
// the Node, and the CSINode.
type identity struct {
	config Config
	// sem is a semaphore: each write is based on one read.
	sem chan struct{}
	// changed wakes run, observed has it look at the CSINode.
	changed, observed worker.Signal

	mu sync.Mutex
	// Under mu:
	drivers map[string]csi.NodeInfo
	// gone are unregistered drivers, to be removed from Node and CSINode.
	gone map[string]bool
	// written is the UID of the Node that is up to date, with its CSINode; empty if none is. read is that Node as it was read then.
	written types.UID
	read    *corev1.Node
}

func newIdentity(config Config) *identity {
	return &identity{
		config: config, sem: make(chan struct{}, 1), changed: worker.NewSignal(), observed: worker.NewSignal(),
		drivers: map[string]csi.NodeInfo{}, gone: map[string]bool{},
	}
}

// run writes Node and CSINode at start, and again when they change or were deleted.
func (i *identity) run(ctx context.Context, log logr.Logger) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { i.lookAtCSINode(ctx) })
	i.changed.Wake()
	i.changed.Serve(ctx, func(failures int) error {
		_, err := i.sync(ctx)
		if err != nil && ctx.Err() == nil {
			log.Error(err, "Failed to update the Node and the CSINode, retrying", "failures", failures+1)
		}
		return err
	})
}

// A node may read its CSINode, and not watch it (k8s.io/kubernetes v1.36.3, plugin/pkg/auth/authorizer/node/node_authorizer.go:318,
// `case "get", "create", "update", "patch", "delete":`). So it is looked at after each change of the Node, such as a heartbeat, and after
// csiNodePeriod without one, but at most once per csiNodePause.
const (
	csiNodePeriod = time.Minute
	csiNodePause  = 10 * time.Second
)

// lookAtCSINode schedules a write when another client has deleted or changed the CSINode, until ctx ends.
func (i *identity) lookAtCSINode(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-i.observed:
		case <-time.After(csiNodePeriod):
		}
		if i.csiNodeDiffers(ctx) {
			i.changed.Wake()
		}
		select {
		case <-ctx.Done():
		case <-time.After(csiNodePause):
		}
	}
}

// csiNodeDiffers reports whether the CSINode lacks something since the last write. It reads what the API server has in its cache. A CSINode
// that went with its Node is created when that is back, which observe sees.
func (i *identity) csiNodeDiffers(ctx context.Context) bool {
	i.mu.Lock()
	node := i.read
	i.mu.Unlock()
	if node == nil {
		return false // the first write is still due
	}
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	cached := metav1.GetOptions{ResourceVersion: "0"}
	current, err := i.config.Client.StorageV1().CSINodes().Get(ctx, i.config.NodeName, cached)
	switch {
	case apierrors.IsNotFound(err):
		_, err := i.config.Client.CoreV1().Nodes().Get(ctx, i.config.NodeName, cached)
		return err == nil
	case err != nil:
		return false
	}
	want, current := i.desired(node), current.DeepCopy()
	return !isOwnedBy(current, node) || want.removeChanged(current) || want.addMissing(current)
}

// isWritten reports whether Node and CSINode were written.
func (i *identity) isWritten() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.written != ""
}

// observe schedules a write if a version of the Node lacks something.
func (i *identity) observe(node *corev1.Node) {
	patch, err := i.desired(node).nodePatch(node)
	i.mu.Lock()
	// A recreated Node may have it all, but its CSINode is gone.
	recreated := i.written != node.UID
	i.mu.Unlock()
	if err != nil || patch != nil || recreated {
		i.changed.Wake()
	}
	i.observed.Wake()
}

// install publishes a driver in Node and CSINode.
func (i *identity) install(ctx context.Context, driver string, info csi.NodeInfo) error {
	if info.NodeID == "" {
		return errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	rejected, err := i.tryInstall(ctx, driver, info)
	if err == nil {
		err = rejected[driver]
	}
	if err != nil {
		return fmt.Errorf("error updating CSINode and Node of driver %s: %w", driver, err)
	}
	return nil
}

// tryInstall adds a driver. If the API server rejects it, the driver is taken back out, so that it does not block the writes for others.
func (i *identity) tryInstall(ctx context.Context, driver string, info csi.NodeInfo) (rejected map[string]error, err error) {
	if err := i.acquire(ctx); err != nil {
		return nil, err
	}
	defer i.release()
	i.mu.Lock()
	before, known := i.drivers[driver]
	i.drivers[driver] = info
	delete(i.gone, driver)
	i.mu.Unlock()
	rejected, err = i.write(ctx)
	if refused(err, info) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if delete(i.drivers, driver); known && !i.gone[driver] {
			i.drivers[driver] = before
		}
	}
	return rejected, err
}

// refused reports whether the API server rejected the driver's NodeGetInfo: NodeRestriction forbids some labels. Without labels,
// Forbidden has another cause.
func refused(err error, info csi.NodeInfo) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) && len(info.Topology) > 0
}

// remove schedules removing a driver from Node and CSINode.
func (i *identity) remove(driver string) {
	i.mu.Lock()
	delete(i.drivers, driver)
	i.gone[driver] = true
	i.mu.Unlock()
	i.changed.Wake()
}

// maxConflicts is the number of attempts to write against conflicts with other writers of the Node.
const maxConflicts = 10

// sync brings Node and CSINode up to date. It returns why some drivers were rejected.
func (i *identity) sync(ctx context.Context) (rejected map[string]error, err error) {
	if err := i.acquire(ctx); err != nil {
		return nil, err
	}
	defer i.release()
	return i.write(ctx)
}

// acquire waits for the verification of the records and for a write in progress.
func (i *identity) acquire(ctx context.Context) error {
	select {
	case <-i.config.Verified:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case i.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (i *identity) release() { <-i.sem }

// write is sync for callers that have acquired the semaphore.
func (i *identity) write(ctx context.Context) (rejected map[string]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	for range maxConflicts {
		if rejected, err = i.syncOnce(ctx); !apierrors.IsConflict(err) {
			break
		}
	}
	return rejected, err
}

func (i *identity) syncOnce(ctx context.Context) (rejected map[string]error, err error) {
	node, err := i.config.Client.CoreV1().Nodes().Get(ctx, i.config.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", i.config.NodeName, err)
	}
	want := i.desired(node)
	patch, err := want.nodePatch(node)
	if err != nil {
		return nil, err
	}
	if patch != nil {
		if _, err := i.config.Client.CoreV1().Nodes().Patch(ctx, i.config.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return nil, fmt.Errorf("annotate and label node %s: %w", i.config.NodeName, err)
		}
	}
	if err := i.syncCSINode(ctx, node, want); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.written, i.read = node.UID, node
	return want.rejected, nil
}

// desiredNodeInfo is the desired content of a Node and its CSINode.
type desiredNodeInfo struct {
	drivers map[string]csi.NodeInfo
	gone    map[string]bool
	root    string
	// labels are the topology labels to add to the Node.
	labels map[string]string
	// rejected are the drivers whose topology contradicts the Node's labels. As in kubelet, only these are left out.
	rejected map[string]error
}

func (i *identity) desired(node *corev1.Node) desiredNodeInfo {
	i.mu.Lock()
	defer i.mu.Unlock()
	want := desiredNodeInfo{
		drivers: maps.Clone(i.drivers), gone: maps.Clone(i.gone), root: i.config.VolumesRoot, labels: map[string]string{}, rejected: map[string]error{},
	}
	has := maps.Clone(node.Labels)
	if has == nil {
		has = map[string]string{}
	}
	for _, driver := range slices.Sorted(maps.Keys(i.drivers)) {
		topology := i.drivers[driver].Topology
		if err := collision(has, topology); err != nil {
			want.rejected[driver] = err
			delete(want.drivers, driver)
			continue
		}
		for key, value := range topology {
			if _, ok := has[key]; !ok {
				has[key], want.labels[key] = value, value
			}
		}
	}
	return want
}

func collision(labels, topology map[string]string) error {
	for key, value := range topology {
		if existing, ok := labels[key]; ok && existing != value {
			return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, value, key, existing)
		}
	}
	return nil
}

// nodePatch returns the patch of the Node; nil if it is up to date.
func (w desiredNodeInfo) nodePatch(node *corev1.Node) ([]byte, error) {
	annotations := map[string]any{}
	if node.Annotations[kube.ManagedAttachAnnotation] != "true" {
		annotations[kube.ManagedAttachAnnotation] = "true"
	}
	if w.root != "" && node.Annotations[kube.VolumesRootAnnotation] != w.root {
		annotations[kube.VolumesRootAnnotation] = w.root
	}
	ids := map[string]string{}
	if raw := node.Annotations[kube.CSINodeIDsAnnotation]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &ids); err != nil {
			return nil, fmt.Errorf("read annotation %s of node %s: not valid JSON: %w", kube.CSINodeIDsAnnotation, node.Name, err)
		}
		if ids == nil { // it was "null"
			ids = map[string]string{}
		}
	}
	before := maps.Clone(ids)
	for driver := range w.gone {
		delete(ids, driver)
	}
	for driver, info := range w.drivers {
		ids[driver] = info.NodeID
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
	if len(annotations) == 0 && len(w.labels) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": annotations, "labels": w.labels,
	}})
}

func isOwnedBy(object *storagev1.CSINode, node *corev1.Node) bool {
	return slices.ContainsFunc(object.OwnerReferences, func(ref metav1.OwnerReference) bool { return ref.UID == node.UID })
}

// syncCSINode creates or updates the CSINode of the Node as it was just read.
func (i *identity) syncCSINode(ctx context.Context, node *corev1.Node, want desiredNodeInfo) error {
	api := i.config.Client.StorageV1().CSINodes()
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	current, err := api.Get(ctx, i.config.NodeName, metav1.GetOptions{})
	if err == nil && !isOwnedBy(current, node) {
		// It belongs to an earlier Node of this name.
		if err := api.Delete(ctx, i.config.NodeName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &current.UID}}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete CSINode %s of an earlier node: %w", i.config.NodeName, err)
		}
		current, err = api.Get(ctx, i.config.NodeName, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		fresh := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: i.config.NodeName, OwnerReferences: []metav1.OwnerReference{owner}}}
		want.addMissing(fresh)
		if _, err := api.Create(ctx, fresh, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create CSINode %s: %w", i.config.NodeName, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("read CSINode %s: %w", i.config.NodeName, err)
	}
	err = i.changeCSINode(ctx, current.DeepCopy(), want.removeChanged, want.addMissing)
	if apierrors.IsInvalid(err) && want.removeChangedLimits(current.DeepCopy()) {
		// Before 1.35 the API server rejects a changed allocatable count.
		if current, err = api.Get(ctx, i.config.NodeName, metav1.GetOptions{}); err == nil {
			err = i.changeCSINode(ctx, current, want.removeChangedLimits, want.addMissing)
		}
	}
	if err != nil {
		return fmt.Errorf("update CSINode %s: %w", i.config.NodeName, err)
	}
	return nil
}

// changeCSINode applies changes, each with its own update: the fields of a driver are immutable except for the allocatable count, so a
// changed driver is removed and added again.
func (i *identity) changeCSINode(ctx context.Context, current *storagev1.CSINode, changes ...func(*storagev1.CSINode) bool) error {
	for _, change := range changes {
		if !change(current) {
			continue
		}
		var err error
		if current, err = i.config.Client.StorageV1().CSINodes().Update(ctx, current, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// removeChanged removes the drivers that are gone or have changed. It leaves drivers that this agent has not seen.
func (w desiredNodeInfo) removeChanged(object *storagev1.CSINode) (changed bool) {
	before := len(object.Spec.Drivers)
	object.Spec.Drivers = slices.DeleteFunc(object.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
		info, here := w.drivers[d.Name]
		return w.gone[d.Name] || (here && !sameDriver(d, csiNodeDriver(d.Name, info)))
	})
	return len(object.Spec.Drivers) != before
}

// removeChangedLimits removes the drivers whose allocatable count has changed.
func (w desiredNodeInfo) removeChangedLimits(object *storagev1.CSINode) (changed bool) {
	before := len(object.Spec.Drivers)
	object.Spec.Drivers = slices.DeleteFunc(object.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
		info, here := w.drivers[d.Name]
		return here && limitOf(d) != info.MaxVolumes
	})
	return len(object.Spec.Drivers) != before
}

// addMissing adds the missing drivers and updates allocatable counts in place: without the driver the scheduler would see no limit.
func (w desiredNodeInfo) addMissing(object *storagev1.CSINode) (changed bool) {
	if object.Annotations[migratedPluginsAnnotation] != migratedPlugins {
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, migratedPluginsAnnotation, migratedPlugins)
		changed = true
	}
	for _, name := range slices.Sorted(maps.Keys(w.drivers)) {
		is := csiNodeDriver(name, w.drivers[name])
		at := slices.IndexFunc(object.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name })
		switch {
		case at < 0:
			object.Spec.Drivers, changed = append(object.Spec.Drivers, is), true
		case limitOf(object.Spec.Drivers[at]) != limitOf(is):
			object.Spec.Drivers[at].Allocatable, changed = is.Allocatable, true
		}
	}
	return changed
}

func csiNodeDriver(name string, info csi.NodeInfo) storagev1.CSINodeDriver {
	d := storagev1.CSINodeDriver{Name: name, NodeID: info.NodeID, TopologyKeys: slices.Sorted(maps.Keys(info.Topology))}
	if info.MaxVolumes > 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: &info.MaxVolumes}
	}
	return d
}

// sameDriver compares the immutable fields.
func sameDriver(a, b storagev1.CSINodeDriver) bool {
	return a.NodeID == b.NodeID && slices.Equal(a.TopologyKeys, b.TopologyKeys)
}

// limitOf returns the allocatable count, or 0.
func limitOf(d storagev1.CSINodeDriver) int32 {
	if d.Allocatable == nil || d.Allocatable.Count == nil {
		return 0
	}
	return *d.Allocatable.Count
}
