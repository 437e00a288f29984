package labdisk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The test program is its own fabric, node driver and host adapter: called with "labdisk" it is Command.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "labdisk" {
		root := &cobra.Command{Use: "labdisk.test", SilenceErrors: true}
		root.AddCommand(Command())
		if err := root.Execute(); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// needRoot skips, with the reason, what cannot be done without mounts.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root for FUSE, loop devices and mounts: run as root")
	}
	f, err := openFUSE()
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	_ = f.Close()
}

// storage is a fabric that runs as a process of its own.
type storage struct {
	t      *testing.T
	dir    string
	args   []string
	cmd    *exec.Cmd
	client *Client
}

// startStorage runs a fabric in a short folder (unix sockets have short names) that is checked and removed in the end.
func startStorage(t *testing.T, args ...string) *storage {
	t.Helper()
	real, err := os.MkdirTemp("/tmp", "ld") //nolint:usetesting // the names of sockets in t.TempDir() are too long
	if err != nil {
		t.Fatal(err)
	}
	// The kubelet's root is a symbolic link in many places.
	dir := real + "l"
	if err := os.Symlink(filepath.Base(real), dir); err != nil { // relative, to hold in /proc/PID/root
		t.Fatal(err)
	}
	s := &storage{t: t, dir: dir, args: args}
	t.Cleanup(func() {
		if _, err := ReleaseLoops(dir); err != nil && os.Geteuid() == 0 {
			t.Errorf("ReleaseLoops: %v", err)
		}
		if err := errors.Join(os.Remove(dir), os.RemoveAll(real)); err != nil {
			t.Error(err)
		}
	})
	s.start()
	t.Cleanup(s.kill)
	s.client = newClient(s.socket())
	t.Cleanup(s.client.Close)
	return s
}

// oneNode and twoNodes are what most tests begin with; they skip without root.
func oneNode(t *testing.T) (*storage, *machine) {
	t.Helper()
	needRoot(t)
	s := startStorage(t)
	return s, s.startNode("n1")
}

func twoNodes(t *testing.T, args ...string) (s *storage, first, second *machine) {
	t.Helper()
	needRoot(t)
	s = startStorage(t, args...)
	return s, s.startNode("n1"), s.startNode("n2")
}

func (s *storage) socket() string { return filepath.Join(s.dir, "f.sock") }

func (s *storage) start() {
	s.t.Helper()
	s.cmd = spawn(s.t, filepath.Join(s.dir, "fabric.log"), append([]string{os.Args[0], "labdisk", "fabric",
		"--dir", filepath.Join(s.dir, "f"), "--listen", s.socket(), "--csi-dir", filepath.Join(s.dir, "csi")}, s.args...)...)
	awaitSocket(s.t, s.socket(), filepath.Join(s.dir, "fabric.log"))
}

func (s *storage) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *storage) controller(driver string) csi.ControllerClient {
	return csi.NewControllerClient(dialCSI(s.t, filepath.Join(s.dir, "csi", driver+".sock")))
}

// machine is a node: a process that holds a mount and a pid namespace, and a node driver in them.
type machine struct {
	t      *testing.T
	s      *storage
	name   string
	dir    string
	args   []string
	holder *exec.Cmd
	pid    int // of the first process in the namespaces
	driver *exec.Cmd
	on     context.Context // ends with the power
	off    context.CancelFunc
}

func (s *storage) startNode(name string, args ...string) *machine {
	s.t.Helper()
	m := &machine{t: s.t, s: s, name: name, dir: filepath.Join(s.dir, name), args: args}
	m.on, m.off = context.WithCancel(s.t.Context())
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		s.t.Fatal(err)
	}
	m.holder = spawn(s.t, filepath.Join(m.dir, "holder.log"), "unshare", "--mount", "--pid", "--fork", "--kill-child",
		"--propagation", "private", "--mount-proc", "sleep", "infinity")
	s.t.Cleanup(m.powerOff)
	eventually(s.t, "first process of "+name, func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.holder.Process.Pid, m.holder.Process.Pid))
		if err != nil {
			return err
		}
		if _, err = fmt.Sscan(string(children), &m.pid); err != nil {
			return err
		}
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", m.pid))
		if err == nil && !strings.HasPrefix(string(command), "sleep") {
			err = fmt.Errorf("it is %q still", command)
		}
		return err
	})
	m.startDriver()
	return m
}

func (m *machine) startDriver() {
	m.t.Helper()
	command := m.run(append([]string{os.Args[0], "labdisk", "node", "--fabric", m.s.socket(), "--node-id", m.name,
		"--root-dir", filepath.Join(m.dir, "root"), "--fuse-dir", filepath.Join(m.dir, "fuse")}, m.args...)...)
	m.driver = spawn(m.t, filepath.Join(m.dir, "driver.log"), command.Args...)
	for _, d := range Drivers() {
		awaitSocket(m.t, m.socket(d), filepath.Join(m.dir, "driver.log"))
	}
}

// driverPID is the driver as a process: nsenter forks to enter a pid namespace.
func (m *machine) driverPID() int {
	m.t.Helper()
	pid := 0
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.driver.Process.Pid, m.driver.Process.Pid))
	if err == nil {
		_, err = fmt.Sscan(string(children), &pid)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return pid
}

func (m *machine) socket(driver string) string {
	return filepath.Join(m.dir, "root", "plugins", driver, "csi.sock")
}

func (m *machine) csi(driver string) csi.NodeClient {
	return csi.NewNodeClient(dialCSI(m.t, m.socket(driver)))
}

// see is the path as a process of the test reaches it inside the node.
func (m *machine) see(path string) string { return fmt.Sprintf("/proc/%d/root%s", m.pid, path) }

// run runs a command inside the node, where it dies with it.
func (m *machine) run(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", fmt.Sprint(m.pid), "-m", "-p", "--"}, args...)...)
}

// powerOff kills the node at once.
func (m *machine) powerOff() {
	if m.holder == nil {
		return
	}
	_ = m.holder.Process.Kill()
	m.off()
	_ = m.holder.Wait()
	if m.driver != nil {
		_ = m.driver.Wait()
	}
	m.holder = nil
}

// awaitEndOfIO waits until the fabric has judged all I/O of a node without power: its last writes may lie in the connection for a while.
func (m *machine) awaitEndOfIO() {
	m.t.Helper()
	eventually(m.t, "end of the I/O of "+m.name, func() error {
		log, err := os.ReadFile(filepath.Join(m.s.dir, "fabric.log"))
		if err == nil && !strings.Contains(string(log), "I/O connection ended node="+m.name+" ") {
			err = errors.New("its connection has not ended")
		}
		return err
	})
}

func spawn(t *testing.T, logFile string, args ...string) *exec.Cmd {
	t.Helper()
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// awaitSocket waits until a process accepts connections on the socket.
func awaitSocket(t *testing.T, socket, logFile string) {
	t.Helper()
	eventually(t, "a listener on "+socket, func() error {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer func() { _ = syscall.Close(fd) }()
		if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
			b, _ := os.ReadFile(logFile)
			return fmt.Errorf("%w; log: %s", err, b)
		}
		return nil
	})
}

// eventually is for what another process does in its own time.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("no %s: %v", what, err)
}

func dialCSI(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func mountCapability(mode accessMode, fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}}}
}

func blockCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
}

// disk walks one volume through its life, failing the test on any error.
type disk struct {
	t          *testing.T
	s          *storage
	driver     string
	handle     string
	capability *csi.VolumeCapability
}

func (s *storage) create(driver, name string, bytes int64, c *csi.VolumeCapability) *disk {
	s.t.Helper()
	resp, err := s.controller(driver).CreateVolume(s.t.Context(), &csi.CreateVolumeRequest{Name: name,
		CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}, VolumeCapabilities: []*csi.VolumeCapability{c}})
	if err != nil {
		s.t.Fatal(err)
	}
	return &disk{t: s.t, s: s, driver: driver, handle: resp.GetVolume().GetVolumeId(), capability: c}
}

// ext4 is a small disk with a file system, for one writer.
func (s *storage) ext4() *disk {
	s.t.Helper()
	return s.create(DriverDisk, "pvc-1", 64<<20, mountCapability(writer, "ext4"))
}

func (d *disk) staging(m *machine) string { return filepath.Join(m.dir, "root", "staging", d.handle) }
func (d *disk) target(m *machine) string  { return filepath.Join(m.dir, "root", "pods", d.handle) }

func (d *disk) attach(m *machine) (map[string]string, error) {
	resp, err := d.s.controller(d.driver).ControllerPublishVolume(d.t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: d.handle, NodeId: m.name, VolumeCapability: d.capability})
	return resp.GetPublishContext(), err
}

func (d *disk) detach(m *machine) {
	d.t.Helper()
	_, err := d.s.controller(d.driver).ControllerUnpublishVolume(d.t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: d.handle, NodeId: m.name})
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *disk) stage(m *machine, published map[string]string) error {
	_, err := m.csi(d.driver).NodeStageVolume(m.on, &csi.NodeStageVolumeRequest{VolumeId: d.handle,
		StagingTargetPath: d.staging(m), VolumeCapability: d.capability, PublishContext: published})
	return err
}

func (d *disk) publish(m *machine, published map[string]string) error {
	_, err := m.csi(d.driver).NodePublishVolume(m.on, &csi.NodePublishVolumeRequest{VolumeId: d.handle,
		StagingTargetPath: d.staging(m), TargetPath: d.target(m), VolumeCapability: d.capability, PublishContext: published})
	return err
}

// bringUp attaches, stages and publishes.
func (d *disk) bringUp(m *machine) {
	d.t.Helper()
	published, err := d.attach(m)
	if err == nil {
		err = d.stage(m, published)
	}
	if err == nil {
		err = d.publish(m, published)
	}
	if err != nil {
		b, _ := os.ReadFile(filepath.Join(m.dir, "driver.log"))
		d.t.Fatalf("bring up %s on %s: %v\n%s", d.handle, m.name, err, b)
	}
}

// takeDown unpublishes and unstages on the node; the attachment stays.
func (d *disk) takeDown(m *machine) {
	d.t.Helper()
	if err := d.tryTakeDown(m); err != nil {
		d.t.Fatalf("take down %s on %s: %v", d.handle, m.name, err)
	}
}

func (d *disk) tryTakeDown(m *machine) error {
	_, err := m.csi(d.driver).NodeUnpublishVolume(m.on, &csi.NodeUnpublishVolumeRequest{VolumeId: d.handle, TargetPath: d.target(m)})
	if err == nil && d.driver != DriverLocal {
		_, err = m.csi(d.driver).NodeUnstageVolume(m.on, &csi.NodeUnstageVolumeRequest{VolumeId: d.handle, StagingTargetPath: d.staging(m)})
	}
	return err
}

// write writes and syncs a file on the published volume.
func (d *disk) write(m *machine, name, text string) error {
	f, err := os.OpenFile(filepath.Join(m.see(d.target(m)), name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

func (d *disk) mustWrite(m *machine, name, text string) {
	d.t.Helper()
	if err := d.write(m, name, text); err != nil {
		d.t.Fatal(err)
	}
}

func (d *disk) mustRead(m *machine, name, want string) {
	d.t.Helper()
	got, err := os.ReadFile(filepath.Join(m.see(d.target(m)), name))
	if err != nil {
		d.t.Fatal(err)
	}
	if string(got) != want {
		d.t.Errorf("%s on %s holds %q, want %q", name, m.name, got, want)
	}
}

// loops are the loop devices that anything of the storage is bound to.
func (s *storage) loops() []string {
	s.t.Helper()
	real, err := filepath.EvalSymlinks(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := listLoops()
	if err != nil {
		s.t.Fatal(err)
	}
	var mine []string
	for _, l := range all {
		if under(real, strings.TrimSuffix(l.backing, " (deleted)")) {
			mine = append(mine, l.device+" "+l.backing)
		}
	}
	return mine
}

func (s *storage) wantNoLoops() {
	s.t.Helper()
	if l := s.loops(); len(l) > 0 {
		s.t.Errorf("loop devices left: %v", l)
	}
}

func (s *storage) wantNoViolations() {
	s.t.Helper()
	if v := s.violations(); len(v) > 0 {
		s.t.Errorf("violations: %+v", v)
	}
}

func (s *storage) violations() []Violation {
	s.t.Helper()
	v, err := s.client.Violations(context.Background(), time.Time{})
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}
