package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"belay.dev/belay/internal/usage"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/upstream"
)

func downCommand() *cobra.Command {
	var name string
	command := &cobra.Command{
		Use: "down", Short: "Stop a lab and remove everything of it except its logs", Args: usage.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			lab, err := cluster.Find(name)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeoutCause(command.Context(), 90*time.Second, errors.New("it took longer than 90 s"))
			defer cancel()
			if err := lab.Stop(ctx); err != nil {
				return err
			}
			say(command.OutOrStdout(), "Lab %s is down.\n", name)
			return nil
		},
	}
	nameFlag(command, &name)
	return command
}

func statusCommand() *cobra.Command {
	var name, output string
	command := &cobra.Command{
		Use: "status", Short: "Show a lab's components", Args: usage.NoArgs,
		Example: "  belay-lab status\n\n  # What has restarted.\n" +
			"  belay-lab status --name demo -o json | jq '.components[] | select(.restarts > 0) | {name, restarts, lastError}'",
		Long: "Show a lab's components and what runs inside its nodes, with state, logs and the addresses of metrics.\n\n" +
			"  running  the process is there\n" +
			"  stopped  a signal stopped it (SIGSTOP); it does nothing until SIGCONT\n" +
			"  down     it has exited; the supervisor starts it again unless it was stopped permanently\n" +
			"  off      the node has no power\n" +
			"  unknown  the node does not answer\n\n" +
			"Metrics under http are open to every user of this machine. Those under https need a client certificate. For kube-apiserver,\n" +
			"kubectl has one: kubectl get --raw /metrics. For the others, use one from the folder pki of the lab, for example\n" +
			"for the agent of a node: curl --cacert ca.crt --cert apiserver-kubelet-client.crt --key apiserver-kubelet-client.key URL",
		RunE: func(command *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return usage.Errorf("--output must be json, or left out for a table, not %q", output)
			}
			status, err := statusOf(command, name)
			if err != nil {
				return err
			}
			if output == "" {
				return printStatus(command.OutOrStdout(), status)
			}
			encoder := json.NewEncoder(command.OutOrStdout())
			encoder.SetIndent("", "  ")
			return encoder.Encode(status)
		},
	}
	nameFlag(command, &name)
	command.Flags().StringVarP(&output, "output", "o", "", "json, or a table if it is left out")
	return command
}

// statusOf asks a lab that runs for its status.
func statusOf(command *cobra.Command, name string) (cluster.Status, error) {
	lab, err := cluster.Find(name)
	if err != nil {
		return cluster.Status{}, err
	}
	return lab.Status(command.Context())
}

func printStatus(out io.Writer, s cluster.Status) error {
	storage := "strict"
	if s.Permissive {
		storage = "permissive"
	}
	say(out, "Lab %s: %s plane, %s nodes, %s storage (%s)\n", style(out, bold, s.Name), s.Plane, s.NodeKind, storage, strings.Join(s.Drivers, ", "))
	say(out, "Server %s, kubeconfig %s\nSupervisor %d, log %s\n", s.Server, s.Kubeconfig, s.HolderPID, s.Logs["lab"])
	if len(s.BMCs) > 0 {
		say(out, "BMCs (IPMI, user %s, password %s): %s\n", cluster.BMCUser, cluster.BMCPassword, pairs(s.BMCs))
	}
	if len(s.Partitioned) > 0 {
		say(out, "Partitioned: %s\n", pairs(s.Partitioned))
	}
	say(out, "\n")
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	say(table, "COMPONENT\tSTATE\tPID\tRESTARTS\tLAST EXIT\tMETRICS\tLOG\n")
	for _, component := range s.Components {
		pid := "-"
		if component.PID != 0 {
			pid = strconv.Itoa(component.PID)
		}
		say(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", component.Name, s.StateOf(component), pid, component.Restarts,
			cmp.Or(component.LastError, "-"), cmp.Or(s.Metrics[component.Name], "-"), s.Logs[component.Name])
		for _, child := range s.Children[component.Name] {
			say(table, "%s\t%s\t-\t%d\t-\t%s\t%s\n", child.Name, child.State, child.Restarts, cmp.Or(s.Metrics[child.Name], "-"), s.Logs[child.Name])
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("printing the status: %w", err)
	}
	return nil
}

// pairs lists the values of nodes.
func pairs[V ~string](of map[string]V) string {
	var all []string
	for _, node := range slices.Sorted(maps.Keys(of)) {
		all = append(all, node+" "+string(of[node]))
	}
	return strings.Join(all, ", ")
}

func cleanCommand() *cobra.Command {
	var name string
	var programs bool
	command := &cobra.Command{
		Use: "clean", Short: "Remove what labs that were killed left on this machine", Args: usage.NoArgs,
		Long: "Remove what labs that were killed left on this machine: processes (by pid and start time, so that no\n" +
			"other is hit), mounts, loop devices, cgroups, changed sysctls, folders. Labs that run are left alone.",
		RunE: func(command *cobra.Command, _ []string) error {
			if programs {
				return cleanPrograms(command)
			}
			names := []string{name}
			if !command.Flags().Changed("name") {
				all, err := cluster.Labs()
				if err != nil {
					return err
				}
				names = all
			}
			return clean(command, names)
		},
	}
	command.Flags().StringVar(&name, "name", "", "one lab only (default: all)")
	command.Flags().BoolVar(&programs, "cache", false, "instead, remove old versions of the upstream programs from the cache folder; "+
		"the four sets that were used last stay, and those that are running")
	command.MarkFlagsMutuallyExclusive("name", "cache")
	return command
}

// keptPrograms: two branches of a checkout, and the minor versions in lab/upstream, need different ones.
const keptPrograms = 4

func cleanPrograms(command *cobra.Command) error {
	cache, err := cluster.CacheDir()
	if err != nil {
		return err
	}
	removed, err := upstream.Prune(cache, keptPrograms)
	for _, dir := range removed {
		say(command.OutOrStdout(), "removed %s\n", dir)
	}
	if err == nil && len(removed) == 0 {
		say(command.OutOrStdout(), "nothing to clean\n")
	}
	return err
}

func clean(command *cobra.Command, names []string) error {
	out := command.OutOrStdout()
	nothing := true
	var errs []error
	for _, name := range names {
		removed, err := cluster.Clean(command.Context(), name)
		if errors.Is(err, cluster.ErrRunning) {
			say(out, "left alone: %v\n", err)
			nothing = false
			continue
		}
		for _, thing := range removed {
			say(out, "removed %s\n", thing)
			nothing = false
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if nothing {
		say(out, "nothing to clean\n")
	}
	return nil
}

func nodeCommand() *cobra.Command {
	var name string
	command := &cobra.Command{
		Use: "node", Short: "Switch the nodes of a lab off and on, freeze them, stop their agents, cut them off",
		Example: "  belay-lab node list\n\n  # A power cut, the taint with which an operator confirms it, and the next boot.\n" +
			"  belay-lab node poweroff node-2\n  kubectl taint node node-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute\n" +
			"  belay-lab node poweron node-2\n  kubectl taint node node-2 node.kubernetes.io/out-of-service-",
	}
	command.PersistentFlags().StringVar(&name, "name", "lab", "name of the lab")
	command.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the nodes: whether they have power, are frozen or partitioned", Args: usage.NoArgs,
			RunE: func(command *cobra.Command, _ []string) error { return listNodes(command, name) },
		},
		steer("poweroff NODE", "Cut the power of a node: its processes die, its mounts vanish, its I/O fails", &name, (*cluster.Remote).PowerOff),
		steer("poweron NODE", "Boot a node that was powered off", &name, (*cluster.Remote).PowerOn),
		steer("freeze NODE", "Stop all processes of a node where they stand, as a machine that hangs", &name, (*cluster.Remote).Freeze),
		steer("thaw NODE", "Let a frozen node continue as if nothing had happened", &name, (*cluster.Remote).Thaw),
		stopAgentCommand(&name),
		steer("start-agent NODE", "Start the kubelet, or belay's agent, of a node again", &name, (*cluster.Remote).StartAgent),
		partitionCommand(&name),
		steer("heal NODE", "End the partition of a node", &name, (*cluster.Remote).Heal),
	)
	return command
}

// stopAgentCommand stops only the agent of a node.
func stopAgentCommand(name *string) *cobra.Command {
	command := steer("stop-agent NODE", "Stop only the kubelet, or belay's agent, of a node", name, (*cluster.Remote).StopAgent)
	command.Long = "Stop only the kubelet, or belay's agent, of a node, as `systemctl stop kubelet` does: its containers run on and write, its driver and\n" +
		"its mounts stay, and its machine answers. The node stops renewing its lease. It lasts until belay-lab node start-agent, or until the\n" +
		"node boots. belay-lab kill NODE/agent ends the agent too, but the node starts it again."
	command.Example = "  belay-lab node stop-agent node-2\n  kubectl get nodes,nodefences -w\n  belay-lab node start-agent node-2"
	return command
}

func listNodes(command *cobra.Command, name string) error {
	status, err := statusOf(command, name)
	if err != nil {
		return err
	}
	for _, component := range status.Components {
		if !strings.HasPrefix(component.Name, "node-") {
			continue
		}
		say(command.OutOrStdout(), "%s\t%s\n", component.Name, stateOfNode(status, component.Name))
	}
	return nil
}

// stateOfNode says what is the matter with a node, beginning with its power.
func stateOfNode(s cluster.Status, node string) string {
	state := "on"
	if slices.Contains(s.Off, node) {
		state = "off"
	}
	if slices.Contains(s.Frozen, node) {
		state += ", frozen"
	}
	if direction := s.Partitioned[node]; direction != "" {
		state += ", partitioned (" + string(direction) + ")"
	}
	return state
}

// partitionCommand cuts a node off.
func partitionCommand(name *string) *cobra.Command {
	var flag string
	var direction cluster.Direction
	command := steer("partition NODE", "Cut a node off from the API server while its pods keep running", name,
		func(lab *cluster.Remote, ctx context.Context, node string) error {
			return lab.Partition(ctx, node, direction)
		})
	command.Long = "Cut a node off from the API server while its pods keep running and writing to their volumes: the storage is another network,\n" +
		"and so is that of the BMC. Requests hang, as when packets are lost; none is refused. It lasts until belay-lab node heal.\n\n" +
		"  both      requests of both sides are lost\n" +
		"  to-api    what the node asks the API server: it renews no lease and learns of no new pod. The kubelet's port still answers, which\n" +
		"            is a sign of life: recovery does not fence the node\n" +
		"  from-api  what the API server and recovery ask the kubelet: kubectl logs hangs, and the node stays Ready\n\n" +
		"Without evidence recovery waits for as long as a partition lasts. With a BMC that answers, it switches the node off before it\n" +
		"moves the volumes. To see the first in a lab with BMCs: belay-lab bmc NODE dead"
	command.Example = "  belay-lab node partition node-2\n  kubectl get nodes,nodefences -w\n  belay-lab node heal node-2"
	command.Flags().StringVar(&flag, "direction", string(cluster.Both), "which requests are lost: both, to-api or from-api")
	command.PreRunE = func(*cobra.Command, []string) (err error) {
		direction, err = cluster.ParseDirection(flag)
		return err
	}
	return command
}

func killCommand() *cobra.Command {
	var name string
	command := steer("kill COMPONENT", "Kill a component with SIGKILL; the supervisor starts it again", &name, (*cluster.Remote).Kill)
	command.Long = "Kill a component with SIGKILL; the supervisor starts it again. Components: those of `belay-lab status`,\n" +
		"and inside a node its agent and its driver, as node-1/agent and node-1/driver. Killing node-1 is a power cut and a boot."
	nameFlag(command, &name)
	return command
}

// cutCommand cuts a component off.
func cutCommand() *cobra.Command {
	var name string
	command := steer("partition COMPONENT", "Cut a component off from the API server while it keeps running", &name, (*cluster.Remote).PartitionComponent)
	command.Long = "Cut a component off from the API server while it keeps running: requests hang, as when packets are lost, and none is refused. An\n" +
		"attacher still reaches its driver. It lasts until belay-lab heal, also if the component is restarted.\n\n" +
		"A leader that is cut off does nothing any more 4 s after its last renewal of the lease, and exits; the supervisor starts it again,\n" +
		"and it waits for the API server. With belay-lab up --standbys the other one leads after 6 s. Either of the two may lead, from the\n" +
		"start: kubectl get leases -A shows which does. What the component sent before it stopped arrives when the partition ends.\n\n" +
		"Components: those of `belay-lab status` that are clients of the API server, such as attach-controller, attacher, csi-provisioner and\n" +
		"kube-scheduler, those of the other drivers, such as attacher-labshare, and the standbys, such as attacher-2. With upstream's plane,\n" +
		"attach-controller is kube-controller-manager. For a node, see belay-lab node partition."
	command.Example = "  belay-lab up --standbys\n  kubectl get leases -A                 the names of the leaders: attacher-2 if the standby leads\n" +
		"  belay-lab partition attacher\n  kubectl get leases -n belay-system -w\n  belay-lab heal attacher"
	nameFlag(command, &name)
	return command
}

func healCommand() *cobra.Command {
	var name string
	command := steer("heal COMPONENT", "End the partition of a component", &name, (*cluster.Remote).HealComponent)
	command.Long = "End the partition of a component. For a node, see belay-lab node heal."
	nameFlag(command, &name)
	return command
}

// steer makes a command that does one thing to one part of a running lab.
func steer(use, short string, name *string, do func(*cluster.Remote, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage.Errorf("%s wants one name", strings.Fields(use)[0])
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			lab, err := cluster.Find(*name)
			if err != nil {
				return err
			}
			return do(lab, command.Context(), args[0])
		},
	}
}

func buildCommand() *cobra.Command {
	var printOnly bool
	var minor string
	command := &cobra.Command{
		Use: "build", Short: "Build the upstream programs that the lab runs", Args: usage.NoArgs,
		Long: "Build kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, kubelet, etcd, csi-attacher and\n" +
			"csi-provisioner from the modules that lab/go.mod pins, into bin/<key> of the cache folder. The key is made of\n" +
			"their versions, go.sum and the version of Go; what is there is not built again. About ten minutes on two cores\n" +
			"from nothing.\n\n" +
			"BELAY_UPSTREAM_BIN names a folder that has the programs; BELAY_LAB_SRC the lab folder of a checkout, where it\n" +
			"is not found beside this program.",
		Example: "  BELAY_UPSTREAM_BIN=$(belay-lab build --kubernetes 1.35 --print) belay-lab up",
		RunE: func(command *cobra.Command, _ []string) error {
			cache, err := cluster.CacheDir()
			if err != nil {
				return err
			}
			programs, err := upstream.Ensure(command.Context(), upstream.Request{
				Cache: cache, Kubernetes: minor, Kubelet: true, Progress: progressTo(command.ErrOrStderr()),
			})
			if err != nil {
				return err
			}
			if printOnly {
				say(command.OutOrStdout(), "%s\n", programs.Dir)
				return nil
			}
			say(command.OutOrStdout(), "The upstream programs are in %s\n", programs.Dir)
			return nil
		},
	}
	command.Flags().BoolVar(&printOnly, "print", false, "print the folder and nothing else to stdout")
	command.Flags().StringVar(&minor, "kubernetes", "", "minor version of Kubernetes, such as 1.35, of those in lab/upstream (default: the one that lab/go.mod pins)")
	return command
}
