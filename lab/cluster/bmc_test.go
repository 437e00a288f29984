package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/labdisk"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// Exit statuses of fence_ipmilan.
const (
	agentOn     = 0 // of the action status; of the others: done
	agentFailed = 1
	agentOff    = 2
)

// agent runs fence_ipmilan as recovery does, and returns its exit status. It waits long for a BMC that carries out its commands, because the
// machine may be busy, and not long for one that does not.
func agent(t *testing.T, bmc, action string, want int) (status int, output string) {
	t.Helper()
	host, port, err := net.SplitHostPort(bmc)
	if err != nil {
		t.Fatal(err)
	}
	patience := "power_timeout=100\nipmitool_timeout=20\n"
	if want == agentFailed {
		patience = "power_timeout=2\n"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "/usr/sbin/fence_ipmilan")
	command.Stdin = strings.NewReader(fmt.Sprintf("action=%s\nip=%s\nipport=%s\nlanplus=1\ncipher=3\nusername=%s\npassword=%s\npower_wait=0\n%s",
		action, host, port, cluster.BMCUser, cluster.BMCPassword, patience))
	began := time.Now()
	raw, err := command.CombinedOutput()
	t.Logf("%s: %v after %.1f s: %s", action, command.ProcessState, time.Since(began).Seconds(), raw)
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok || ok && !exit.Exited() {
		t.Fatalf("%s: %v", action, err)
	}
	return command.ProcessState.ExitCode(), string(raw)
}

// TestBMC switches a node with fence_ipmilan, and looks at each fault through it: what the agent reports, and whether the node runs.
func TestBMC(t *testing.T) {
	if !cluster.CanFence() {
		t.Skip("NOT RUN: ipmi_sim, ipmitool or fence_ipmilan is missing: run hack/install-packages")
	}
	const node = "node-1"
	lab := start(t, cluster.Options{Name: "hl-bmc", Nodes: 1, NodeKind: cluster.NodeKindBelay, Drivers: []string{labdisk.DriverDisk}, BMC: true})
	bmc := lab.Status().BMCs[node]
	for _, c := range []struct {
		fault       cluster.BMCFault
		status, off int
		runs        bool // after the command
	}{
		{cluster.BMCIgnores, agentOn, agentFailed, true},
		{cluster.BMCOffFails, agentOn, agentFailed, true},
		{cluster.BMCLies, agentOff, 0, true},
		{cluster.BMCDead, agentFailed, agentFailed, true},
		{cluster.BMCHangs, agentFailed, agentFailed, true},
		{cluster.BMCWorks, agentOn, 0, false},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			if err := lab.FaultBMC(node, c.fault); err != nil {
				t.Fatal(err)
			}
			if got, _ := agent(t, bmc, "status", c.status); got != c.status {
				t.Errorf("status: exit status %d, want %d", got, c.status)
			}
			switchOff := func() {
				if got, _ := agent(t, bmc, "off", c.off); got != c.off {
					t.Errorf("off: exit status %d, want %d", got, c.off)
				}
			}
			switchOff()
			if c.fault == cluster.BMCOffFails { // on a busy machine the agent may not come to send the command
				labtest.Until(t, 5*time.Minute, "a command that the BMC refuses", func() error {
					if slices.ContainsFunc(bmcLog(t, lab, node), refused) {
						return nil
					}
					switchOff()
					return errors.New("there is none")
				})
			}
			if lab.IsOn(node) != c.runs {
				t.Errorf("the node runs: %t", lab.IsOn(node))
			}
		})
	}
	if got, text := agent(t, bmc, "status", agentOff); got != agentOff || !strings.Contains(text, "Status: OFF") {
		t.Errorf("status of a node without power: %d, %q", got, text)
	}
	if got, _ := agent(t, bmc, "on", 0); got != 0 || !lab.IsOn(node) {
		t.Errorf("on: exit status %d, the node runs: %t", got, lab.IsOn(node))
	}
	log := bmcLog(t, lab, node)
	done := func(r cluster.BMCRequest) bool { return r.Request == cluster.BMCOff && r.Error == "" }
	if !slices.ContainsFunc(log, done) || !slices.ContainsFunc(log, refused) {
		t.Errorf("the BMC's own log has no command that was carried out, or none that failed: %+v", log)
	}
}

func bmcLog(t *testing.T, lab *cluster.Cluster, node string) []cluster.BMCRequest {
	t.Helper()
	log, err := lab.BMCLog(node)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// refused reports whether it was a command to switch off that failed.
func refused(r cluster.BMCRequest) bool { return r.Request == cluster.BMCOff && r.Error != "" }

// TestCleanEndsBMCs: of a lab that was killed no BMC is left.
func TestCleanEndsBMCs(t *testing.T) {
	labtest.Needs(t)
	if !cluster.CanFence() {
		t.Skip("NOT RUN: ipmi_sim, ipmitool or fence_ipmilan is missing: run hack/install-packages")
	}
	const name = "hl-killed"
	cache, err := cluster.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "labs", name)
	holder := exec.Command(filepath.Join(os.Getenv("BELAY_BIN"), "belay-lab"), "supervise",
		"--options", `{"name":"`+name+`","nodes":2,"nodeKind":"belay","bmc":true}`)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	holder.ExtraFiles = []*os.File{null}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	// The second one is started after the first.
	labtest.Until(t, startWithin, "the BMCs to run", func() error {
		for _, left := range scenario.LeftOnMachine(dir) {
			if strings.Contains(left, "ipmi_sim") && strings.Contains(left, filepath.Join(dir, "bmc", "node-2")) {
				return nil
			}
		}
		return errors.New("there is no ipmi_sim of node-2")
	})
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	cleanKilled(t, name, dir)
}
