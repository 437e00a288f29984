package attacher

import (
	"flag"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kubernetes-csi/csi-lib-utils/standardflags"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // as the program does
)

// upstreamFlags are all flags of csi-attacher v4.12.0 with their defaults, as its
// --help prints them, and those that its README names besides.
var upstreamFlags = map[string]string{
	"automaxprocs": "", "csi-address": "/run/csi/socket", "default-fstype": "", "feature-gates": "",
	"http-endpoint": "", "kube-api-burst": "10", "kube-api-qps": "5", "kubeconfig": "",
	"leader-election": "false", "leader-election-labels": "map[]", "leader-election-lease-duration": "15s",
	"leader-election-namespace": "", "leader-election-renew-deadline": "10s", "leader-election-retry-period": "5s",
	"log-flush-frequency": "5s", "log-json-info-buffer-size": "0", "log-json-split-stream": "false",
	"log-text-info-buffer-size": "0", "log-text-split-stream": "false", "logging-format": "text",
	"max-entries": "0", "max-grpc-log-length": "-1", "metrics-address": "", "metrics-path": "/metrics",
	"reconcile-sync": "1m0s", "resync": "10m0s", "retry-interval-max": "5m0s", "retry-interval-start": "1s",
	"timeout": "15s", "v": "0", "version": "false", "vmodule": "", "worker-threads": "10",
	// klog's, named by the README and dropped by the logging library
	"alsologtostderr": "false", "logtostderr": "true", "stderrthreshold": "2", "log_dir": "", "log_file": "",
	"log_file_max_size": "1800", "log_backtrace_at": "", "add_dir_header": "false", "one_output": "false",
	"skip_headers": "false", "skip_log_headers": "false",
}

// changedDefaults are the defaults that differ, on purpose.
var changedDefaults = map[string]string{"kube-api-qps": defaultKubeAPIQPS, "kube-api-burst": defaultKubeAPIBurst}

// commandLine registers the flags as the program does.
func commandLine(t *testing.T) (*flag.FlagSet, *Options) {
	t.Helper()
	tests := flag.CommandLine
	t.Cleanup(func() { flag.CommandLine = tests })
	flag.CommandLine = flag.NewFlagSet("belay-attacher", flag.ContinueOnError)
	// The library keeps the labels of the test before in a map of its own.
	clear(standardflags.Configuration.LeaderElectionLabels)
	logsapi.AddGoFlags(logsapi.NewLoggingConfiguration(), flag.CommandLine)
	return flag.CommandLine, RegisterFlags()
}

func TestEveryUpstreamFlagIsAccepted(t *testing.T) {
	flags, _ := commandLine(t)
	got := map[string]string{}
	flags.VisitAll(func(f *flag.Flag) { got[f.Name] = f.DefValue })
	want := maps.Clone(upstreamFlags)
	maps.Copy(want, changedDefaults)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags and defaults (-want +got):\n%s", diff)
	}
}

// The list above is checked against the real program where there is one.
func TestUpstreamFlagListIsUpstreams(t *testing.T) {
	program := os.Getenv("BELAY_CSI_ATTACHER")
	if program == "" {
		t.Skip("set BELAY_CSI_ATTACHER to csi-attacher v4.12.0 to compare with its --help")
	}
	help, _ := exec.Command(program, "--help").CombinedOutput() // exits with 0 or 2
	names := regexp.MustCompile(`(?m)^  -([a-z_-]+)`).FindAllStringSubmatch(string(help), -1)
	if len(names) < 20 {
		t.Fatalf("unexpected --help: %s", help)
	}
	for _, name := range names {
		if _, ok := upstreamFlags[name[1]]; !ok {
			t.Errorf("csi-attacher has -%s", name[1])
		}
	}
}

func TestFlagsAsInManifests(t *testing.T) {
	tests := map[string]struct {
		args []string
		want func(o *Options) bool
	}{
		"upstream's example": {[]string{"--v=5", "--csi-address=/s", "--leader-election", "--http-endpoint=:8080"},
			func(o *Options) bool { return o.Common.LeaderElection && o.Common.CSIAddress == "/s" }},
		"obsolete klog flags": {[]string{"-alsologtostderr", "--logtostderr=true", "-stderrthreshold", "3", "--timeout=1m"},
			func(o *Options) bool { return o.Timeout.Minutes() == 1 }},
		"feature gates of every kind": {[]string{"--feature-gates=ReleaseLeaderElectionOnExit=true,SomeApiserverGate=false"},
			func(o *Options) bool { return o.FeatureGates["ReleaseLeaderElectionOnExit"] }},
		"labels of the lease": {[]string{"--leader-election-labels=a:b,c:d"},
			func(o *Options) bool { return o.Common.LeaderElectionLabels["c"] == "d" }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			flags, o := commandLine(t)
			if err := flags.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			if !tt.want(o) {
				t.Errorf("%s were read as %+v", strings.Join(tt.args, " "), o)
			}
		})
	}
}

func TestRefusedOptions(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"no workers":           {[]string{"--worker-threads=0"}, "worker-threads"},
		"two metric addresses": {[]string{"--metrics-address=:1", "--http-endpoint=:2"}, "only one of"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			flags, o := commandLine(t)
			if err := flags.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			if err := RunSidecar(t.Context(), o); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error about %q", err, tt.want)
			}
		})
	}
}
