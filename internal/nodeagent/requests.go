package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"strconv"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/nodestatus"
	"belay.dev/belay/internal/nodeagent/plugins"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// requests builds what calls to drivers need: their fields, with secrets and tokens, and their records.
type requests struct {
	*volumeSet

	bootID  string
	client  kubernetes.Interface
	root    *mount.Root
	records *recordStore
	pods    *podManager
	plugins *plugins.Plugins
	status  *nodestatus.Status
}

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
func (r *requests) publishCall(ctx context.Context, c driverCall) (csi.NodeVolume, error) {
	w := c.toMount
	secrets, err := r.secrets(ctx, w.podSecret)
	if err != nil {
		return csi.NodeVolume{}, err
	}
	staging := ""
	if (c.capabilities.Stage && !w.inline) || w.block { // like kubelet, always for a block volume
		staging = c.stagedAt
	}
	call := c.nodeVolume(staging)
	call.Secrets, call.Context = secrets, c.volumeContext()
	return call, r.addTokens(ctx, c, &call)
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
func (r *requests) checkAffinity(w *volumeToMount) error {
	if w.affinity == nil {
		return nil
	}
	labels, known := r.status.Labels()
	if !known { // not the same as a Node without labels
		return errors.New(explain.LabelsNotKnown)
	}
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: w.affinity}}
	if err := volumehelpers.CheckNodeAffinity(pv, labels); err != nil {
		return &affinityError{w.specName, err}
	}
	return nil
}

// secrets reads a referenced secret.
func (r *requests) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	out := map[string]string{}
	if ref == nil {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(withoutLogging(ctx), worker.APITimeout)
	defer cancel()
	secret, err := r.client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	for name, value := range secret.Data {
		out[name] = string(value)
	}
	return out, nil
}

// driverCall is what a call to a volume's driver needs.
type driverCall struct {
	client       *csi.Node
	capabilities csi.NodeCapabilities
	toMount      *volumeToMount
	// rules are those of the CSIDriver; the zero value without one.
	rules plugins.Rules
	// attachment is the VolumeAttachment that the decision was based on; empty if the volume is not attached through the API.
	attachment nodevolume.Attachment
	// stagingPath is where the volume is, or would be, staged, below the root; stagedAt is that path in requests.
	stagingPath, stagedAt string
	// label is the SELinux label to mount with.
	label string
}

// newDriverCall collects what a call for a pod's volume needs.
func (r *requests) newDriverCall(v *volume, key nodevolume.PublishKey) (driverCall, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	client, has := r.plugins.Registered(v.driver)
	p := v.ensurePod(key)
	switch {
	case has == nil:
		return driverCall{}, plugins.NotRegistered(v.driver)
	case p.toMount == nil:
		return driverCall{}, errors.New(explain.PodGone(key.PodUID))
	}
	return driverCall{
		client: client, capabilities: *has, toMount: p.toMount, rules: r.plugins.Rules(v.driver),
		attachment: v.state.Attachment(), stagingPath: v.stagingPath(p.toMount), stagedAt: r.driverStagingPath(v, p.toMount),
	}, nil
}

// recordFor returns the record to save before a stage or publish. The volume's state adds the rest.
func (r *requests) recordFor(c driverCall, kind, path string) nodevolume.Record {
	w := c.toMount
	return nodevolume.Record{
		Kind: kind, Driver: w.driver, Handle: w.handle, SpecName: w.specName, Inline: w.inline, Block: w.block, Path: path, Root: r.records.configuredRoot(),
		SELinuxLabel: c.label, SolePod: w.solePod, BootID: r.bootID,
		Pod: nodevolume.RecordPod{
			UID: string(w.pod.UID), Namespace: w.pod.Namespace, Name: w.pod.Name, Volume: w.volume, ReadOnly: w.readOnly,
			Claim: w.claim.name, ClaimUID: string(w.claim.uid),
		},
	}
}

// driverStagingPath is the staging path in requests about a volume, with which it was staged, or would be. The caller holds mu.
func (r *requests) driverStagingPath(v *volume, w *volumeToMount) string {
	if v.state.Stage.Phase != nodevolume.Absent {
		return r.records.driverPath(v.state.Stage.Record)
	}
	return path.Join(r.root.Configured(), stagingPath(w))
}

// checkLifecycle checks that the driver supports the volume's lifecycle mode.
func (r *requests) checkLifecycle(w *volumeToMount) error {
	if w.block {
		return nil // kubelet checks file system volumes only
	}
	return r.plugins.Rules(w.driver).Supports(lifecycleMode(w.inline))
}

// addTokens adds the tokens that the CSIDriver requests to a publish call. As in kubelet, block volumes get none.
func (r *requests) addTokens(ctx context.Context, c driverCall, call *csi.NodeVolume) error {
	if len(c.rules.Tokens) == 0 || c.toMount.block {
		return nil
	}
	cache := r.pods.tokensOf(c.toMount.pod)
	byAudience := map[string]authenticationv1.TokenRequestStatus{}
	for _, request := range c.rules.Tokens {
		status, err := cache.get(ctx, keyOf(request))
		if err != nil {
			return err
		}
		byAudience[request.Audience] = status
	}
	raw, err := json.Marshal(byAudience)
	if err != nil {
		return fmt.Errorf("encode the service account tokens for driver %s: %w", c.toMount.driver, err)
	}
	if c.rules.TokensInSecrets {
		call.Secrets[csi.TokensKey] = string(raw)
		return nil
	}
	// Clone it, as it may be the PersistentVolume's own map.
	call.Context = maps.Clone(call.Context)
	if call.Context == nil {
		call.Context = map[string]string{}
	}
	call.Context[csi.TokensKey] = string(raw)
	return nil
}
