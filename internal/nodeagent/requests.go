package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/nodevolume"
)

// driverRules is what a driver's CSIDriver asks of a node.
type driverRules struct {
	podInfo bool
	// tokens are those of the pod's service account that the driver wants;
	// tokensInSecrets, that it wants them there and not in the volume context.
	tokens          []storagev1.TokenRequest
	tokensInSecrets bool
	republish       bool
	// seLinux: its volumes may be mounted with an SELinux label.
	seLinux      bool
	groupPolicy  storagev1.FSGroupPolicy
	attachNeeded bool
}

// rulesOf reads the CSIDriver; without one the defaults hold.
func (a *Agent) rulesOf(driver string) driverRules {
	rules := driverRules{groupPolicy: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, attachNeeded: true}
	object, ok, err := a.csiDrivers.GetStore().GetByKey(driver)
	if err != nil || !ok {
		return rules
	}
	spec := object.(*storagev1.CSIDriver).Spec
	is := func(b *bool) bool { return b != nil && *b }
	rules.podInfo, rules.republish, rules.seLinux = is(spec.PodInfoOnMount), is(spec.RequiresRepublish), is(spec.SELinuxMount)
	rules.tokens, rules.tokensInSecrets = spec.TokenRequests, is(spec.ServiceAccountTokenInSecrets)
	rules.attachNeeded = spec.AttachRequired == nil || *spec.AttachRequired
	if spec.FSGroupPolicy != nil {
		rules.groupPolicy = *spec.FSGroupPolicy
	}
	return rules
}

// attachRequired is Unknown until the CSIDrivers have been listed once.
func (a *Agent) attachRequired(driver string) nodevolume.Knowledge {
	if !a.csiDrivers.HasSynced() {
		return nodevolume.Unknown
	}
	return knowledge(a.rulesOf(driver).attachNeeded)
}

func (a *Agent) newCSIDriverInformer() cache.SharedIndexInformer {
	informer := newInformer(a.client.StorageV1().RESTClient(), "csidrivers", fields.Everything(), &storagev1.CSIDriver{})
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		a.hinders(err, nodevolume.AttachabilityUnknown)
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	wake := func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		driver, ok := object.(*storagev1.CSIDriver)
		if !ok || !informer.HasSynced() {
			return
		}
		a.wakeDriver(driver.Name)
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    wake,
		UpdateFunc: func(_, object any) { wake(object) },
		DeleteFunc: wake,
	})
	return informer
}

// wakeDriver has all volumes of a driver looked at.
func (a *Agent) wakeDriver(name string) {
	a.chores.Add(chore{refreshLimit, name})
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.volumes {
		if v.driver == name {
			a.wake(v.name)
		}
	}
}

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
func (a *Agent) publishCall(ctx context.Context, c callable) (csi.NodeVolume, error) {
	w := c.want
	secrets, err := a.secrets(ctx, w.podSecret)
	if err != nil {
		return csi.NodeVolume{}, err
	}
	staging := ""
	if (c.has.Stage && !w.inline) || w.block { // a block volume's staging path is always sent
		staging = a.root.Path(c.stagingPath)
	}
	call := c.volume(staging)
	call.Secrets, call.Context = secrets, c.volumeContext()
	return call, a.addTokens(ctx, c, &call)
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
func (a *Agent) checkAffinity(w *want) error {
	if w.affinity == nil {
		return nil
	}
	a.mu.Lock()
	labels, known := a.nodeLabels, a.inUse.Started()
	a.mu.Unlock()
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
func (a *Agent) finishPublish(ctx context.Context, c callable, r nodevolume.Record) error {
	switch {
	case c.want.block:
		if err := a.linkDevice(r); err != nil {
			return err
		}
		if !r.Confirmed { // the pod has had it otherwise
			a.tellMapped(c.want)
		}
		return nil
	case c.groupByAgent():
		return a.giveToGroup(ctx, c, r)
	default:
		return nil
	}
}
