package labdisk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"belay.dev/belay/internal/usage"
)

// FaultCommand is "fault": set, list and clear faults. dial reaches the fabric; it may read flags that its caller adds to
// the command.
func FaultCommand(dial func(*cobra.Command) (*Client, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Make CSI calls slow, fail, hang or lose their replies",
		Long: `Make CSI calls slow, fail, hang or lose their replies.

A fault names the calls that it hits (method, driver, volume, node; what is not named matches all) and what happens to
them. It is stored with the storage, survives its restart, and works on calls of controllers and of nodes alike. The first
fault that matches a call is the one that acts.`,
		Example: `  # The next attach fails, the one after works.
  belay-lab fault set error --code Unavailable --method ControllerPublishVolume --count 1

  # Attaching takes two seconds, on every node, until cleared.
  belay-lab fault set delay --delay 2s --method ControllerPublishVolume

  # node-2 hangs while it unmounts the volume of one claim; then it continues.
  belay-lab fault set hang --method NodeUnstageVolume --node node-2 --volume pvc-6e3a1f
  belay-lab fault clear

  # The detach is done, but its caller never gets the reply.
  belay-lab fault set lost-reply --method ControllerUnpublishVolume --count 1

  # node-1 takes two volumes and no more.
  belay-lab fault set limit --limit 2 --node node-1`,
	}
	cmd.AddCommand(faultSetCommand(dial), faultListCommand(dial), faultClearCommand(dial))
	return cmd
}

func faultSetCommand(dial func(*cobra.Command) (*Client, error)) *cobra.Command {
	var f Fault
	cmd := &cobra.Command{
		Use:   "set delay|error|hang|lost-reply|limit|late|disorder",
		Short: "Set a fault and print its id",
		Long: `Set a fault and print its id.

  delay       wait for --delay, then do the work (every other effect may have a --delay as well)
  error       answer --code and --message; the work is not done
  hang        hold the call until the fault is cleared (the work is then done) or its caller times out (it is not)
  lost-reply  do the work, then answer --code; without --code do not answer until the caller times out
  limit       answer RESOURCE_EXHAUSTED to ControllerPublishVolume for a node that holds --limit volumes; kubelet rejects
              pods that wait for their volume there after 2m3s, with reason VolumeAttachmentLimitExceeded
  late        do the work after --delay, also if the caller has abandoned it by then; calls for the same volume and node wait for it
  disorder    as late, but later calls overtake it, as no CSI driver may do (docs/drivers.md)

Methods are the RPCs of the CSI spec's services Identity, Controller and Node: CreateVolume, DeleteVolume, ControllerPublishVolume,
ControllerUnpublishVolume, NodeStageVolume, NodePublishVolume, NodeUnpublishVolume, NodeUnstageVolume, NodeGetInfo, Probe, ...`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage.Errorf("fault set needs one effect, %s, but received %q", strings.Join(effects(), ", "), args)
			}
			return nil
		},
		ValidArgs: effects(), // for the completion of shells
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Effect = args[0]
			if err := f.check(); err != nil {
				return usage.Wrap(err)
			}
			if set := cmd.Flags().Changed("limit"); set != (f.Effect == EffectLimit) {
				if set {
					return usage.Errorf("--limit is %d, but only the effect %s has a limit", f.Limit, EffectLimit)
				}
				return usage.Errorf("--limit is required for the effect %s: how many volumes a node may hold, 0 or more", EffectLimit)
			}
			return withClient(cmd, dial, func(c *Client) error {
				if err := checkNode(cmd.Context(), c, f.Node); err != nil {
					return err
				}
				id, err := c.SetFault(cmd.Context(), f)
				if err == nil {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
				}
				return err
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.Method, "method", "", "hit calls of this RPC only")
	flags.StringVar(&f.Driver, "driver", "", "hit calls of this driver only: "+strings.Join(Drivers(), ", "))
	flags.StringVar(&f.Volume, "volume", "", "hit calls for this volume only: its handle, or the name of its PersistentVolume")
	flags.StringVar(&f.Node, "node", "", "hit calls of or for this node only")
	flags.DurationVar(&f.Delay, "delay", 0, "wait this long before the work")
	flags.StringVar(&f.Code, "code", "", "gRPC code to answer: "+strings.Join(codeNames(), ", "))
	flags.StringVar(&f.Message, "message", "", "message to answer with the code")
	flags.IntVar(&f.Limit, "limit", 0, "volumes that a node may hold, for the effect limit")
	flags.IntVar(&f.Count, "count", 0, "hit this many calls, then be gone; 0: until cleared")
	return cmd
}

// checkNode returns a [usage.Error] if the fabric has never had a node of the name.
func checkNode(ctx context.Context, c *Client, name string) error {
	if name == "" {
		return nil
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	if !slices.Contains(names, name) {
		return usage.Errorf("--node is %q, but the lab has the nodes %s", name, strings.Join(names, ", "))
	}
	return nil
}

func faultListCommand(dial func(*cobra.Command) (*Client, error)) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the faults that are set", Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withClient(cmd, dial, func(c *Client) error {
				faults, err := c.Faults(cmd.Context())
				if err != nil {
					return err
				}
				return printFaults(cmd.OutOrStdout(), faults)
			})
		},
	}
}

func faultClearCommand(dial func(*cobra.Command) (*Client, error)) *cobra.Command {
	return &cobra.Command{
		Use: "clear [ID...]", Short: "Clear faults by their ids, or all", Args: cobra.ArbitraryArgs,
		Long: "Clear faults by their ids, or all. Calls that hang in one of them continue and do their work. If one of the ids is\n" +
			"unknown, none is cleared.",
		RunE: func(cmd *cobra.Command, ids []string) error {
			return withClient(cmd, dial, func(c *Client) error { return c.ClearFaults(cmd.Context(), ids...) })
		},
	}
}

func withClient(cmd *cobra.Command, dial func(*cobra.Command) (*Client, error), do func(*Client) error) error {
	cmd.SilenceUsage = true
	c, err := dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(c)
}

func printFaults(out io.Writer, faults []Fault) error {
	if len(faults) == 0 {
		_, err := fmt.Fprintln(out, "No fault is set.")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, err := fmt.Fprintln(table, "ID\tEFFECT\tMETHOD\tDRIVER\tVOLUME\tNODE\tDETAIL\tHITS\tCOUNT")
	for _, f := range faults {
		var detail []string
		if f.Delay > 0 {
			detail = append(detail, f.Delay.Round(time.Millisecond).String())
		}
		if f.Code != "" {
			detail = append(detail, f.Code)
		}
		if f.Effect == EffectLimit {
			detail = append(detail, strconv.Itoa(f.Limit))
		}
		if f.Message != "" {
			detail = append(detail, strconv.Quote(f.Message))
		}
		count := "-"
		if f.Count > 0 {
			count = strconv.Itoa(f.Count)
		}
		_, lineErr := fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", f.ID, f.Effect, orAll(f.Method), orAll(f.Driver),
			orAll(f.Volume), orAll(f.Node), strings.Join(detail, " "), f.Hits, count)
		err = errors.Join(err, lineErr)
	}
	return errors.Join(err, table.Flush())
}

func orAll(s string) string {
	if s == "" {
		return "*"
	}
	return s
}

// codeNames lists the gRPC codes that are errors.
func codeNames() []string {
	var names []string
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		names = append(names, c.String())
	}
	return names
}
