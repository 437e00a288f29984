package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	logsapi "k8s.io/component-base/logs/api/v1"

	"belay.dev/belay/internal/attachment"
)

// parse reads a command line without running anything.
func parse(t *testing.T, args ...string) (*options, error) {
	t.Helper()
	o := &options{logging: logsapi.NewLoggingConfiguration()}
	cmd := &cobra.Command{RunE: func(*cobra.Command, []string) error { return o.validate() }, SilenceErrors: true, SilenceUsage: true}
	group(cmd, o.flags())
	cmd.SetArgs(args)
	return o, cmd.Execute()
}

func TestNonsenseIsRefusedInOneSentence(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string // part of the sentence, "" for accepted
	}{
		"nothing":                   {nil, ""},
		"no wait":                   {[]string{"--max-wait-for-unmount-duration=0s"}, "--disable-force-detach-on-timeout"},
		"unknown policy":            {[]string{"--deleted-node-policy=maybe"}, `not "maybe"`},
		"unknown reaction":          {[]string{"--on-foreign-writer=die"}, `not "die"`},
		"sync too often":            {[]string{"--attach-detach-reconcile-sync-period=10ms"}, "at least 1s"},
		"rate without burst":        {[]string{"--kube-api-qps=5", "--kube-api-burst=0"}, "--kube-api-burst"},
		"upstream's rate":           {[]string{"--kube-api-qps=20"}, ""},
		"two leaders":               {[]string{"--leader-elect-lease-duration=10s"}, "lead at once"},
		"renewal too late":          {[]string{"--leader-elect-retry-period=9s"}, "renew-deadline"},
		"renewal without pause":     {[]string{"--leader-elect-retry-period=0s"}, "retry-period"},
		"unknown lock":              {[]string{"--leader-elect-resource-lock=endpoints"}, "only leases"},
		"lease without namespace":   {[]string{"--leader-elect-resource-namespace="}, "must not be empty"},
		"unknown controller":        {[]string{"--controllers=recovery,nonsense"}, "attachdetach, recovery"},
		"no controller":             {[]string{"--controllers="}, "at least one"},
		"unknown role":              {[]string{"--recovery-roles=judge"}, "detector, fencer, actor"},
		"unknown profile":           {[]string{"--recovery-profile=slow"}, "default or fast"},
		"share above all":           {[]string{"--recovery-max-silent-share=1.1"}, "from 0 to 1"},
		"share that is no number":   {[]string{"--recovery-max-silent-zone-share=NaN"}, "from 0 to 1"},
		"a chance below 0":          {[]string{"--recovery-chance=-1s"}, "at least 0"},
		"no fence in flight":        {[]string{"--recovery-max-in-flight=0"}, "at least 1"},
		"lease unused":              {[]string{"--leader-elect=false", "--leader-elect-lease-duration=1s"}, ""},
		"address without port":      {[]string{"--metrics-bind-address=8080"}, "host:port"},
		"address":                   {[]string{"--health-probe-bind-address=:8081"}, ""},
		"unknown flag":              {[]string{"--nonsense"}, "unknown flag"},
		"what is no duration":       {[]string{"--max-wait-for-unmount-duration=6"}, "invalid"},
		"upstream's flags together": {[]string{"--attach-detach-reconcile-sync-period=2m", "--disable-attach-detach-reconcile-sync", "--disable-force-detach-on-timeout", "--v=4", "--vmodule=apply=9", "--logging-format=text"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tt.args...)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want one with %q", err, tt.want)
			case err != nil && strings.Contains(err.Error(), "\n"):
				t.Errorf("more than one sentence: %v", err)
			}
		})
	}
}

func TestPolicyFromFlags(t *testing.T) {
	tests := map[string]struct {
		args []string
		want attachment.Policy
	}{
		"as upstream": {nil, attachment.Policy{OutOfService: true, UnmountTimeout: 6 * time.Minute}},
		"longer":      {[]string{"--max-wait-for-unmount-duration=1h"}, attachment.Policy{OutOfService: true, UnmountTimeout: time.Hour}},
		"never by force": {
			[]string{"--disable-force-detach-on-timeout", "--max-wait-for-unmount-duration=1h"}, attachment.Policy{OutOfService: true},
		},
		"with recovery":     {[]string{"--controllers=attachdetach,recovery", "--recovery-roles=actor"}, attachment.Policy{OutOfService: true, FencesProve: true}},
		"with the detector": {[]string{"--controllers=attachdetach,recovery", "--recovery-roles=detector"}, attachment.Policy{OutOfService: true}},
		"with recovery, with a longer wait": {
			[]string{"--controllers=attachdetach,recovery", "--max-wait-for-unmount-duration=1h"}, attachment.Policy{OutOfService: true, FencesProve: true},
		},
		"with recovery, by force": {
			[]string{"--controllers=attachdetach,recovery", "--disable-force-detach-on-timeout=false"},
			attachment.Policy{OutOfService: true, UnmountTimeout: 6 * time.Minute, FencesProve: true},
		},
		"with recovery that only reports": {
			[]string{"--controllers=attachdetach,recovery", "--recovery-dry-run"}, attachment.Policy{OutOfService: true, UnmountTimeout: 6 * time.Minute},
		},
		"deleted node": {
			[]string{"--deleted-node-policy=detach"},
			attachment.Policy{OutOfService: true, UnmountTimeout: 6 * time.Minute, DeletedNode: attachment.DeletedNodeDetach},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := parse(t, tt.args...)
			must(t, err)
			if diff := cmp.Diff(tt.want, o.policy()); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
		})
	}
}

// differing are the defaults that differ from kube-controller-manager's on purpose.
var differing = map[string]bool{
	"kube-api-qps":               true, // docs/differences/controller.md
	"leader-elect-resource-name": true, // another process, another lease
	"controllers":                true, // other controllers
}

// A flag that kube-controller-manager has under the same name has the same default.
func TestDefaultsAreUpstreams(t *testing.T) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	upstream := filepath.Join(assets, "kube-controller-manager")
	if _, err := os.Stat(upstream); assets == "" || err != nil {
		t.Skip("needs kube-controller-manager in KUBEBUILDER_ASSETS")
	}
	help, err := exec.CommandContext(t.Context(), upstream, "--help").Output()
	must(t, err)
	theirs := defaults(string(help))
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	if err := cmd.Help(); err != nil {
		t.Fatal(err)
	}
	shared := 0
	for name, mine := range defaults(out.String()) {
		want, ok := theirs[name]
		if !ok {
			continue
		}
		shared++
		if mine != want && !differing[name] {
			t.Errorf("--%s is %s by default, for kube-controller-manager %s", name, mine, want)
		}
	}
	if shared < 15 {
		t.Errorf("only %d flags are shared: the test reads them wrong", shared)
	}
}

var (
	flagLine     = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z][a-z0-9-]*)`)
	flagsDefault = regexp.MustCompile(`\(default ([^)]*)\)`)
)

// defaults reads the help: the text of a flag ends where the next one begins.
func defaults(help string) map[string]string {
	found := map[string]string{}
	at := flagLine.FindAllStringSubmatchIndex(help, -1)
	for i, m := range at {
		end := len(help)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		name, value := help[m[2]:m[3]], ""
		if d := flagsDefault.FindStringSubmatch(help[m[1]:end]); d != nil {
			value = d[1]
		}
		found[name] = value
	}
	return found
}

// TestLeaseName: processes with the same work share a lease, and others do not.
func TestLeaseName(t *testing.T) {
	for want, args := range map[string][]string{
		"belay-controller":      {"--controllers=attachdetach,recovery"},
		"belay-recovery":        {"--controllers=recovery"},
		"belay-recovery-fencer": {"--controllers=recovery", "--recovery-roles=fencer"},
		"x":                     {"--leader-elect-resource-name=x"},
	} {
		o, err := parse(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if o.complete(); o.lease.Name != want {
			t.Errorf("%v: lease %q, want %q", args, o.lease.Name, want)
		}
	}
}
