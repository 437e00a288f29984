package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

// options are the flags. Flags that kube-controller-manager also has share its names and defaults.
type options struct {
	kubeconfig string

	maxWaitForUnmount time.Duration
	disableForce      bool
	disableForceFlag  *pflag.Flag
	deletedNode       string
	syncPeriod        time.Duration
	disableSync       bool
	foreignWriter     string

	controllers []string
	recovery    recoveryOptions

	leaderElect   bool
	resourceLock  string
	lease         kube.LeaseConfig
	manager       kube.ManagerConfig
	metricsSecure bool

	logging *logsapi.LoggingConfiguration
}

// Values of --deleted-node-policy.
var (
	deletedNodeWait   = attachment.DeletedNodeWait.String()
	deletedNodeDetach = attachment.DeletedNodeDetach.String()
)

// Values of --on-foreign-writer.
const (
	foreignWriterHold = "hold"
	foreignWriterWarn = "warn"
)

// validate rejects invalid values.
func (o *options) validate() error {
	if o.maxWaitForUnmount <= 0 {
		return fmt.Errorf("--max-wait-for-unmount-duration is %v, but must be above 0; to force no detach, use --disable-force-detach-on-timeout", o.maxWaitForUnmount)
	}
	if o.deletedNode != deletedNodeWait && o.deletedNode != deletedNodeDetach {
		return fmt.Errorf("--deleted-node-policy must be %s or %s, not %q", deletedNodeWait, deletedNodeDetach, o.deletedNode)
	}
	if o.foreignWriter != foreignWriterHold && o.foreignWriter != foreignWriterWarn {
		return fmt.Errorf("--on-foreign-writer must be %s or %s, not %q", foreignWriterHold, foreignWriterWarn, o.foreignWriter)
	}
	if o.syncPeriod < time.Second {
		return fmt.Errorf("--attach-detach-reconcile-sync-period is %v, but must be at least 1s, as for kube-controller-manager", o.syncPeriod)
	}
	if o.manager.QPS > 0 && o.manager.Burst < 1 {
		return fmt.Errorf("--kube-api-burst is %d, but must be at least 1 when --kube-api-qps limits the rate", o.manager.Burst)
	}
	return errors.Join(o.validateRecovery(), o.validateLease(), o.validateAddresses())
}

func (o *options) validateLease() error {
	if !o.leaderElect {
		return nil
	}
	m, l := &o.manager, &o.lease
	switch {
	case o.resourceLock != "leases":
		return fmt.Errorf("--leader-elect-resource-lock is %q, but only leases are supported", o.resourceLock)
	case l.Namespace == "":
		return errors.New("--leader-elect-resource-namespace must not be empty")
	}
	return usage.LeaseTimes{Prefix: "leader-elect", Duration: m.LeaseDuration, RenewDeadline: l.RenewDeadline, RetryPeriod: m.RetryPeriod}.Check()
}

func (o *options) validateAddresses() error {
	return errors.Join(
		usage.CheckAddress("health-probe-bind-address", o.manager.HealthAddress),
		usage.CheckAddress("metrics-bind-address", o.manager.MetricsAddress),
		usage.CheckAddress("pprof-bind-address", o.manager.ProfileAddress))
}

// policy returns when a volume that may be in use is detached. As upstream, the out-of-service taint is always
// respected: the person who sets it is responsible.
func (o *options) policy() attachment.Policy {
	p := attachment.Policy{OutOfService: true, UnmountTimeout: o.maxWaitForUnmount, FencesProve: o.recovers() && o.recovery.partsRun().Actor}
	if o.disableForce || o.recovers() && !o.disableForceFlag.Changed {
		p.UnmountTimeout = 0
	}
	if o.deletedNode == deletedNodeDetach {
		p.DeletedNode = attachment.DeletedNodeDetach
	}
	return p
}

// recovers reports whether recovery acts in this process. Then it moves the volumes of dead nodes on evidence, and a timer, which is none,
// forces only if a person says so. With --recovery-dry-run the controller behaves as without recovery.
func (o *options) recovers() bool { return o.runs(controllerRecovery) && !o.recovery.dryRun }

// complete sets the values that have no flag.
func (o *options) complete() {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// The hostname alone would let two processes on a host hold the lease at once.
	o.lease.Identity = host + "_" + uuid.NewString()
	if o.metricsSecure {
		o.manager.MetricsFilter = filters.WithAuthenticationAndAuthorization
	}
	if !o.leaderElect {
		return
	}
	if o.lease.Name == "" {
		o.lease.Name = o.leaseName()
	}
	o.manager.Lease = &o.lease
}

// startLogging sets up one log on stderr for belay, controller-runtime and client-go.
func (o *options) startLogging() error {
	logs.InitLogs()
	if err := logsapi.ValidateAndApplyWithOptions(o.logging, &logsapi.LoggingOptions{ErrorStream: printable.Stderr, InfoStream: printable.Stdout}, nil); err != nil {
		return fmt.Errorf("configure logging: %w", err)
	}
	log.SetLogger(kube.LimitLog(klog.Background()))
	return nil
}

// warn logs flags that are ignored.
func (o *options) warn(given func(flag string) bool) {
	for _, name := range []string{flagSyncPeriod, flagDisableSync} {
		if given(name) {
			klog.Background().Info("Ignoring deprecated flag because there is no second record of attachments to compare", "flag", "--"+name)
		}
	}
	if o.runs(controllerAttachDetach) && o.recovers() && !o.disableForce && o.disableForceFlag.Changed {
		klog.Background().Info("Detaching by force after a timeout although recovery runs", "flag", "--"+flagDisableForce+"=false",
			"timeout", o.maxWaitForUnmount)
	}
	if !o.leaderElect {
		klog.Background().Error(nil, "Leader election is disabled", "remedy", "make sure that only one belay-controller runs")
	}
}

// records is the Lease by which leaders know that all attachments are recorded. It is beside the leader lease.
func (o *options) records() client.ObjectKey {
	return client.ObjectKey{Namespace: o.lease.Namespace, Name: o.lease.Name + "-records"}
}

// settle is attachdetach.Options.Settle; tests shorten it.
var settle time.Duration
