package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/preflight"
)

const aboutPreflight = `Looks whether belay-controller may take over attach and detach, and prints what it
found. It only reads: it needs list and watch on nodes and volumeattachments, list on
pods and persistentvolumes, and, if it may, get on the lease of kube-controller-manager.

It refuses while a kube-controller-manager pod has its attach/detach controller on, while
anybody but belay-controller is seen to change reports on nodes or to make attachments,
and where FlexVolumes may need an attach, which belay does not drive. What it cannot read
it does not take for granted.

Exit code 0: belay-controller may start. 1: it must not, or that could not be found out.`

var errNotReady = errors.New("preflight: belay-controller must not start yet")

// preflightCommand is `belay-controller preflight`.
func preflightCommand() *cobra.Command {
	var kubeconfig, output string
	c := preflight.Config{}
	cmd := &cobra.Command{
		Use:   "preflight [flags]",
		Short: "Look whether belay-controller may take over",
		Long:  aboutPreflight,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output is text or json, not %q", output)
			}
			if c.Observe < 0 {
				return fmt.Errorf("--observe is %v, but must not be below 0", c.Observe)
			}
			clients, err := readers(kubeconfig)
			if err != nil {
				return err
			}
			c.Clients = clients
			report := preflight.Run(cmd.Context(), c)
			write := report.Text
			if output == "json" {
				write = report.JSON
			}
			err = write(cmd.OutOrStdout())
			if err == nil && !report.Ready {
				err = errNotReady
			}
			return err
		},
	}
	var sets cliflag.NamedFlagSets
	f := sets.FlagSet("Preflight")
	f.StringVar(&kubeconfig, "kubeconfig", "", "Kubeconfig file; empty for the cluster that this runs in.")
	f.StringVarP(&output, "output", "o", "text", "text or json.")
	f.DurationVar(&c.Observe, "observe", 10*time.Second,
		"How long to watch for writes by another controller; 0 for not at all. In a cluster where nothing is attached or detached meanwhile, a longer look sees no more.")
	f.StringSliceVar(&c.NonAttachableFlex, "non-attachable-flex-drivers", nil,
		"FlexVolume drivers (\"vendor/driver\") that need no attach. The API does not tell, so any other FlexVolume refuses.")
	f.BoolP("help", "h", false, "Print this text.")
	group(cmd, sets)
	return cmd
}

// readers makes clients for what is asked beside the caches.
func readers(kubeconfig string) (*kubernetes.Clientset, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config = kube.Wire(config)
	config.QPS = -1
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the clients: %w", err)
	}
	return clients, nil
}

// mayLead asks, before the first write, whether upstream's controller is off.
func (o *options) mayLead(clients kubernetes.Interface) func(context.Context) (refusal, err error) {
	return func(ctx context.Context) (refusal, err error) {
		refusal, err = preflight.MayLead(ctx, clients)
		if refusal != nil && o.foreignWriter == foreignWriterWarn {
			klog.FromContext(ctx).Error(refusal, "Going on all the same, as --on-foreign-writer=warn says")
			return nil, nil // no refusal and no error: it may lead
		}
		return refusal, err
	}
}
