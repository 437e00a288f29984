package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/mounttable"
	"belay.dev/belay/internal/nodevolume"
	"belay.dev/belay/internal/telemetry"
)

// Config is documented at belay.dev/belay/node.Config.
type Config struct {
	NodeName    string
	Root        string
	RESTConfig  *rest.Config
	Logger      logr.Logger
	RPCTimeout  time.Duration
	SyncPeriod  time.Duration
	BootID      string
	MountPoints func() ([]string, error)
	Containers  Containers
	Metrics     prometheus.Registerer
	StatsPeriod time.Duration
	Traces      *telemetry.Traces

	// The fields below are set by tests only. complete sets the defaults.

	attachErrorAfter time.Duration
	// limitPeriodUnit is the unit of nodeAllocatableUpdatePeriodSeconds.
	limitPeriodUnit                         time.Duration
	fsGroupEventDelay, fsGroupEventInterval time.Duration
	changeGroup                             func(*mount.Root, context.Context, string, *mount.GroupChange) error
	writeRecord                             func(*mount.Root, string, []byte, mount.Durability) error
	fileLabel                               func(*corev1.SELinuxOptions) (string, error)
	republishPeriod                         time.Duration
	waitEventDelay, claimEventDelay         time.Duration
	// reconnected is called after each new connection to a driver.
	reconnected func(driver string)
	// callTimeout, if set, is used instead of RPCTimeout for a call about a volume.
	callTimeout func(method string) time.Duration
	// waitEventDelayOf, if set, is used instead of waitEventDelay for a wait, by its reason and text.
	waitEventDelayOf func(reason nodevolume.Reason, text string) time.Duration
}

const (
	defaultRoot       = "/var/lib/kubelet"
	defaultRPCTimeout = 2 * time.Minute // kubelet's csiTimeout
	defaultSyncPeriod = time.Minute     // kubelet's syncFrequency
	bootIDFile        = "/proc/sys/kernel/random/boot_id"
)

// complete sets the defaults and rejects an invalid Config.
func (c *Config) complete() error {
	if c.NodeName == "" {
		return errors.New("node agent: NodeName is required")
	}
	if c.RESTConfig == nil {
		return errors.New("node agent: RESTConfig is required")
	}
	c.Root = cmp.Or(c.Root, defaultRoot)
	if err := c.checkRights(); err != nil {
		return err
	}
	c.fsGroupEventDelay, c.fsGroupEventInterval = cmp.Or(c.fsGroupEventDelay, defaultFSGroupEventDelay), cmp.Or(c.fsGroupEventInterval, defaultFSGroupEventInterval)
	if c.reconnected == nil {
		c.reconnected = func(string) {}
	}
	if c.changeGroup == nil {
		c.changeGroup = (*mount.Root).ChangeGroup
	}
	if c.writeRecord == nil {
		c.writeRecord = (*mount.Root).Write
	}
	if c.fileLabel == nil {
		c.fileLabel = fileLabel
	}
	c.republishPeriod = cmp.Or(c.republishPeriod, defaultRepublishPeriod)
	c.RPCTimeout, c.SyncPeriod, c.StatsPeriod = cmp.Or(c.RPCTimeout, defaultRPCTimeout), cmp.Or(c.SyncPeriod, defaultSyncPeriod), cmp.Or(c.StatsPeriod, defaultStatsPeriod)
	c.attachErrorAfter = cmp.Or(c.attachErrorAfter, attachErrorAfter)
	c.waitEventDelay, c.claimEventDelay = cmp.Or(c.waitEventDelay, defaultWaitEventDelay), cmp.Or(c.claimEventDelay, defaultClaimEventDelay)
	if c.Logger.GetSink() == nil {
		c.Logger = logr.Discard()
	}
	c.Logger = c.Logger.WithValues("node", c.NodeName)
	if c.BootID == "" {
		raw, err := os.ReadFile(bootIDFile)
		if err != nil {
			return fmt.Errorf("read the boot ID of this machine: %w", err)
		}
		c.BootID = strings.TrimSpace(string(raw))
	}
	c.RESTConfig = rest.CopyConfig(c.RESTConfig)
	if c.RESTConfig.QPS == 0 && c.RESTConfig.RateLimiter == nil {
		// API priority and fairness in the API server does the throttling.
		c.RESTConfig.QPS = -1
	}
	return nil
}

// checkRights refuses to start where the search for other users would not see all of them: each unmount would wait. Simulated nodes mount
// nothing.
func (c *Config) checkRights() error {
	if c.MountPoints != nil {
		return nil
	}
	if err := mounttable.CheckRights(); err != nil {
		return fmt.Errorf("node agent: %w; remedy: %s", err, explain.GrantCapabilities)
	}
	return nil
}

// withRemedy adds what an administrator can do about the error, where that is known.
func (c *Config) withRemedy(err error) error {
	var remedy string
	switch {
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		remedy = explain.GrantAccess(c.NodeName)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		remedy = explain.FreeSpace(c.Root)
	case errors.Is(err, syscall.EROFS):
		remedy = explain.MakeWritable(c.Root)
	case errors.Is(err, mount.ErrSymlinkOutside):
		remedy = explain.ReplaceLink(c.Root)
	default:
		return err
	}
	return fmt.Errorf("%w; remedy: %s", err, remedy)
}

// defaultRepublishPeriod is the interval of requiresRepublish, extended by up to a half. Kubelet republishes whenever it syncs the pod:
// with its syncFrequency (one minute) and the pod workers' jitter every 60 to 90 s.
const defaultRepublishPeriod = time.Minute

// defaultStatsPeriod is kubelet's volumeStatsAggPeriod.
const defaultStatsPeriod = time.Minute

// defaultWaitEventDelay is how long a pod waits for the same reason before it gets an event.
const defaultWaitEventDelay = 30 * time.Second

// defaultClaimEventDelay is how long a claim may be unreadable before its pod gets an event: the Node authorizer sees a new pod with a
// delay.
const defaultClaimEventDelay = 5 * time.Second

// A slow fsGroup change emits its first event after defaultFSGroupEventDelay, and then one per interval, as in kubelet.
const (
	defaultFSGroupEventDelay    = 30 * time.Second
	defaultFSGroupEventInterval = time.Minute
)

// A node cannot watch VolumeAttachments: it reads the attachError of a volume once it has waited for attachErrorAfter, and then every
// attachErrorAgain.
const (
	attachErrorAfter = 5 * time.Second
	attachErrorAgain = 30 * time.Second
)

// Containers is documented at belay.dev/belay/node.Containers.
type Containers interface {
	Ended(ctx context.Context, podUID string) (release func(), err error)
}
