package attacher

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"belay.dev/belay/internal/testing/process"
)

// csi-attacher and belay-attacher take over from each other by the one lease, in both directions,
// asked to end or killed: the newcomer calls for nothing that is attached already, and works.
func TestProgramsTakeOverFromEachOther(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: each program gets a host name of its own, which is its name in the lease")
	}
	w := newWorld(t)
	w.node("node1")
	upstream, belay := upstreamPath(t), programPath(t)
	started := 0
	begin := func(program string) *process.Process {
		started++
		return process.Start(t, exec.Command("unshare", "--uts", "sh", "-c", `echo "$0" >/proc/sys/kernel/hostname && exec "$@"`,
			fmt.Sprint("pod-", started), program, "--kubeconfig", shippedKubeconfig(t), "--csi-address", w.driver.Address,
			"--leader-election", "--leader-election-namespace", shippedNamespace, lateAnswers, "--kube-api-qps=100", "--kube-api-burst=100",
			patientTimes[0], patientTimes[1], patientTimes[2]))
	}
	const batch = 5
	made := 0
	attachMore := func() (volumes []string) {
		var names []string
		for range batch {
			made++
			pv := fmt.Sprint("pv", made)
			volumes = append(volumes, w.volume(pv).Spec.CSI.VolumeHandle)
			names = append(names, w.attachment(pv, "node1"))
		}
		for _, va := range names {
			w.until(va, "attached", isAttached)
		}
		return volumes
	}
	leader, leads := begin(upstream), upstream
	attachMore()
	for _, turn := range []struct {
		program string
		end     os.Signal
	}{{belay, syscall.SIGTERM}, {upstream, syscall.SIGTERM}, {belay, syscall.SIGKILL}, {upstream, syscall.SIGKILL}} {
		standby := begin(turn.program)
		leader.Stop(turn.end)
		if leads != belay || turn.end != syscall.SIGTERM { // then it gives its lease back
			w.runsOut()
		}
		leader, leads = standby, turn.program
		before := len(w.driver.Made())
		volumes := attachMore()
		calls := w.driver.WaitCalls(before + batch)[before:]
		for _, c := range calls {
			if c.Method != "Publish" || !slices.Contains(volumes, c.Volume) {
				t.Errorf("%s took over and sent %s of %s", turn.program, c.Method, c.Volume)
			}
		}
		if turn.program == belay && len(calls) != batch {
			t.Errorf("belay-attacher sent %d calls for %d volumes", len(calls), batch)
		}
	}
}
