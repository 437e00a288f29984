package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fenceagent"
	"belay.dev/belay/internal/recovery"
	"belay.dev/belay/internal/testing/wait"
)

// TestDialAgent: an error of the program itself is not one of its options.
func TestDialAgent(t *testing.T) {
	directory := t.TempDir()
	for name, script := range map[string]string{
		"fence_test": `#!/bin/sh
echo '<resource-agent><parameters><parameter name="ip"/></parameters><actions><action name="off"/><action name="status"/></actions></resource-agent>'
`,
		"fence_none": "#!/bin/sh\nexit 1\n",
	} {
		must(t, os.WriteFile(filepath.Join(directory, name), []byte(script), 0o700))
	}
	// The first start of a new file may take long or fail on a busy machine. Its metadata is kept.
	wait.Until(t, "the agent starts", func() bool {
		_, err := fenceagent.New(t.Context(), filepath.Join(directory, "fence_test"), nil, "", nil)
		return err == nil
	})
	options := func(name string) map[string]fencingv1.FeedOption {
		return map[string]fencingv1.FeedOption{name: "192.0.2.1"}
	}
	for name, c := range map[string]struct {
		feed            fencingv1.Feed
		fails, itsAgent bool
	}{
		"as it should be":  {fencingv1.Feed{Agent: "fence_test", Options: options("ip"), OffTested: "this test"}, false, false},
		"not tested":       {fencingv1.Feed{Agent: "fence_test", Options: options("ip")}, true, false},
		"not installed":    {fencingv1.Feed{Agent: "fence_missing", Options: options("ip")}, true, true},
		"no fence agent":   {fencingv1.Feed{Agent: "fence_none", Options: options("ip")}, true, true},
		"unknown option":   {fencingv1.Feed{Agent: "fence_test", Options: options("colour")}, true, false},
		"forbidden option": {fencingv1.Feed{Agent: "fence_test", Options: options("method")}, true, false},
	} {
		_, err := dialAgent(directory)(c.feed, nil)
		if (err != nil) != c.fails || errors.Is(err, recovery.ErrNoAgent) != c.itsAgent {
			t.Errorf("%s: %v", name, err)
		}
		if untested := errors.Is(err, recovery.ErrOffUntested); untested != (name == "not tested") {
			t.Errorf("%s: that its Off does not count is %v: %v", name, untested, err)
		}
	}
}

// TestErrorsSayItOnce: what fenceagent says of a refused login, recovery does not say again before it.
func TestErrorsSayItOnce(t *testing.T) {
	err := error(markedError{fmt.Errorf("%w: RAKP 2 HMAC is invalid", fenceagent.ErrRefused), recovery.ErrRefused})
	if !errors.Is(err, recovery.ErrRefused) || !errors.Is(err, fenceagent.ErrRefused) || strings.Count(err.Error(), "refused the login") != 1 {
		t.Errorf("%v", err)
	}
}
