package attacher

import (
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/csidriver"
	"belay.dev/belay/internal/testing/hostile"
	"belay.dev/belay/internal/testing/process"
)

// TestHostileText: whatever the errors of the API server contain, the log is printable.
func TestHostileText(t *testing.T) {
	kubeconfig := apiserver.Kubeconfig(t, &rest.Config{Host: hostile.Server(t, nil).URL})
	driver := csidriver.New(t, "hostile.test.belay.dev")
	driver.Address = filepath.Join(csidriver.SocketDir(t), "csi.sock")
	driver.Start()
	for _, format := range []string{"text", "json"} {
		p := process.Start(t, exec.Command(programPath(t), "--kubeconfig="+kubeconfig, "--csi-address="+driver.Address, "--logging-format="+format, "--v=4"))
		p.WaitLog(hostile.Shown)
		p.Kill()
		hostile.Check(t, "the log as "+format, p.Output())
	}
	p := process.Start(t, exec.Command(programPath(t), "--frob="+hostile.Text, hostile.Text))
	<-p.Exited()
	hostile.Check(t, "an error", p.Output())
}
