package attacher

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	libleader "github.com/kubernetes-csi/csi-lib-utils/leaderelection"
	"github.com/kubernetes-csi/csi-lib-utils/standardflags"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/usage"
)

// defaultKubeAPIQPS is no limit, as belay-controller's. An attach takes three requests, so
// csi-attacher's 5 a second allow fewer than two attaches a second. The API server protects
// itself by priority and fairness.
const defaultKubeAPIQPS = "-1"

// defaultWorkerThreads is more than csi-attacher's 10, with which ten volumes that hang hold up all others (ADR 12).
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

	// ReconcileSync and MaxEntries belong to the comparison with ListVolumes.
	ReconcileSync time.Duration
	MaxEntries    int

	FeatureGates map[string]bool
	Common       *standardflags.SidecarConfiguration

	ignored []string // obsolete flags that were given
}

// knownGates are csi-attacher's feature gates. Neither changes anything here:
// error codes are always stored, the lease is always released.
var knownGates = []string{"MutableCSINodeAllocatableCount", "ReleaseLeaderElectionOnExit"}

// RegisterFlags registers every flag on the command line's flag set; those of
// logging come from component-base. Read the Options after parsing.
func RegisterFlags() *Options {
	flags := flag.CommandLine // csi-lib-utils puts some of its flags there
	o := &Options{Common: &standardflags.Configuration}
	flags.DurationVar(&o.Resync, "resync", 10*time.Minute, "How often the watch caches deliver all their objects again. Nothing depends on it.")
	flags.DurationVar(&o.Timeout, "timeout", 15*time.Second, "How long one call to the CSI driver may take.")
	flags.DurationVar(&o.RetryIntervalStart, "retry-interval-start", time.Second, "Back-off after the first failed call for a volume. It doubles with each failure, up to retry-interval-max, and ends when something changes that the call depends on.")
	flags.DurationVar(&o.RetryIntervalMax, "retry-interval-max", 5*time.Minute, "Longest back-off after failed calls.")
	flags.UintVar(&o.WorkerThreads, "worker-threads", defaultWorkerThreads, "How many calls to the CSI driver may be in flight at once. A quarter of them is for volumes whose last call was not answered in time.")
	flags.IntVar(&o.MaxEntries, "max-entries", 0, "How many volumes one page of ListVolumes may hold; 0 means no limit.")
	flags.StringVar(&o.DefaultFSType, "default-fstype", "", "The filesystem type that is sent for a volume that names none.")
	flags.DurationVar(&o.ReconcileSync, "reconcile-sync", time.Minute, "How often attachments are compared with what the CSI driver lists.")
	flags.IntVar(&o.MaxGRPCLogLength, "max-grpc-log-length", -1, "How many characters of each gRPC response are logged at most; not above 0 means no limit.")
	flags.Var(cliflag.NewMapStringBool(&o.FeatureGates), "feature-gates", "key=value pairs. Known are "+strings.Join(knownGates, " and ")+", csi-attacher's own; they change nothing here. Others are ignored with a warning.")
	standardflags.RegisterCommonFlags(flags)
	standardflags.AddAutomaxprocs(klog.Infof)
	override(flags, "kube-api-qps", defaultKubeAPIQPS, "Requests a second to the Kubernetes API server, on average. Not above 0 means no limit: the API server's fair queueing shares it out. Watches and the leader lease are not limited.")
	flags.Lookup("kube-api-burst").Usage = "Requests to the Kubernetes API server at once, where --kube-api-qps sets a limit."
	o.acceptObsolete(flags)
	return o
}

// ParseFlags reads the command line. If ok is false the process ends with the exit code, as after package flag's own
// parsing. After a mistake it prints that alone: in a container's log the usage would hide it.
func ParseFlags(args []string) (exitCode int, ok bool) {
	flags := flag.CommandLine
	flags.Init(flags.Name(), flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	flags.SetOutput(os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		flags.Usage()
		return 0, false
	case err != nil:
		fmt.Fprintf(os.Stderr, "%v\nRun with --help for usage.\n", err)
		return usage.StatusWrong, false
	case flags.NArg() > 0: // package flag reads no flag after it, and says nothing
		fmt.Fprintf(os.Stderr, "unexpected argument %q: positional arguments are not supported; write boolean flags as --flag=value\n", flags.Arg(0))
		return usage.StatusWrong, false
	default:
		return 0, true
	}
}

// checkValues refuses values that nothing could work with.
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
	return checkMetricsPath(o.Common.MetricsPath)
}

// checkMetricsPath refuses what http.ServeMux panics on.
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

// obsolete are the flags of klog and glog that csi-attacher's README names and its
// logging library has dropped. The values are their old defaults.
var obsolete = map[string]string{
	"add_dir_header": "false", "alsologtostderr": "false", "alsologtostderrthreshold": "0", "legacy_stderr_threshold_behavior": "true",
	"log_backtrace_at": "", "log_dir": "", "log_file": "", "log_file_max_size": "1800", "log_link": "", "logbuflevel": "0",
	"logtostderr": "true", "one_output": "false", "skip_headers": "false", "skip_log_headers": "false", "stderrthreshold": "2",
}

// acceptObsolete registers flags that have no effect any more, so that manifests
// which set them go on working.
func (o *Options) acceptObsolete(flags *flag.FlagSet) {
	for _, name := range slices.Sorted(maps.Keys(obsolete)) {
		if flags.Lookup(name) == nil {
			flags.Var(&ignored{name: name, value: obsolete[name], used: &o.ignored}, name, "Deprecated: ignored. Logs are written to stderr.")
		}
	}
}

// ignored is a flag that is accepted and does nothing.
type ignored struct {
	name, value string
	used        *[]string // the names of those that were given
}

func (i *ignored) String() string { return i.value }

func (i *ignored) Set(value string) error {
	i.value = value
	*i.used = append(*i.used, i.name)
	return nil
}

// IsBoolFlag lets the obsolete switches stand without a value.
func (i *ignored) IsBoolFlag() bool {
	value := obsolete[i.name]
	return value == "true" || value == "false"
}
