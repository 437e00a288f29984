package usage

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func TestCheckAddress(t *testing.T) {
	for value, valid := range map[string]bool{
		"": true, "0": true, ":8080": true, "127.0.0.1:8080": true, "[::1]:8080": true, "localhost:http": true,
		"frob": false, "99999": false, ":99999": false, "127.0.0.1": false, ":frob": false,
	} {
		err := CheckAddress("metrics-bind-address", value)
		if (err == nil) != valid || err != nil && Status(err) != StatusWrong {
			t.Errorf("%q: %v, want valid: %v", value, err, valid)
		}
	}
}

// The errors name flag, value and what is allowed, and nothing of the packages that parse it.
func TestCommandLineErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"argument":            {[]string{"sub", "now"}, `prog sub accepts no arguments, received "now"`},
		"argument of a group": {[]string{"now"}, `prog accepts no arguments except a command (sub), received "now"; see prog --help`},
		"no number":           {[]string{"sub", "-n", "many"}, `--number is "many", but must be a whole number; see prog sub --help`},
		"number out of range": {[]string{"sub", "-n", "99999999999999999999"}, `--number is "99999999999999999999", which is out of range`},
		"no duration":         {[]string{"sub", "--wait=6"}, `--wait is "6", but must be a duration such as 90s or 1m30s`},
		"no boolean":          {[]string{"sub", "--now=maybe"}, `--now is "maybe", but must be true or false`},
		"unknown flag":        {[]string{"sub", "--frob"}, "unknown flag: --frob; see prog sub --help"},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(*cobra.Command, []string) error { return nil }
			prog := &cobra.Command{Use: "prog", Args: NoArgs, RunE: run, SilenceErrors: true, SilenceUsage: true}
			prog.SetFlagErrorFunc(FlagError)
			sub := &cobra.Command{Use: "sub", Args: NoArgs, RunE: run}
			sub.Flags().IntP("number", "n", 0, "")
			sub.Flags().Duration("wait", 0, "")
			sub.Flags().Bool("now", false, "")
			prog.AddCommand(sub)
			prog.CompletionOptions.DisableDefaultCmd = true
			prog.SetArgs(tt.args)
			err := prog.Execute()
			if err == nil || !strings.Contains(err.Error(), tt.want) || Status(err) != StatusWrong {
				t.Errorf("got %v, want a usage error with %q", err, tt.want)
			}
		})
	}
}

func TestLeaseTimes(t *testing.T) {
	const s = time.Second
	for name, tt := range map[string]struct {
		duration, renew, retry time.Duration
		want                   string // "" for accepted
	}{
		"kube-controller-manager's": {15 * s, 10 * s, 2 * s, ""},
		"csi-attacher's":            {15 * s, 10 * s, 5 * s, ""},
		"no retry":                  {15 * s, 10 * s, 0, "--l-retry-period is 0s, but must be above 0"},
		"one attempt to renew":      {15 * s, 6 * s, 5 * s, "--l-renew-deadline is 6s, but must be more than 1.2 times"},
		"lease ends first":          {10 * s, 10 * s, 2 * s, "--l-lease-duration is 10s, but must be more than the renew deadline"},
		"less than a second":        {s / 2, s / 4, s / 8, "--l-lease-duration is 500ms, but must be at least 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			err := LeaseTimes{Prefix: "l", Duration: tt.duration, RenewDeadline: tt.renew, RetryPeriod: tt.retry}.Check()
			if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || Status(err) != StatusWrong) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestCheckVerbosity(t *testing.T) {
	for value, valid := range map[int]bool{-1: false, 0: true, 4: true, 1 << 31: false} {
		if err := CheckVerbosity("v", value); (err == nil) != valid || err != nil && Status(err) != StatusWrong {
			t.Errorf("%d: %v, want valid: %v", value, err, valid)
		}
	}
}
