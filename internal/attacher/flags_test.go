package attacher

import (
	"cmp"
	"errors"
	"flag"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/kubernetes-csi/csi-lib-utils/standardflags"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // as the program does
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/usage"
)

// readmeFlags are those that csi-attacher's README of the v2 line names, besides "all glog /
// klog arguments".
var readmeFlags = []string{
	"csi-address", "leader-election", "leader-election-namespace", "timeout", "worker-threads", "retry-interval-start",
	"retry-interval-max", "metrics-address", "metrics-path", "reconcile-sync", "kubeconfig", "resync", "version", "v", "alsologtostderr",
}

// glogFlags are github.com/golang/glog's.
var glogFlags = []string{
	"alsologtostderr", "log_backtrace_at", "log_dir", "log_link", "logbuflevel", "logtostderr", "stderrthreshold", "v", "vmodule",
}

// execute runs a program that ends by itself.
func execute(t *testing.T, path string, args ...string) (text string, exitCode int) {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		exitCode = exit.ExitCode()
	}
	return string(output), exitCode
}

var (
	helpFlag    = regexp.MustCompile(`^  -(\S+)`)
	helpDefault = regexp.MustCompile(`\(default (.*)\)$`)
)

// helped is what --help says of each flag: its default, "" where that is zero.
func helped(t *testing.T, path string) (defaults map[string]string, text string) {
	t.Helper()
	text, code := execute(t, path, "--help")
	if code != 0 {
		t.Fatalf("%s --help ends with %d: %s", path, code, text)
	}
	defaults = map[string]string{}
	name := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if m := helpFlag.FindStringSubmatch(line); m != nil {
			name = m[1]
			defaults[name] = ""
		} else if m := helpDefault.FindStringSubmatch(line); m != nil && name != "" {
			defaults[name] = m[1]
		}
	}
	if len(defaults) < 30 {
		t.Fatalf("unexpected --help of %s: %s", path, text)
	}
	return defaults, text
}

var flagRow = regexp.MustCompile("(?m)^\\| `--(\\S+)` \\| (\\S+) \\| (\\S+) \\| \\S.* \\|$")

// documentedFlags reads the table of docs/adopt-attacher.md: the defaults of upstream and belay,
// "none" for a flag that does not exist there.
func documentedFlags(t *testing.T) map[string][2]string {
	t.Helper()
	content, err := os.ReadFile("../../docs/adopt-attacher.md")
	must(t, err)
	found := map[string][2]string{}
	for _, m := range flagRow.FindAllStringSubmatch(string(content), -1) {
		found[m[1]] = [2]string{m[2], m[3]}
	}
	return found
}

// Every flag of csi-attacher v4.12.0 exists with its default or one that is documented, both as
// the two programs themselves say; and every flag that its README ever promised is accepted.
func TestFlagsOfBothPrograms(t *testing.T) {
	upstream, _ := helped(t, upstreamPath(t))
	belay, _ := helped(t, programPath(t))
	differences := map[string][2]string{}
	for name, is := range upstream {
		if got, ok := belay[name]; !ok {
			t.Errorf("csi-attacher has -%s", name)
		} else if got != is {
			differences[name] = [2]string{is, got}
		}
	}
	for name, is := range belay {
		_, known := upstream[name]
		if _, old := obsolete[name]; !known && !old {
			differences[name] = [2]string{"none", cmp.Or(is, `""`)}
		}
	}
	if diff := gocmp.Diff(documentedFlags(t), differences); diff != "" {
		t.Errorf("docs/adopt-attacher.md and the programs (-docs +programs):\n%s", diff)
	}
	old := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(old)
	names := slices.Concat(readmeFlags, glogFlags)
	old.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	for _, name := range names {
		if _, ok := belay[name]; !ok {
			t.Errorf("-%s, which csi-attacher's README promises, is not accepted", name)
		}
	}
	for name := range obsolete {
		if !slices.Contains(names, name) {
			t.Errorf("-%s is obsolete, and never was a flag", name)
		}
	}
}

// sample are values for flags whose default does not show their format.
var sample = map[string]string{
	"feature-gates": "MutableCSINodeAllocatableCount=false,ReleaseLeaderElectionOnExit=true,AllAlpha=false", "leader-election-labels": "a:b,c:d",
	"log-json-info-buffer-size": "1Ki", "log-text-info-buffer-size": "1Ki", "v": "4", "vmodule": "main=2", "max-entries": "10",
	"http-endpoint": "127.0.0.1:1", "metrics-address": "127.0.0.1:1",
}

// Each flag, in each spelling, is accepted or refused as csi-attacher does, which the test runs to find out.
func TestEveryFlagIsReadAsUpstreamReadsIt(t *testing.T) {
	upstream, belay := upstreamPath(t), programPath(t)
	defaults, text := helped(t, upstream)
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		value := strings.Trim(defaults[name], `"`)
		if sample[name] != "" {
			value = sample[name]
		}
		spellings := [][]string{{"-" + name + "=" + value}, {"--" + name, value}}
		// One without a type in --help is a switch: it stands alone.
		if strings.Contains(text, "\n  -"+name+"\n") {
			spellings = [][]string{{"-" + name}, {"--" + name + "=true"}, {"--" + name + "=no-boolean"}}
		}
		for _, args := range spellings {
			asUpstream(t, upstream, belay, append(args, "--version"))
		}
	}
}

var logLine = regexp.MustCompile(`(?m)^[IWEF]\d{4} .*\n`)

// asUpstream compares the exit code and the first line that is not the log's.
func asUpstream(t *testing.T, upstream, belay string, args []string) {
	t.Helper()
	wantText, wantCode := execute(t, upstream, args...)
	gotText, gotCode := execute(t, belay, args...)
	want := wantCode
	if wantCode == usage.StatusFailed && !slices.Contains(args, "--kubeconfig=/nonexistent") && len(args) > 0 {
		want = usage.StatusWrong // as belay's other programs
	}
	if gotCode != want {
		t.Errorf("%v: ends with %d, want %d, csi-attacher with %d: %s", args, gotCode, want, wantCode, gotText)
	}
	say := func(text string) string {
		line, _, _ := strings.Cut(logLine.ReplaceAllString(text, ""), "\n")
		return strings.NewReplacer(upstream, "PROGRAM", belay, "PROGRAM", "v4.12.0", "VERSION", builtVersion+" (commit unknown, "+runtime.Version()+")", "VERSION", builtVersion, "VERSION").Replace(line)
	}
	if wantCode != 1 && say(gotText) != say(wantText) { // the words of 1 are the program's own
		t.Errorf("%v: says %q, csi-attacher %q", args, say(gotText), say(wantText))
	}
}

func TestInvalidFlagsAreRefusedLikeUpstream(t *testing.T) {
	upstream, belay := upstreamPath(t), programPath(t)
	for name, args := range map[string][]string{
		"unknown":                    {"--nope"},
		"no duration":                {"--timeout=x"},
		"negative count":             {"--worker-threads=-1"},
		"no number":                  {"-v=x"},
		"no value":                   {"--metrics-path"},
		"gate without value":         {"--feature-gates=Nope"},
		"label without value":        {"--leader-election-labels=a"},
		"no switch":                  {"--leader-election=maybe"},
		"log format":                 {"--logging-format=xml"},
		"two addresses":              {"--metrics-address=:1", "--http-endpoint=:2"},
		"no workers":                 {"--worker-threads=0"},
		"no kubeconfig":              {"--kubeconfig=/nonexistent"},
		"not in a cluster":           {},
		"alpha logging without gate": {"--log-text-split-stream"},
	} {
		t.Run(name, func(t *testing.T) { asUpstream(t, upstream, belay, args) })
	}
}

// csi-attacher ignores every flag after a positional argument, as in "--leader-election true".
func TestPositionalArgumentsAreRefused(t *testing.T) {
	belay := programPath(t)
	for _, args := range [][]string{{"word", "--timeout=1s"}, {"--leader-election", "true", "--timeout=1s"}} {
		text, code := execute(t, belay, args...)
		if want := "positional arguments are not supported; write boolean flags as --flag=value"; code != 2 || !strings.Contains(text, want) || strings.Count(text, "\n") != 1 {
			t.Errorf("%v: exit code %d, want 2 and one line with %q:\n%s", args, code, want, text)
		}
	}
}

// Obsolete flags are accepted in every spelling, and the log reports, in its own format, that they are ignored.
func TestObsoleteFlagsAreAcceptedWithAWarning(t *testing.T) {
	belay := programPath(t)
	for _, name := range slices.Sorted(maps.Keys(obsolete)) {
		if _, code := execute(t, belay, "-"+name+"="+obsolete[name], "--version"); code != 0 {
			t.Errorf("-%s: ends with %d", name, code)
		}
	}
	text, code := execute(t, belay, "--logging-format=json", "-alsologtostderr", "--logtostderr=true", "-stderrthreshold", "ERROR", "--log_dir=/tmp", "--kubeconfig=/none")
	if code != 1 {
		t.Errorf("ends with %d", code)
	}
	if !strings.Contains(text, `"msg":"Starting belay-attacher","v":0,"version":"`) {
		t.Errorf("the log does not begin with the version: %s", text)
	}
	for _, name := range []string{"alsologtostderr", "logtostderr", "stderrthreshold", "log_dir"} {
		if !strings.Contains(text, `"msg":"Ignoring obsolete flag","v":0,"flag":"`+name+`"`) {
			t.Errorf("no warning about -%s: %s", name, text)
		}
	}
}

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
			must(t, flags.Parse(tt.args))
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
		"no workers":                   {[]string{"--worker-threads=0"}, "--worker-threads is 0, but must be greater than zero"},
		"an address that is no socket": {[]string{"--csi-address=tcp://x"}, `--csi-address is "tcp://x", but must be the absolute path of a Unix socket`},
		"no socket":                    {[]string{"--csi-address="}, `--csi-address is "", but must be the absolute path of a Unix socket`},
		"a socket at a relative path":  {[]string{"--csi-address=unix://csi.sock"}, `--csi-address is "unix://csi.sock", but must be the absolute path`},
		"a lease that ends before it is renewed": {[]string{"--leader-election", "--leader-election-lease-duration=1s"},
			"--leader-election-lease-duration is 1s, but must be more than the renew deadline of 10s"},
		"a renewal without a second attempt": {[]string{"--leader-election", "--leader-election-renew-deadline=5s"},
			"--leader-election-renew-deadline is 5s, but must be more than 1.2 times the retry period of 5s"},
		"negative max-entries":              {[]string{"--max-entries=-1"}, "--max-entries is -1, but must not be negative"},
		"no retry interval":                 {[]string{"--retry-interval-start=0"}, "--retry-interval-start is 0s, but must be greater than zero"},
		"negative retry interval":           {[]string{"--retry-interval-start=-1s"}, "--retry-interval-start is -1s, but must be greater than zero"},
		"longest retry interval is shorter": {[]string{"--retry-interval-start=2s", "--retry-interval-max=1s"}, "--retry-interval-max is 1s, but must not be less than --retry-interval-start, which is 2s"},
		"no timeout":                        {[]string{"--timeout=0"}, "--timeout is 0s, but must be greater than zero"},
		"QPS that is no number":             {[]string{"--kube-api-qps=NaN"}, "--kube-api-qps is NaN, but must be a number"},
		"negative burst":                    {[]string{"--kube-api-burst=-1"}, "--kube-api-burst is -1, but must not be negative"},
		"negative resync":                   {[]string{"--resync=-1s"}, "--resync is -1s, but must not be negative"},
		"negative reconcile-sync":           {[]string{"--reconcile-sync=-1s"}, "--reconcile-sync is -1s, but must not be negative"},
		"negative lease duration":           {[]string{"--leader-election-retry-period=-1s"}, "--leader-election-retry-period is -1s, but must not be negative"},
		"metrics path without a slash":      {[]string{"--metrics-path=metrics"}, `--metrics-path is "metrics", but must begin with /`},
		"empty metrics path":                {[]string{"--metrics-path="}, `--metrics-path is "", but must begin with /`},
		"metrics path that is taken":        {[]string{"--metrics-path=/readyz"}, `--metrics-path is "/readyz", which serves something else`},
		"metrics path that is a pattern":    {[]string{"--metrics-path=/{"}, `--metrics-path is "/{", but must not contain spaces or braces`},
		"an address without a port":         {[]string{"--http-endpoint=frob"}, `--http-endpoint is "frob", but must be host:port`},
		"two metric addresses":              {[]string{"--metrics-address=:1", "--http-endpoint=:2"}, "only one of"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			flags, o := commandLine(t)
			must(t, flags.Parse(tt.args))
			err := RunSidecar(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), tt.want) || usage.Status(err) != usage.StatusWrong {
				t.Errorf("got %v, want a usage error about %q", err, tt.want)
			}
		})
	}
}

// A flag that cannot be read is named in the last lines of the log: `kubectl logs --tail` would show the end of the usage.
func TestMistypedFlagPrintsNoUsage(t *testing.T) {
	for arg, want := range map[string]string{
		"--timout=1s":   "flag provided but not defined: -timout\nRun with --help for usage.\n",
		"--timeout=1":   "invalid value \"1\" for flag -timeout: parse error\nRun with --help for usage.\n",
		"--csi-address": "flag needs an argument: -csi-address\nRun with --help for usage.\n",
	} {
		if text, code := execute(t, programPath(t), arg); code != 2 || text != want {
			t.Errorf("%s: exit code %d, want 2 and %q:\n%s", arg, code, want, text)
		}
	}
	if text, code := execute(t, programPath(t), "-h"); code != 0 || !strings.Contains(text, "-retry-interval-start") {
		t.Errorf("-h: exit code %d, and\n%s", code, text)
	}
}
