package plugins

import (
	"context"
	"errors"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// Rules are the settings of a CSIDriver that concern a node.
type Rules struct {
	// AttachRequired is Unknown until the CSIDrivers are listed.
	AttachRequired nodevolume.Knowledge
	PodInfo        bool
	// Tokens are those of the pod's service account that the driver needs: with TokensInSecrets in the secrets, otherwise in the volume
	// context.
	Tokens          []storagev1.TokenRequest
	TokensInSecrets bool
	Republish       bool
	// SELinux is spec.seLinuxMount: volumes may be mounted with an SELinux label.
	SELinux     bool
	GroupPolicy storagev1.FSGroupPolicy
	// LimitPeriod is nodeAllocatableUpdatePeriodSeconds; 0 means that the limit is never refreshed, also not after a refused attach.
	LimitPeriod time.Duration

	driver string
	// modes are those of the CSIDriver; nil without one.
	modes *[]storagev1.VolumeLifecycleMode
}

// csiDriver returns the cached CSIDriver, or nil.
func (p *Plugins) csiDriver(name string) *storagev1.CSIDriver {
	object, _, _ := p.csiDrivers.GetStore().GetByKey(name) // a store in memory returns no error
	driver, _ := object.(*storagev1.CSIDriver)
	return driver
}

// Rules returns the settings of a CSIDriver, or the defaults if there is none.
func (p *Plugins) Rules(driver string) Rules {
	rules := Rules{GroupPolicy: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, driver: driver}
	listed, object := p.csiDrivers.HasSynced(), p.csiDriver(driver)
	if listed {
		rules.AttachRequired = decision.Known(kube.AttachRequired(object))
	}
	if object == nil {
		return rules
	}
	spec := object.Spec
	is := func(b *bool) bool { return b != nil && *b }
	rules.PodInfo, rules.Republish, rules.SELinux = is(spec.PodInfoOnMount), is(spec.RequiresRepublish), is(spec.SELinuxMount)
	rules.Tokens, rules.TokensInSecrets = spec.TokenRequests, is(spec.ServiceAccountTokenInSecrets)
	rules.modes = &spec.VolumeLifecycleModes
	if spec.FSGroupPolicy != nil {
		rules.GroupPolicy = *spec.FSGroupPolicy
	}
	if seconds := spec.NodeAllocatableUpdatePeriodSeconds; seconds != nil {
		rules.LimitPeriod = time.Duration(*seconds) * p.config.LimitPeriodUnit
	}
	return rules
}

// Supports returns an error if the driver does not support a volume lifecycle mode. Without a CSIDriver, only Persistent is supported.
func (r Rules) Supports(mode storagev1.VolumeLifecycleMode) error {
	switch {
	case r.modes == nil && mode == storagev1.VolumeLifecycleEphemeral:
		return errors.New(explain.NoCSIDriver(string(mode), r.driver))
	case r.modes == nil || slices.Contains(*r.modes, mode):
		return nil
	default:
		return errors.New(explain.ModeNotSupported(string(mode), r.driver, *r.modes))
	}
}

func (p *Plugins) newCSIDriverInformer() cache.SharedIndexInformer {
	informer := worker.NewInformer(p.config.Client.StorageV1().RESTClient(), "csidrivers", fields.Everything(), &storagev1.CSIDriver{})
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		p.on.CSIDriversUnknown(err)
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
