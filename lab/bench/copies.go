package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
)

// copies writes nodes with attached volumes into etcd, each with what the API server stored for the first one, under other names: for
// 460,000 objects on two cores, the API server takes more than twenty minutes. It reads them as if another one had written them.
type copies struct {
	etcd    *clientv3.Client
	encoder runtime.Encoder
	// ops are not written yet.
	ops []clientv3.Op

	node       corev1.Node
	csiNode    storagev1.CSINode
	claim      corev1.PersistentVolumeClaim
	volume     corev1.PersistentVolume
	pod, plain corev1.Pod
	attachment storagev1.VolumeAttachment
}

// opsPerWrite is below etcd's --max-txn-ops, 128.
const opsPerWrite = 100

// Keys of etcd, as the API server chooses them.
func nodeKey(name string) string    { return "/registry/minions/" + name }
func csiNodeKey(name string) string { return "/registry/csinodes/" + name }
func claimKey(name string) string {
	return "/registry/persistentvolumeclaims/" + namespace + "/" + name
}
func volumeKey(name string) string { return "/registry/persistentvolumes/" + name }
func podKey(name string) string    { return "/registry/pods/" + namespace + "/" + name }
func attachmentKey(name string) string {
	return "/registry/volumeattachments/" + name
}

// copiesOf reads what the API server stored for a node and one of its volumes, which has a pod beside it that has none.
func copiesOf(ctx context.Context, lab *cluster.Cluster, node, volume string) (*copies, error) {
	etcd, err := lab.Etcd()
	if err != nil {
		return nil, err
	}
	serializer := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	c := &copies{etcd: etcd, encoder: scheme.Codecs.EncoderForVersion(serializer, schema.GroupVersions{corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion})}
	for key, object := range map[string]runtime.Object{
		nodeKey(node): &c.node, csiNodeKey(node): &c.csiNode, claimKey(volume): &c.claim, volumeKey(volume): &c.volume,
		podKey(oldPod(volume)): &c.pod, podKey(plainPod(volume)): &c.plain,
		attachmentKey(kube.AttachmentName(volume, driverName, node)): &c.attachment,
	} {
		if err := c.read(ctx, key, object); err != nil {
			return nil, errors.Join(err, etcd.Close())
		}
	}
	return c, nil
}

func (c *copies) read(ctx context.Context, key string, into runtime.Object) error {
	found, err := c.etcd.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("reading %s from etcd: %w", key, err)
	}
	if len(found.Kvs) == 0 {
		return fmt.Errorf("etcd has no %s", key)
	}
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(found.Kvs[0].Value, nil, into); err != nil {
		return fmt.Errorf("decoding %s: %w", key, err)
	}
	return nil
}

// put writes an object, at the latest at the next flush.
func (c *copies) put(ctx context.Context, key string, object runtime.Object) error {
	var out bytes.Buffer
	if err := c.encoder.Encode(object, &out); err != nil {
		return fmt.Errorf("encoding %s: %w", key, err)
	}
	c.ops = append(c.ops, clientv3.OpPut(key, out.String()))
	if len(c.ops) < opsPerWrite {
		return nil
	}
	return c.flush(ctx)
}

func (c *copies) flush(ctx context.Context) error {
	if len(c.ops) == 0 {
		return nil
	}
	if _, err := c.etcd.Txn(ctx).Then(c.ops...).Commit(); err != nil {
		return fmt.Errorf("writing to etcd: %w", err)
	}
	c.ops = c.ops[:0]
	return nil
}

// rename gives a copy a name, and a UID of its own.
func rename(meta *metav1.ObjectMeta, name string) { meta.Name, meta.UID = name, uuid.NewUUID() }

// copyNode writes a node on which the volumes are reported and in use.
func (c *copies) copyNode(ctx context.Context, name string, volumes []string) error {
	node, csiNode := c.node.DeepCopy(), c.csiNode.DeepCopy()
	rename(&node.ObjectMeta, name)
	node.Labels[corev1.LabelHostname] = name
	identify(node)
	listNode(node, volumes)
	rename(&csiNode.ObjectMeta, name)
	csiNode.Spec.Drivers[0].NodeID = name
	return errors.Join(c.put(ctx, nodeKey(name), node), c.put(ctx, csiNodeKey(name), csiNode))
}

// copyVolume writes a volume that is attached to the node, and its pod.
func (c *copies) copyVolume(ctx context.Context, name, node string) error {
	claim, volume, pod, va := c.claim.DeepCopy(), c.volume.DeepCopy(), c.pod.DeepCopy(), c.attachment.DeepCopy()
	rename(&claim.ObjectMeta, name)
	claim.Spec.VolumeName = name
	rename(&volume.ObjectMeta, name)
	volume.Spec.CSI.VolumeHandle, volume.Spec.ClaimRef.Name, volume.Spec.ClaimRef.UID = name, name, claim.UID
	rename(&va.ObjectMeta, kube.AttachmentName(name, driverName, node))
	va.Annotations[kube.NodeIDAnnotation], va.Spec.NodeName, va.Spec.Source.PersistentVolumeName = node, node, &name
	pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = name
	return errors.Join(c.put(ctx, claimKey(name), claim), c.put(ctx, volumeKey(name), volume), c.put(ctx, attachmentKey(va.Name), va), c.putPod(ctx, pod, oldPod(name), node))
}

// copyPlain writes a pod that has no volume.
func (c *copies) copyPlain(ctx context.Context, name, node string) error {
	return c.putPod(ctx, c.plain.DeepCopy(), name, node)
}

func (c *copies) putPod(ctx context.Context, pod *corev1.Pod, name, node string) error {
	rename(&pod.ObjectMeta, name)
	pod.Labels[instanceLabel], pod.Spec.NodeName = name, node
	return c.put(ctx, podKey(name), pod)
}
