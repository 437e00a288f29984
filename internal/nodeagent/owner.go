package nodeagent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// ownerFile names the Node and the cluster to which the records belong.
const ownerFile = "belay/owner.json"

// The objects whose UIDs identify a cluster. The Node authorizer allows a node to read the Service, but not the Namespace;
// deploy/belay-node's ClusterRole adds the Namespace. The Service is recreated when it is deleted; the Namespace cannot be deleted.
const (
	clusterNamespace = "namespaces/kube-system"
	clusterService   = "namespaces/default/services/kubernetes"
)

// OwnerError reports that the records under the root belong to another Node, or to a Node of another cluster. With this Node's pods the
// agent would unmount all their volumes.
type OwnerError struct {
	// Root is the root directory.
	Root string
	// RecordedNode is the Node to which the records belong, Node the configured one.
	RecordedNode, Node string
	// Detail describes what was compared.
	Detail string
	// OtherRoot is set if Root is wrong: the records of the volumes that the Node lists in use are below OtherRoot.
	OtherRoot string
}

func (e *OwnerError) Error() string {
	if e.OtherRoot != "" {
		return fmt.Sprintf("the volumes that node %q has in use are recorded below %s since this machine was booted, and this agent was started with the root directory %s (%s); nothing was changed; "+
			"remedy: start it with the root directory %s; if no container and no mount is left below that, remove the annotation %s from the Node",
			e.Node, e.OtherRoot, e.Root, e.Detail, e.OtherRoot, kube.VolumesRootAnnotation)
	}
	if e.RecordedNode != e.Node {
		return fmt.Sprintf("the volumes recorded below %s belong to node %q, and this agent was started for node %q (%s); nothing was changed; remedy: "+
			"start it with the node name %q, as before the machine was renamed; to change the name, drain that node first, until %s/%s holds no files",
			e.Root, e.RecordedNode, e.Node, e.Detail, e.RecordedNode, e.Root, recordsDir)
	}
	return fmt.Sprintf("the volumes recorded below %s belong to node %q of another cluster (%s); nothing was changed; remedy: "+
		"start the agent with that cluster's kubeconfig; to change the cluster, drain the node there first, until %s/%s holds no files; "+
		"if that cluster is gone, stop the containers, unmount what is left and remove %s/belay",
		e.Root, e.Node, e.Detail, e.Root, recordsDir, e.Root)
}

// recordOwner verifies that the records under the root belong to this Node. Until then the agent ignores which pods the API has, and
// writes nothing to the API.
type recordOwner struct {
	root   *mount.Root
	bootID string
	client kubernetes.Interface
	log    logr.Logger
	// verified is closed once the records are known to be this node's.
	verified chan struct{}

	mu sync.Mutex
	// Under mu:
	recorded nodevolume.Owner
	// stored is set if recorded is in ownerFile.
	stored bool
	// problem is the last error of verify.
	problem error
}

// newRecordOwner reads ownerFile. It returns an OwnerError if the records belong to a Node of another name, and another error if the file
// cannot be read.
func newRecordOwner(config Config, root *mount.Root, client kubernetes.Interface) (*recordOwner, error) {
	node, log := config.NodeName, config.Logger
	o := &recordOwner{root: root, bootID: config.BootID, client: client, log: log, verified: make(chan struct{}), recorded: nodevolume.Owner{NodeName: node}}
	names, err := root.List(recordsDir)
	if err != nil {
		return nil, err
	}
	var records []string
	for _, name := range names {
		if !mount.IsTemporary(name) {
			records = append(records, name)
		}
	}
	if len(records) == 0 {
		return o, nil // nothing to protect
	}
	found, err := o.read()
	if errors.Is(err, fs.ErrNotExist) {
		return o, o.checkUnowned(records)
	}
	if err != nil {
		// The pods of another cluster would have every volume unmounted.
		return nil, fmt.Errorf("%w; nothing was changed; remedy: if the records were made for this node name and this cluster, remove %s", err, root.Path(ownerFile))
	}
	o.recorded, o.stored = found, true
	if found.NodeName != node {
		return nil, &OwnerError{Root: root.Path("."), RecordedNode: found.NodeName, Node: node, Detail: "by " + root.Path(ownerFile)}
	}
	if err := root.RemoveTemporary(ownerFile); err != nil { // an agent that died has left it, and this one may not write the file again
		log.Error(err, "Failed to remove what is left of a write of the records' owner")
	}
	return o, nil
}

func (o *recordOwner) read() (found nodevolume.Owner, err error) {
	raw, err := o.root.ReadFile(ownerFile)
	if err == nil {
		err = json.Unmarshal(raw, &found)
		if err != nil {
			err = fmt.Errorf("not valid JSON: %w", err)
		}
	}
	if err == nil && found.NodeName == "" {
		err = errors.New("it has no node name")
	}
	if err != nil {
		return nodevolume.Owner{}, fmt.Errorf("read the owner of the records from %s: %w", o.root.Path(ownerFile), err)
	}
	return found, nil
}

// checkUnowned checks records without an ownerFile, from an earlier version of the agent: vol_data.json has the name of the node.
func (o *recordOwner) checkUnowned(records []string) error {
	for _, name := range records {
		raw, err := o.root.ReadFile(recordPath(name))
		if err != nil {
			continue
		}
		record, err := nodevolume.DecodeRecord(raw)
		if err != nil || record.Kind != nodevolume.PublishKind {
			continue
		}
		dir := path.Dir(record.Path)
		if record.Block {
			dir = path.Join(blockDir, record.SpecName, "data")
		}
		data, err := readVolumeData(o.root, dir)
		if other := data["nodeName"]; err == nil && other != "" && other != o.recorded.NodeName {
			return &OwnerError{
				Root: o.root.Path("."), RecordedNode: other, Node: o.recorded.NodeName, Detail: "by " + o.root.Path(path.Join(dir, volumeData)),
			}
		}
	}
	return nil
}

// verify compares the owner of the records with the Node and the cluster in the API. It returns an OwnerError on a mismatch, and another
// error as long as it cannot tell.
func (o *recordOwner) verify(ctx context.Context) error {
	if o.isVerified() {
		return nil
	}
	now, node, err := o.observe(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		err = o.checkRoot(node)
	}
	if err == nil {
		err = o.checkOwner(now)
	}
	if o.problem = err; err == nil {
		close(o.verified)
	}
	return err
}

// checkRoot checks whether an agent has served the Node from another root since boot. With the records below this root, everything that the
// Node lists in use would be removed from the list, and detached while mounted.
func (o *recordOwner) checkRoot(node *corev1.Node) error {
	parts := node.Annotations[kube.VolumesRootAnnotation]
	bootID, root, ok := strings.Cut(parts, " ")
	if !ok || bootID != o.bootID || root == o.root.Path(".") || len(node.Status.VolumesInUse) == 0 {
		return nil
	}
	return &OwnerError{
		Root: o.root.Path("."), RecordedNode: node.Name, Node: node.Name, OtherRoot: root,
		Detail: fmt.Sprintf("by the Node's annotation %s; it lists %d volumes in use", kube.VolumesRootAnnotation, len(node.Status.VolumesInUse)),
	}
}

// checkOwner compares the recorded owner with the one in the API. The caller holds mu.
func (o *recordOwner) checkOwner(now nodevolume.Owner) error {
	if o.stored {
		switch o.recorded.Compare(now) {
		case nodevolume.SameOwner:
			if now.NodeUID != "" && now.NodeUID != o.recorded.NodeUID {
				o.log.Info("Node object was recreated, keeping the records", "oldUID", o.recorded.NodeUID, "newUID", now.NodeUID)
			}
		case nodevolume.OtherCluster, nodevolume.OtherNode:
			return &OwnerError{Root: o.root.Path("."), RecordedNode: o.recorded.NodeName, Node: now.NodeName, Detail: o.difference(now)}
		default:
			return fmt.Errorf("cannot verify that the volumes recorded below %s belong to this cluster (%s): give belay-node the right to get namespace kube-system, "+
				"as the ClusterRole in deploy/belay-node does", o.root.Path("."), o.difference(now))
		}
	}
	return o.store(o.recorded.Updated(now))
}

// difference describes what was compared. The caller holds mu.
func (o *recordOwner) difference(now nodevolume.Owner) string {
	parts := []string{fmt.Sprintf("node UID was %q, is %q", o.recorded.NodeUID, now.NodeUID)}
	for _, object := range []string{clusterNamespace, clusterService} {
		if was, is := o.recorded.Cluster[object], now.Cluster[object]; was != "" || is != "" {
			parts = append(parts, fmt.Sprintf("UID of %s was %q, is %q", object, was, is))
		}
	}
	return strings.Join(parts, ", ")
}

// observe reads the UIDs of the Node and the cluster. It leaves out those that do not exist or that it may not read.
func (o *recordOwner) observe(ctx context.Context) (nodevolume.Owner, *corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	now := nodevolume.Owner{NodeName: o.recorded.NodeName, Cluster: map[string]string{}}
	node, err := o.client.CoreV1().Nodes().Get(ctx, now.NodeName, metav1.GetOptions{})
	switch {
	case err == nil:
		now.NodeUID = string(node.UID)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		node = &corev1.Node{}
	default:
		return now, node, fmt.Errorf("read node %s to verify the owner of the records: %w", now.NodeName, err)
	}
	namespace, err := o.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	switch {
	case err == nil:
		now.Cluster[clusterNamespace] = string(namespace.UID)
		return now, node, nil
	case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return now, node, fmt.Errorf("read namespace %s to verify the owner of the records: %w", metav1.NamespaceSystem, err)
	}
	service, err := o.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	switch {
	case err == nil:
		now.Cluster[clusterService] = string(service.UID)
	case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return now, node, fmt.Errorf("read service default/kubernetes to verify the owner of the records: %w", err)
	}
	return now, node, nil
}

// updateNodeUID records the UID of a Node that was recreated while the agent runs.
func (o *recordOwner) updateNodeUID(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.stored || o.recorded.NodeUID == string(uid) {
		return
	}
	next := o.recorded
	next.NodeUID = string(uid)
	if err := o.store(next); err != nil {
		o.log.Error(err, "Failed to record the UID of the recreated Node")
	}
}

// store writes ownerFile if it has changed. The caller holds mu.
func (o *recordOwner) store(next nodevolume.Owner) error {
	if o.stored && o.recorded.Equal(next) {
		return nil
	}
	raw, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the owner of the records: %w", err)
	}
	if err := o.root.Write(ownerFile, append(raw, '\n'), mount.PowerCut); err != nil {
		return fmt.Errorf("record the owner of the volumes: %w", err)
	}
	o.recorded, o.stored = next, true
	return nil
}

// ready returns why the owner of the records is not verified, or nil.
func (o *recordOwner) ready() error {
	if o.isVerified() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return cmp.Or(o.problem, fmt.Errorf("the owner of the volumes recorded below %s has not been verified yet", o.root.Path(".")))
}

// isVerified reports whether the records are known to be this node's.
func (o *recordOwner) isVerified() bool {
	select {
	case <-o.verified:
		return true
	default:
		return false
	}
}

// firstVerifyTimeout bounds the first attempt to verify, for which everything else waits.
const firstVerifyTimeout = 5 * time.Second

// verifyOwnerOnce fails only if the records belong to another Node: unmounting need not wait for the API server.
func (a *Agent) verifyOwnerOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstVerifyTimeout)
	defer cancel()
	err := a.owner.verify(ctx)
	if other, ok := errors.AsType[*OwnerError](err); ok {
		return other
	}
	return nil
}

// waitForOwner retries until the owner of the records is verified. It returns an OwnerError if they belong to another Node.
func (a *Agent) waitForOwner(ctx context.Context) error {
	for failures := 1; ; failures++ {
		err := a.owner.verify(ctx)
		a.volumes.reports.setBlocker(err, nodevolume.AttachabilityUnknown, nodevolume.NodeUnknown)
		// An attempt that the agent's end cuts off says nothing about the records; an OwnerError does, also at the end.
		if _, other := errors.AsType[*OwnerError](err); err == nil || other || ctx.Err() != nil {
			return err
		}
		a.log.Error(err, "Failed to verify that the records belong to this node, retrying", "failures", failures)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(worker.BackOff(failures)):
		}
	}
}
