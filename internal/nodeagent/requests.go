package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodevolume"
)

// volume is what stage and publish say alike.
func (c callable) volume(stagingPath string) csi.NodeVolume {
	w := c.want
	out := csi.NodeVolume{
		ID: w.handle, Block: w.block, AccessMode: csi.AccessMode(w.accessMode), Publish: c.attachment.Metadata, StagingPath: stagingPath,
	}
	if w.block {
		return out
	}
	out.FSType, out.MountFlags = w.fsType, withLabel(w.mountOptions, c.label)
	if w.pod.FSGroup != nil {
		out.MountGroup = strconv.FormatInt(*w.pod.FSGroup, 10)
	}
	return out
}

// publishCall is what NodePublishVolume is told of a volume, this time: secrets and
// tokens are those of now.
func (m *volumeManager) publishCall(ctx context.Context, c callable) (csi.NodeVolume, error) {
	w := c.want
	secrets, err := m.secrets(ctx, w.podSecret)
	if err != nil {
		return csi.NodeVolume{}, err
	}
	staging := ""
	if (c.has.Stage && !w.inline) || w.block { // a block volume's staging path is always sent
		staging = m.root.Path(c.stagingPath)
	}
	call := c.volume(staging)
	call.Secrets, call.Context = secrets, c.volumeContext()
	return call, m.addTokens(ctx, c, &call)
}

// asks: what the publish call says is asked of the API server, which may take long.
func (c callable) asks() bool { return c.want.podSecret != nil || len(c.rules.tokens) > 0 }

// volumeContext is the volume's own attributes and what the driver wants to know of the pod.
func (c callable) volumeContext() map[string]string {
	if !c.rules.podInfo {
		return c.want.attributes
	}
	out := make(map[string]string, len(c.want.attributes)+5)
	maps.Copy(out, c.want.attributes)
	pod := c.want.pod
	out["csi.storage.k8s.io/pod.name"] = pod.Name
	out["csi.storage.k8s.io/pod.namespace"] = pod.Namespace
	out["csi.storage.k8s.io/pod.uid"] = string(pod.UID)
	out["csi.storage.k8s.io/serviceAccount.name"] = pod.ServiceAccount
	out["csi.storage.k8s.io/ephemeral"] = strconv.FormatBool(c.want.inline)
	return out
}

// checkAffinity: the volume may be used on this node.
func (m *volumeManager) checkAffinity(w *wantedVolume) error {
	if w.affinity == nil {
		return nil
	}
	labels, known := m.status.labelled()
	if !known { // a Node may have none
		return errors.New("the labels of this node are not known yet")
	}
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: w.affinity}}
	if err := volumehelpers.CheckNodeAffinity(pv, labels); err != nil {
		return &affinityError{w.specName, err}
	}
	return nil
}

// affinityError: the volume may not be used on this node.
type affinityError struct {
	volume string
	err    error
}

func (e *affinityError) Error() string {
	return fmt.Sprintf("node affinity of volume %s: %v", e.volume, e.err)
}

func (e *affinityError) Unwrap() error { return e.err }

// finishPublish does what is left after the driver published the volume.
func (m *volumeManager) finishPublish(ctx context.Context, c callable, r nodevolume.Record) error {
	switch {
	case c.want.block:
		if err := m.linkDevice(r); err != nil {
			return err
		}
		if !r.Confirmed { // the pod has had it otherwise
			m.emitMapped(c.want)
		}
		return nil
	case c.groupByAgent():
		return m.giveToGroup(ctx, c, r)
	default:
		return nil
	}
}

// secrets reads what a volume's secret reference names.
func (m *volumeManager) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	out := map[string]string{}
	if ref == nil {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(silent(ctx), apiTimeout)
	defer cancel()
	secret, err := m.client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	for name, value := range secret.Data {
		out[name] = string(value)
	}
	return out, nil
}
