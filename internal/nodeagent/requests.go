package nodeagent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
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
	podInfo      bool
	tokens       bool
	republish    bool
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
	rules.tokens = len(spec.TokenRequests) > 0
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
		ID: w.handle, Block: w.block, AccessMode: csi.AccessMode(w.accessMode), Publish: c.publishContext, StagingPath: stagingPath,
	}
	if w.block {
		return out
	}
	out.FSType, out.MountFlags = w.fsType, w.mountOptions
	if w.pod.FSGroup != nil {
		out.MountGroup = strconv.FormatInt(*w.pod.FSGroup, 10)
	}
	return out
}

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
	out["csi.storage.k8s.io/ephemeral"] = "false"
	return out
}

// checkSupported refuses what a driver or pod asks for and this agent does not do:
// a volume that is mounted in another way than was asked for is worse than one that is not.
func (a *Agent) checkSupported(c callable) error {
	w := c.want
	switch {
	case c.rules.tokens && !w.block:
		return fmt.Errorf("CSIDriver %s asks for service account tokens (tokenRequests); this node agent does not pass them", w.driver)
	case c.rules.republish:
		return fmt.Errorf("CSIDriver %s asks to be called again from time to time (requiresRepublish); this node agent does not", w.driver)
	case c.rules.seLinux && w.pod.SELinux && seLinuxEnabled():
		return fmt.Errorf("CSIDriver %s and the pod ask for a mount with an SELinux label; this node agent does not pass it", w.driver)
	case c.groupByAgent():
		return fmt.Errorf("the pod's fsGroup %d asks to change the group of all files on volume %s; this node agent leaves that to drivers with VOLUME_MOUNT_GROUP, and %s has not",
			*w.pod.FSGroup, w.specName, w.driver)
	default:
		return nil
	}
}

// groupByAgent says whether kubelet would give the volume's files to the pod's
// fsGroup itself (KEP-1682, KEP-2317).
func (c callable) groupByAgent() bool {
	w := c.want
	if w.pod.FSGroup == nil || w.block || w.readOnly || c.has.VolumeMountGroup {
		return false
	}
	switch c.rules.groupPolicy {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	default:
		return w.fsType != "" && slices.ContainsFunc(w.accessModes, func(m corev1.PersistentVolumeAccessMode) bool {
			return m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod
		})
	}
}

func seLinuxEnabled() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

// checkAffinity: the volume may be used on this node.
func (a *Agent) checkAffinity(w *want) error {
	if w.affinity == nil {
		return nil
	}
	a.mu.Lock()
	labels := a.nodeLabels
	a.mu.Unlock()
	if labels == nil {
		return errors.New("the labels of this node are not known yet")
	}
	pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: w.affinity}}
	if err := volumehelpers.CheckNodeAffinity(pv, labels); err != nil {
		return fmt.Errorf("node affinity of volume %s: %w", w.specName, err)
	}
	return nil
}

// finishPublish does what is left after the driver published the volume.
func (a *Agent) finishPublish(c callable, r nodevolume.Record) error {
	if !c.want.block {
		return nil
	}
	return a.linkDevice(r)
}
