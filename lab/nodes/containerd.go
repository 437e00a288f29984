package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// containerdSocket lies in the node's own /run.
const containerdSocket = "/run/containerd/containerd.sock"

// loadPatience is how long the load of an image waits for a containerd that does not answer.
const loadPatience = 30 * time.Second

// containerdConfig is what both containerd 1.6 (Debian's) and 2.x read. restrict_oom_score_adj spares a machine
// without CAP_SYS_RESOURCE.
var containerdConfig = template.Must(template.New("containerd").Parse(`version = 2
root = "{{.Root}}"
state = "/run/containerd"
[grpc]
  address = "` + containerdSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.CNI}}"
    conf_dir = "{{.CNI}}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{{.Snapshotter}}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
`))

// The lab has no network for pods: its own use the host's. A pod that asks for one gets
// an empty network namespace and an address that leads nowhere else, from a plugin
// that does nothing, so that it still runs.
const (
	noNetwork = `{"cniVersion":"0.4.0","name":"none","plugins":[{"type":"none"}]}`
	noPlugin  = `#!/bin/sh
case "$CNI_COMMAND" in
ADD) echo '{"cniVersion":"0.4.0","interfaces":[{"name":"'"$CNI_IFNAME"'","sandbox":"'"$CNI_NETNS"'"}],"ips":[{"version":"4","interface":0,"address":"` + loopbackIP + `/8"}]}' ;;
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}' ;;
esac
`
)

// containerdRoot is the runtime's disk.
func containerdRoot(config Config) string { return filepath.Join(config.Dir, "containerd") }

func snapshotter(config Config) string {
	if overlayWorks(containerdRoot(config)) {
		return "overlayfs"
	}
	return "native"
}

func runContainerd(ctx context.Context, config Config, kept *children) error {
	program, err := exec.LookPath("containerd")
	if err != nil {
		return fmt.Errorf("find containerd (Debian: apt-get install containerd runc): %w", err)
	}
	cni := filepath.Join(config.Dir, "cni")
	for _, dir := range []string{cni, containerdRoot(config)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make directory of containerd: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(cni, "10-none.conflist"), []byte(noNetwork), 0o600); err != nil {
		return fmt.Errorf("write network configuration of containerd: %w", err)
	}
	// containerd calls "loopback" by itself before the configured ones.
	for _, plugin := range []string{"none", "loopback"} {
		if err := os.WriteFile(filepath.Join(cni, plugin), []byte(noPlugin), 0o700); err != nil {
			return fmt.Errorf("write network plugin of containerd: %w", err)
		}
	}
	var text bytes.Buffer
	err = containerdConfig.Execute(&text, map[string]string{
		"Root": containerdRoot(config), "CNI": cni, "Snapshotter": snapshotter(config),
	})
	if err != nil {
		return fmt.Errorf("make configuration of containerd: %w", err)
	}
	file := filepath.Join(config.Dir, "containerd.toml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write configuration of containerd: %w", err)
	}
	kept.keep(ctx, child{name: ChildContainerd, path: program, args: []string{"--config", file}})
	return nil
}

// importImages waits for containerd and gives it the lab's images. Only the end of the node ends the wait: no component tries again
// later, and the start of a lab has a timeout of its own.
func importImages(ctx context.Context, config Config, kept *children) error {
	archive := filepath.Join(config.Dir, "images.tar")
	file, err := os.Create(archive)
	if err != nil {
		return fmt.Errorf("write the lab's image: %w", err)
	}
	if err := errors.Join(WriteImages(file, config.Programs.Ledger), file.Close()); err != nil {
		return err
	}
	defer func() { _ = os.Remove(archive) }()
	return importImage(ctx, config, kept, archive)
}

// importImage waits for containerd and gives it the images of an archive.
func importImage(ctx context.Context, config Config, kept *children, archive string) error {
	if err := awaitSocket(ctx, containerdSocket); err != nil {
		return err
	}
	ctr, err := exec.LookPath("ctr")
	if err != nil {
		return fmt.Errorf("find ctr, which comes with containerd: %w", err)
	}
	status, err := kept.run(child{name: "ctr", path: ctr, args: []string{
		"--address", containerdSocket, "--namespace", "k8s.io", "images", "import",
		"--snapshotter", snapshotter(config), archive,
	}})
	if err != nil {
		return err
	}
	if status.ExitStatus() != 0 || status.Signaled() {
		return fmt.Errorf("import the images of %s: ctr ended with %s: %s", archive, describe(status), lastLine(config.LogOf("ctr")))
	}
	return nil
}

// lastLine is the end of a log.
func lastLine(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return lines[len(lines)-1]
}

// awaitSocket waits until a server listens or ctx ends.
func awaitSocket(ctx context.Context, path string) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		var connection net.Conn
		if connection, last = (&net.Dialer{}).DialContext(ctx, "unix", path); last != nil {
			return false, nil //nolint:nilerr // it is tried again
		}
		return true, connection.Close()
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", path, errors.Join(err, last))
	}
	return nil
}
