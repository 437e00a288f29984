package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/wait"
)

const deployedRecovery = "../../deploy/belay-recovery/"

// TestLeave: the program succeeds with the arguments and the rights of the chart's Job, without the CustomResourceDefinitions too, and exits with 1 and what to do while a
// NodeFence is not finished.
func TestLeave(t *testing.T) {
	cluster := &apiserver.Server{} // the fences of other tests would be in its way
	cluster.StartFor(t)
	must(t, cluster.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "belay-system"}}))
	jobs := apiserver.Decode[batchv1.Job](t, apiserver.Manifests(t, deployedRecovery+"leave.yaml"), "Job")
	kubeconfig := apiserver.Kubeconfig(t, cluster.ServiceAccount(t, "belay-system", "belay-recovery-leave", deployedRecovery+"leave.yaml"))
	run := func(want int, says string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), os.Args[0], append(args, "--kubeconfig="+kubeconfig)...)
		cmd.Env = append(os.Environ(), childVariable+"=1")
		out, _ := cmd.CombinedOutput() // the exit code is what is asked for
		if code := cmd.ProcessState.ExitCode(); code != want || !strings.Contains(string(out), says) {
			t.Errorf("exit code %d, want %d and %q: %s", code, want, says, out)
		}
	}
	args := jobs[0].Spec.Template.Spec.Containers[0].Args
	run(0, "Recovery may be removed", args...)
	run(2, "--detector-lease must be NAMESPACE/NAME", "leave", "--detector-lease=x")
	run(2, "must be above 0", "leave", "--timeout=0s")
	cluster.Apply(t, deployedRecovery+"fencing.belay.dev_nodefences.yaml")
	fence := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"nodeName": "leave", "nodeUID": "u", "bootID": "b", "machineID": "m", "epoch": int64(1), "lastRenewal": "r", "release": "Auto",
	}}}
	fence.SetAPIVersion("fencing.belay.dev/v1alpha1")
	fence.SetKind("NodeFence")
	fence.SetName("leave")
	wait.Until(t, "NodeFences are served", func() bool { return cluster.Client.Create(t.Context(), fence) == nil })
	run(1, "leave: recovery cannot be removed: these NodeFences are not finished: leave (Suspected)", args...)
	must(t, cluster.Client.Delete(t.Context(), fence))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "leave"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: kube.IsolationTaint, Value: kube.FenceTaint(1), Effect: corev1.TaintEffectNoSchedule},
	}}}
	must(t, cluster.Client.Create(t.Context(), node))
	run(1, "these Nodes have taints of recovery without a NodeFence that would end: leave", args...)
	must(t, cluster.Client.Delete(t.Context(), node))
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "belay-recovery-detector"}}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = new("detector"), new(int32(3600))
	must(t, cluster.Client.Create(t.Context(), lease))
	run(1, "wait until the detector detector has stopped", append(args, "--timeout=1s")...)
	must(t, cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease))
	if *lease.Spec.HolderIdentity != "" {
		t.Errorf("it refused, and %s holds the lease: no detector can lead", *lease.Spec.HolderIdentity)
	}
	must(t, cluster.Client.Delete(t.Context(), lease))
}
