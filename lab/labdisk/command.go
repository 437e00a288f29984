package labdisk

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
)

// Command is "labdisk": the processes of the storage. belay-lab starts them itself.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "labdisk",
		Short: "Run a process of the lab's storage",
		Long: `Run a process of the lab's storage: the fabric, or a node's CSI driver.
A lab starts these itself; run them by hand to use the driver elsewhere.`,
	}
	cmd.AddCommand(fabricCommand(), nodeCommand(), adapterCommand())
	return cmd
}

func fabricCommand() *cobra.Command {
	var o FabricOptions
	cmd := &cobra.Command{
		Use:   "fabric",
		Short: "Serve the volumes, and the controller side of the CSI drivers",
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return RunFabric(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "folder of the volumes, the state and the records")
	f.StringVar(&o.Listen, "listen", "", "unix socket to serve nodes and clients on")
	f.StringVar(&o.CSIDir, "csi-dir", "", "folder for the drivers' controller sockets, <driver>.sock")
	f.StringSliceVar(&o.Drivers, "drivers", Drivers(), "drivers to serve")
	f.BoolVar(&o.Permissive, "permissive", false, "refuse nothing: publish twice, keep access after unpublish, accept all writes, and record what should have been refused")
	require(cmd, "dir", "listen", "csi-dir")
	return cmd
}

func nodeCommand() *cobra.Command {
	var o NodeOptions
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Serve the node side of the CSI drivers, and their registration with the kubelet",
		Long: `Serve the node side of the CSI drivers, and their registration with the kubelet.
The volumes of the node appear under --fuse-dir, served by a process of its own that outlives this one while a volume is in
use: after a restart they are where they were. Needs root.`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find own program: %w", err)
			}
			path := strings.Fields(cmd.Parent().CommandPath())
			o.AdapterCommand = slices.Concat([]string{self}, path[1:], []string{"adapter"})
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return RunNode(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Fabric, "fabric", "", "unix socket of the fabric")
	f.StringVar(&o.NodeID, "node-id", "", "name of the node")
	f.StringVar(&o.RootDir, "root-dir", "/var/lib/kubelet", "the kubelet's root: sockets are plugins/<driver>/csi.sock and plugins_registry/<driver>-reg.sock under it")
	f.StringVar(&o.FuseDir, "fuse-dir", "", "where the node's volumes appear as files")
	f.StringSliceVar(&o.Drivers, "drivers", Drivers(), "drivers to serve")
	f.Int64Var(&o.MaxVolumes, "max-volumes", 0, "how many volumes of each driver the node takes at a time; 0: any number")
	f.DurationVar(&o.IOPatience, "io-patience", ioPatience, ioPatienceUsage)
	f.StringVar(&o.Zone, "zone", DefaultZone, "zone of the node, the value of "+TopologyKey)
	require(cmd, "fabric", "node-id", "fuse-dir")
	return cmd
}

const ioPatienceUsage = "how long I/O waits for a fabric that is away before it fails"

func adapterCommand() *cobra.Command {
	var o adapterOptions
	cmd := &cobra.Command{
		Use:    "adapter",
		Short:  "Serve a node's volumes as files; started by the node driver",
		Hidden: true,
		Args:   usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			return adapterMain(o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Fabric, "fabric", "", "unix socket of the fabric")
	f.StringVar(&o.Node, "node-id", "", "name of the node")
	f.StringVar(&o.Mountpoint, "fuse-dir", "", "where to mount")
	f.DurationVar(&o.Patience, "io-patience", ioPatience, ioPatienceUsage)
	require(cmd, "fabric", "node-id", "fuse-dir")
	return cmd
}

// adapterMain reports to the driver how the start went.
func adapterMain(o adapterOptions) error {
	parent := os.NewFile(adapterReadyFD, "driver")
	tell := func(line string) {
		if parent != nil {
			_, _ = fmt.Fprintln(parent, line)
			_ = parent.Close()
			parent = nil
		}
	}
	// Only a mount that was taken away, or the death of the node, ends an adapter: not what is meant for the driver.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := runAdapter(o, func() { tell(adapterReady) })
	if err != nil {
		tell(strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return err
}

func require(cmd *cobra.Command, flags ...string) {
	for _, f := range flags {
		if err := cmd.MarkFlagRequired(f); err != nil {
			panic(err) // a flag of that name is not defined above
		}
	}
}
