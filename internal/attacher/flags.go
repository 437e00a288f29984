package attacher

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	libleader "github.com/kubernetes-csi/csi-lib-utils/leaderelection"
	"github.com/kubernetes-csi/csi-lib-utils/standardflags"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/printable"
	"belay.dev/belay/internal/usage"
)

// defaultKubeAPIQPS is no limit, as in belay-controller. An attach takes three requests, so csi-attacher's default of 5
// per second allows fewer than two attaches per second. The API server protects itself by priority and fairness.
const defaultKubeAPIQPS = "-1"

// defaultWorkerThreads is higher than csi-attacher's 10, with which ten hanging volumes block all others (ADR 12).
const defaultWorkerThreads = 256

// Options are the flags of csi-attacher v4.12.0, by the same names.
type Options struct {
	Timeout            time.Duration
	RetryIntervalStart time.Duration
	RetryIntervalMax   time.Duration
	Resync             time.Duration
	WorkerThreads      uint
	DefaultFSType      string
	MaxGRPCLogLength   int
	Version            string // of the program, for traces; not a flag

	// AnnotateCalls has calls that take long written on VolumeAttachments.
	AnnotateCalls bool
	// ReconcileSync and MaxEntries configure the comparison with ListVolumes.
	ReconcileSync time.Duration
	MaxEntries    int

	FeatureGates map[string]bool
	Common       *standardflags.SidecarConfiguration

	ignored []string // obsolete flags that were set
}

// knownGates are csi-attacher's feature gates. They have no effect here: error codes are always stored, and the lease
// is always released.
var knownGates = []string{"MutableCSINodeAllocatableCount", "ReleaseLeaderElectionOnExit"}

// RegisterFlags registers the flags on flag.CommandLine, except those for logging (component-base). The Options are
// valid after parsing.
func RegisterFlags() *Options {
	flags := flag.CommandLine // csi-lib-utils puts some of its flags there
	o := &Options{Common: &standardflags.Configuration}
	flags.DurationVar(&o.Resync, "resync", 10*time.Minute, "Resync period of the informers. Correctness does not depend on it.")
	flags.DurationVar(&o.Timeout, "timeout", 15*time.Second, "Timeout of one call to the CSI driver.")
	flags.DurationVar(&o.RetryIntervalStart, "retry-interval-start", time.Second, "Back-off after the first failed call for a volume. It doubles with each failure, up to retry-interval-max, and ends when an input of the call changes.")
	flags.DurationVar(&o.RetryIntervalMax, "retry-interval-max", 5*time.Minute, "Longest back-off after failed calls.")
	flags.UintVar(&o.WorkerThreads, "worker-threads", defaultWorkerThreads, "Maximum number of calls to the CSI driver in flight. At most a quarter of them are for volumes whose last call timed out, and up to a quarter more may be in flight beside calls that have taken more than 30 s.")
	flags.IntVar(&o.MaxEntries, "max-entries", 0, "Page size of ListVolumes; 0 leaves it to the CSI driver.")
	flags.StringVar(&o.DefaultFSType, "default-fstype", "", "The filesystem type of volumes that do not specify one.")
	flags.DurationVar(&o.ReconcileSync, "reconcile-sync", time.Minute, "How often VolumeAttachments are compared with ListVolumes of the CSI driver; 0 disables the comparison.")
	flags.BoolVar(&o.AnnotateCalls, "annotate-calls", true, "Write on VolumeAttachments, as annotations, which calls to the CSI driver have taken or were held back for 10 s, and at which other node ListVolumes has an exclusive volume too. kubectl belay and belay-controller read them.")
	flags.IntVar(&o.MaxGRPCLogLength, "max-grpc-log-length", -1, "Maximum number of characters that are logged of each gRPC response; 0 or less means no limit.")
	flags.Var(cliflag.NewMapStringBool(&o.FeatureGates), "feature-gates", "key=value pairs. Known gates are "+strings.Join(knownGates, " and ")+" (csi-attacher's), which have no effect here. Unknown gates are ignored with a warning.")
	standardflags.RegisterCommonFlags(flags)
	standardflags.AddAutomaxprocs(klog.Infof)
	override(flags, "kube-api-qps", defaultKubeAPIQPS, "Average requests per second to the Kubernetes API server. 0 or less means no limit: the API server protects itself by priority and fairness. Watches and the leader lease are not limited.")
	flags.Lookup("kube-api-burst").Usage = "Burst of requests to the Kubernetes API server, if --kube-api-qps sets a limit."
	o.acceptObsolete(flags)
	return o
}

// ParseFlags parses the command line. If ok is false, the process has to exit with the exit code. A usage error is
// printed without the usage, which would hide it in a container's log.
func ParseFlags(args []string) (exitCode int, ok bool) {
	flags := flag.CommandLine
	flags.Init(flags.Name(), flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	flags.SetOutput(printable.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.Usage()
		return 0, false
	case err != nil:
		_, _ = fmt.Fprintf(printable.Stderr, "%v\nRun with --help for usage.\n", err)
		return usage.StatusWrong, false
	case flags.NArg() > 0: // package flag silently stops parsing at it
		_, _ = fmt.Fprintf(printable.Stderr, "unexpected argument %q: positional arguments are not supported; write boolean flags as --flag=value\n", flags.Arg(0))
		return usage.StatusWrong, false
	default:
		return 0, true
	}
}

// checkValues rejects invalid values.
func (o *Options) checkValues() error {
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"timeout", o.Timeout}, {"retry-interval-start", o.RetryIntervalStart},
	} {
		if d.value <= 0 {
			return fmt.Errorf("--%s is %v, but must be greater than zero", d.flag, d.value)
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"resync", o.Resync}, {"reconcile-sync", o.ReconcileSync},
		{"leader-election-lease-duration", o.Common.LeaderElectionLeaseDuration},
		{"leader-election-renew-deadline", o.Common.LeaderElectionRenewDeadline},
		{"leader-election-retry-period", o.Common.LeaderElectionRetryPeriod},
	} {
		if d.value < 0 {
			return fmt.Errorf("--%s is %v, but must not be negative", d.flag, d.value)
		}
	}
	switch {
	case o.RetryIntervalMax < o.RetryIntervalStart:
		return fmt.Errorf("--retry-interval-max is %v, but must not be less than --retry-interval-start, which is %v", o.RetryIntervalMax, o.RetryIntervalStart)
	case o.MaxEntries < 0:
		return fmt.Errorf("--max-entries is %d, but must not be negative", o.MaxEntries)
	case math.IsNaN(o.Common.KubeAPIQPS):
		return errors.New("--kube-api-qps is NaN, but must be a number")
	case o.Common.KubeAPIBurst < 0:
		return fmt.Errorf("--kube-api-burst is %d, but must not be negative", o.Common.KubeAPIBurst)
	}
	if err := errors.Join(o.checkCSIAddress(), o.checkLease()); err != nil {
		return err
	}
	if err := errors.Join(usage.CheckAddress("http-endpoint", o.Common.HttpEndpoint), usage.CheckAddress("metrics-address", o.Common.MetricsAddress)); err != nil {
		return err
	}
	return checkMetricsPath(o.Common.MetricsPath)
}

// checkCSIAddress rejects what csi-attacher cannot connect to either: it watches for the loss of the connection, which
// csi-lib-utils does for Unix sockets only, and gRPC accepts no relative path after unix://.
func (o *Options) checkCSIAddress() error {
	if path := strings.TrimPrefix(o.Common.CSIAddress, "unix://"); !strings.HasPrefix(path, "/") {
		return fmt.Errorf("--csi-address is %q, but must be the absolute path of a Unix socket, with or without unix://", o.Common.CSIAddress)
	}
	return nil
}

// checkLease rejects times with which csi-attacher's leader election does not start either.
func (o *Options) checkLease() error {
	if !o.Common.LeaderElection {
		return nil
	}
	return usage.LeaseTimes{
		Prefix: "leader-election", Duration: o.Common.LeaderElectionLeaseDuration,
		RenewDeadline: o.Common.LeaderElectionRenewDeadline, RetryPeriod: o.Common.LeaderElectionRetryPeriod,
	}.Check()
}

// checkMetricsPath rejects paths that http.ServeMux panics on.
func checkMetricsPath(path string) error {
	switch {
	case !strings.HasPrefix(path, "/"):
		return fmt.Errorf("--metrics-path is %q, but must begin with /", path)
	case strings.ContainsAny(path, " \t{}"):
		return fmt.Errorf("--metrics-path is %q, but must not contain spaces or braces", path)
	case path == readyPath, path == libleader.HealthCheckerAddress:
		return fmt.Errorf("--metrics-path is %q, which serves something else", path)
	default:
		return nil
	}
}

// override changes the default of a flag that a library registered.
func override(flags *flag.FlagSet, name, value, usage string) {
	f := flags.Lookup(name)
	if err := f.Value.Set(value); err != nil {
		panic(err) // the values are constants above
	}
	f.DefValue, f.Usage = value, usage
}

// obsolete are klog and glog flags that csi-attacher's README documents and its logging library has dropped, with their
// defaults.
var obsolete = map[string]string{
	"add_dir_header": "false", "alsologtostderr": "false", "alsologtostderrthreshold": "0", "legacy_stderr_threshold_behavior": "true",
	"log_backtrace_at": "", "log_dir": "", "log_file": "", "log_file_max_size": "1800", "log_link": "", "logbuflevel": "0",
	"logtostderr": "true", "one_output": "false", "skip_headers": "false", "skip_log_headers": "false", "stderrthreshold": "2",
}

// acceptObsolete registers ignored flags, so that existing manifests keep working.
func (o *Options) acceptObsolete(flags *flag.FlagSet) {
	for _, name := range slices.Sorted(maps.Keys(obsolete)) {
		if flags.Lookup(name) == nil {
			flags.Var(&ignored{name: name, value: obsolete[name], used: &o.ignored}, name, "Deprecated: ignored. Logs are written to stderr.")
		}
	}
}

// ignored is a flag that is accepted and ignored.
type ignored struct {
	name, value string
	used        *[]string // names of the flags that were set
}

func (i *ignored) String() string { return i.value }

func (i *ignored) Set(value string) error {
	i.value = value
	*i.used = append(*i.used, i.name)
	return nil
}

// IsBoolFlag allows boolean flags without a value.
func (i *ignored) IsBoolFlag() bool {
	value := obsolete[i.name]
	return value == "true" || value == "false"
}
