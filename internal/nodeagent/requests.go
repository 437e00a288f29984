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
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// nodeVolume returns the fields that stage and publish have in common.
func (c driverCall) nodeVolume(stagingPath string) csi.NodeVolume {
	w := c.toMount
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

// publishCall returns the fields of NodePublishVolume, with current secrets and tokens.
func (m *volumeManager) publishCall(ctx context.Context, c driverCall) (csi.NodeVolume, error) {
	w := c.toMount
	secrets, err := m.secrets(ctx, w.podSecret)
	if err != nil {
		return csi.NodeVolume{}, err
	}
	staging := ""
	if (c.capabilities.Stage && !w.inline) || w.block { // like kubelet, always for a block volume
		staging = c.stagedAt
	}
	call := c.nodeVolume(staging)
	call.Secrets, call.Context = secrets, c.volumeContext()
	return call, m.addTokens(ctx, c, &call)
}

// readsAPI reports whether the publish call needs reads from the API server, which may take long.
func (c driverCall) readsAPI() bool { return c.toMount.podSecret != nil || len(c.rules.Tokens) > 0 }

// volumeContext returns the volume's attributes, with the pod information that the driver asks for.
func (c driverCall) volumeContext() map[string]string {
	if !c.rules.PodInfo {
		return c.toMount.attributes
	}
	out := make(map[string]string, len(c.toMount.attributes)+5)
	maps.Copy(out, c.toMount.attributes)
	pod := c.toMount.pod
	out["csi.storage.k8s.io/pod.name"] = pod.Name
	out["csi.storage.k8s.io/pod.namespace"] = pod.Namespace
	out["csi.storage.k8s.io/pod.uid"] = string(pod.UID)
	out["csi.storage.k8s.io/serviceAccount.name"] = pod.ServiceAccount
	out["csi.storage.k8s.io/ephemeral"] = strconv.FormatBool(c.toMount.inline)
	return out
}

// checkAffinity checks the volume's node affinity.
func (m *volumeManager) checkAffinity(w *volumeToMount) error {
	if w.affinity == nil {
		return nil
	}
	labels, known := m.status.Labels()
	if !known { // not the same as a Node without labels
		return errors.New(explain.LabelsNotKnown)
	}
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: w.affinity}}
	if err := volumehelpers.CheckNodeAffinity(pv, labels); err != nil {
		return &affinityError{w.specName, err}
	}
	return nil
}

// affinityError reports that the volume's node affinity excludes this node.
type affinityError struct {
	volume string
	err    error
}

func (e *affinityError) Error() string {
	return explain.AffinityDiffers(e.volume, e.err)
}

func (e *affinityError) Unwrap() error { return e.err }

// finishPublish completes a publish after the driver's call.
func (m *volumeManager) finishPublish(ctx context.Context, c driverCall, r nodevolume.Record) error {
	switch {
	case c.toMount.block:
		if err := m.linkDevice(r); err != nil {
			return err
		}
		if !r.Confirmed { // not on a republish
			m.emitMapped(c.toMount)
		}
		return nil
	case c.agentAppliesFSGroup():
		return m.applyFSGroup(ctx, c, r)
	default:
		return nil
	}
}

// secrets reads a referenced secret.
func (m *volumeManager) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	out := map[string]string{}
	if ref == nil {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(withoutLogging(ctx), worker.APITimeout)
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
