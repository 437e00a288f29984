package labdisk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// NodeOptions configures RunNode.
type NodeOptions struct {
	Fabric  string   // unix socket of the fabric
	NodeID  string   // name of the node, which is its CSI node id as well
	RootDir string   // the kubelet's root: <RootDir>/plugins and <RootDir>/plugins_registry
	FuseDir string   // where the host adapter is mounted
	Drivers []string // default: all
	// MaxVolumes bounds the volumes of each driver on the node; 0 is no bound.
	MaxVolumes int64
	Zone       string // default: DefaultZone
	// IOPatience is how long I/O waits for a fabric that is away. Default: 30 s.
	IOPatience time.Duration
	// AdapterCommand runs the host adapter; "--fabric", "--node-id", "--fuse-dir" and "--io-patience" are added. Default: this
	// program with "labdisk adapter".
	AdapterCommand []string
}

// nodeDriver is what the personalities of one node share.
type nodeDriver struct {
	opts    NodeOptions
	client  *Client
	mounter *mount.SafeFormatAndMount
	adapter adapterProcess

	// mu guards busy: the volumes that a call works on. There is one call per volume at a time.
	mu   sync.Mutex
	busy map[string]bool
}

// RunNode serves the node side of CSI and the registration sockets until ctx ends. The host adapter continues after it while
// a volume is in use.
func RunNode(ctx context.Context, o NodeOptions) error {
	if len(o.Drivers) == 0 {
		o.Drivers = Drivers()
	}
	o.Zone, o.IOPatience = cmp.Or(o.Zone, DefaultZone), cmp.Or(o.IOPatience, ioPatience)
	if err := checkDrivers(o.Drivers); err != nil {
		return err
	}
	for _, dir := range []*string{&o.RootDir, &o.FuseDir} {
		if err := os.MkdirAll(filepath.Dir(*dir), 0o755); err != nil {
			return fmt.Errorf("make folder of the node: %w", err)
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return fmt.Errorf("make path absolute: %w", err)
		}
		*dir = tablePath(abs)
	}
	n := &nodeDriver{opts: o, client: newClient(o.Fabric), busy: map[string]bool{},
		mounter: mount.NewSafeFormatAndMount(mount.NewWithoutSystemd(""), exec.New())}
	defer n.client.Close()
	if err := n.start(ctx); err != nil {
		return err
	}
	traced, stopTraces := tracedServer(ctx, "labdisk-node")
	defer stopTraces()
	ctx, cancel := context.WithCancel(ctx) // also for servers that have begun when a later one cannot
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	record := newNodeRecord(ctx, group, n.client)
	for _, d := range o.Drivers {
		server := grpc.NewServer(append(traced, grpc.UnaryInterceptor(interceptor(record, d, o.NodeID)))...)
		csi.RegisterIdentityServer(server, Identity{Driver: d, Zones: true})
		csi.RegisterNodeServer(server, &nodeServer{nodeDriver: n, driver: d})
		if err := serveGRPC(ctx, group, server, n.socket(d)); err != nil {
			return err
		}
		if err := serveRegistration(ctx, group, d, n.socket(d), filepath.Join(o.RootDir, "plugins_registry", d+"-reg.sock")); err != nil {
			return err
		}
	}
	slog.Info("Node driver serves", "node", o.NodeID, "root", o.RootDir, "fuse", o.FuseDir, "drivers", o.Drivers)
	return errors.Join(group.Wait(), n.stop())
}

func (n *nodeDriver) socket(driver string) string {
	return filepath.Join(n.opts.RootDir, "plugins", driver, "csi.sock")
}

// start brings up the adapter and registers the node with the fabric.
func (n *nodeDriver) start(ctx context.Context) error {
	if err := n.adapter.ensure(n.opts); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ioPatience)
	defer cancel()
	if err := n.client.RegisterNode(ctx, Node{Name: n.opts.NodeID, Zone: n.opts.Zone, MaxVolumes: n.opts.MaxVolumes}); err != nil {
		return fmt.Errorf("register node %s: %w", n.opts.NodeID, err)
	}
	return nil
}

// stop takes the adapter down unless a volume is in use: then it stays for the driver's next run.
func (n *nodeDriver) stop() error {
	used, err := n.mounts()
	if err != nil || len(used) > 0 {
		return err
	}
	loops, err := listLoops()
	if err != nil {
		return err
	}
	for _, l := range loops {
		if under(n.opts.FuseDir, l.backing) {
			return nil
		}
	}
	return unmountAll(n.mounter, n.opts.FuseDir)
}

// lock keeps a second call off the volume; unlock is nil if one is under way.
func (n *nodeDriver) lock(volume string) (unlock func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy[volume] {
		return nil
	}
	n.busy[volume] = true
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.busy, volume)
	}
}

// file is where the volume appears while the node holds it.
func (n *nodeDriver) file(volume string) string {
	return filepath.Join(n.opts.FuseDir, realm(n.opts.FuseDir), volume)
}

// attached looks the volume up: its inode number stands for the attachment. Errors are CSI errors.
func (s *nodeServer) attached(ctx context.Context, volume string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if volume != filepath.Base(volume) || volume == "." || volume == ".." {
		return st, status.Errorf(codes.NotFound, "volume %q is not known to %s: it is no handle that the fabric gives", volume, s.driver)
	}
	if err := s.adapter.ensure(s.opts); err != nil {
		return st, status.Error(codes.Internal, err.Error())
	}
	err := unix.Stat(s.file(volume), &st)
	if err == nil {
		return st, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return st, status.Errorf(codes.Internal, "look up volume %s: %v", volume, err)
	}
	v, err := s.known(ctx, volume)
	if err != nil {
		return st, err
	}
	return st, status.Errorf(codes.FailedPrecondition, "volume %s (%s) is not attached to node %s: ControllerPublishVolume comes first",
		v.Handle, v.Name, s.opts.NodeID)
}

// known finds the volume among the driver's, or answers NOT_FOUND.
func (s *nodeServer) known(ctx context.Context, volume string) (Volume, error) {
	all, err := s.client.Volumes(ctx)
	if err != nil {
		return Volume{}, status.Errorf(codes.Unavailable, "look for volume %s: %v", volume, err)
	}
	for _, v := range all {
		if v.Handle == volume && v.Driver == s.driver {
			return v, nil
		}
	}
	return Volume{}, status.Errorf(codes.NotFound, "volume %s is not known to %s", volume, s.driver)
}

// checkEpoch compares the publish_context with the attachment of now: a node that acts on an older one would mount what
// was detached and attached again since, or does not know its attachment.
func checkEpoch(publishContext map[string]string, inode uint64) error {
	text, ok := publishContext[EpochKey]
	if !ok {
		return status.Errorf(codes.InvalidArgument, "publish_context lacks %s: it must be passed on from ControllerPublishVolume", EpochKey)
	}
	epoch, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "publish_context has %s=%q, which is no number", EpochKey, text)
	}
	if epochInode(epoch) != inode {
		return status.Errorf(codes.FailedPrecondition, "publish_context is of attachment %d, which has ended; the volume has been attached again since", epoch)
	}
	return nil
}

// startPatience bounds how long a new adapter may take until its mount stands.
const startPatience = ioPatience + 5*time.Second
