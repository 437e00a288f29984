package nodeagent

import (
	"context"
	"errors"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodevolume"
)

// driverRules are the settings of a CSIDriver that concern a node.
type driverRules struct {
	podInfo bool
	// tokens are those of the pod's service account that the driver needs: with tokensInSecrets in the secrets, otherwise in the volume
	// context.
	tokens          []storagev1.TokenRequest
	tokensInSecrets bool
	republish       bool
	// seLinux is spec.seLinuxMount: volumes may be mounted with an SELinux label.
	seLinux      bool
	groupPolicy  storagev1.FSGroupPolicy
	attachNeeded bool
}

// csiDriver returns the cached CSIDriver, or nil.
func (p *plugins) csiDriver(name string) *storagev1.CSIDriver {
	object, _, _ := p.csiDrivers.GetStore().GetByKey(name) // a store in memory returns no error
	driver, _ := object.(*storagev1.CSIDriver)
	return driver
}

// rules returns the settings of a CSIDriver, or the defaults if there is none.
func (p *plugins) rules(driver string) driverRules {
	rules := driverRules{groupPolicy: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, attachNeeded: true}
	object := p.csiDriver(driver)
	if object == nil {
		return rules
	}
	spec := object.Spec
	is := func(b *bool) bool { return b != nil && *b }
	rules.podInfo, rules.republish, rules.seLinux = is(spec.PodInfoOnMount), is(spec.RequiresRepublish), is(spec.SELinuxMount)
	rules.tokens, rules.tokensInSecrets = spec.TokenRequests, is(spec.ServiceAccountTokenInSecrets)
	rules.attachNeeded = kube.AttachRequired(object)
	if spec.FSGroupPolicy != nil {
		rules.groupPolicy = *spec.FSGroupPolicy
	}
	return rules
}

// attachRequired is Unknown until the CSIDrivers are listed.
func (p *plugins) attachRequired(driver string) nodevolume.Knowledge {
	if !p.csiDrivers.HasSynced() {
		return nodevolume.Unknown
	}
	return decision.Known(p.rules(driver).attachNeeded)
}

// supportsMode returns an error if the driver does not support a volume lifecycle mode. Without a CSIDriver, only Persistent is supported.
func (p *plugins) supportsMode(driver string, mode storagev1.VolumeLifecycleMode) error {
	object := p.csiDriver(driver)
	switch {
	case object == nil && mode == storagev1.VolumeLifecycleEphemeral:
		return errors.New(explain.NoCSIDriver(string(mode), driver))
	case object == nil:
		return nil
	}
	if modes := object.Spec.VolumeLifecycleModes; !slices.Contains(modes, mode) {
		return errors.New(explain.ModeNotSupported(string(mode), driver, modes))
	}
	return nil
}

func (p *plugins) newCSIDriverInformer(client kubernetes.Interface) cache.SharedIndexInformer {
	informer := newInformer(client.StorageV1().RESTClient(), "csidrivers", fields.Everything(), &storagev1.CSIDriver{})
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		p.on.csiDriversUnknown(err)
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
		p.changed(driver.Name)
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    wake,
		UpdateFunc: func(_, object any) { wake(object) },
		DeleteFunc: wake,
	})
	return informer
}
