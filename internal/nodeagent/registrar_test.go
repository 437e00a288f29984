package nodeagent

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/nodeagent/plugins"
)

// TestNodeDriverRegistrar has upstream's node-driver-registrar register the driver: it comes,
// is killed, comes again, and goes.
func TestNodeDriverRegistrar(t *testing.T) {
	program := os.Getenv("BELAY_NODE_DRIVER_REGISTRAR")
	if program == "" {
		t.Skip("NOT RUN: BELAY_NODE_DRIVER_REGISTRAR names no csi-node-driver-registrar; its module is in no Go proxy, so the lab does not build it")
	}
	w := newWorld(t, noAttach)
	w.driver.Stop()
	endpoint := w.behind("1.0.0").Endpoint
	type running struct {
		*exec.Cmd
		log *bufio.Scanner
	}
	start := func() running {
		registrar := exec.CommandContext(w.ctx, program, "--csi-address="+endpoint, "--kubelet-registration-path="+endpoint,
			"--plugin-registration-path="+filepath.Join(w.root, plugins.RegistryDir))
		log, err := registrar.StderrPipe()
		must(t, err)
		must(t, registrar.Start())
		return running{registrar, bufio.NewScanner(log)}
	}
	told := func(registrar running) { // that it is registered
		t.Helper()
		for registrar.log.Scan() {
			if strings.Contains(registrar.log.Text(), "plugin_registered:true") {
				return
			}
		}
		t.Fatal("the registrar ended and was never notified that it is registered")
	}
	registered := func() bool {
		node := w.node()
		return node.Annotations["csi.volume.kubernetes.io/nodeid"] != "" && len(w.csiNode().Spec.Drivers) == 1
	}
	agent, _ := w.agent()
	registrar := start()
	told(registrar)
	w.wantCSINode(w.node())
	w.volume("data")
	pod := w.pod("p", "data")
	agent.SetPod(pod)
	w.mounted(agent, pod)
	must(t, registrar.Process.Kill())
	_ = registrar.Wait()
	if !registered() {
		t.Error("the driver is gone with its registrar, whose socket is still there")
	}
	registrar = start()
	agent.RemovePod(pod.UID)
	w.unmounted(agent, pod)
	told(registrar)
	must(t, registrar.Process.Signal(syscall.SIGTERM))
	_ = registrar.Wait()
	w.untilNode("the driver is forgotten", func(n *corev1.Node) bool {
		_, ok := n.Annotations["csi.volume.kubernetes.io/nodeid"]
		return !ok
	})
}
