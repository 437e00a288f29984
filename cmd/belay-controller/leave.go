package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	cliflag "k8s.io/component-base/cli/flag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/recovery"
	"belay.dev/belay/internal/usage"
)

const aboutLeave = `Prepares the removal of recovery, before its Deployments are deleted: the chart runs it in a
Job when it is uninstalled. It refuses while a NodeFence is not finished, or a Node has a
taint of recovery that nothing would remove.

It takes the lease of the detector, so that no fence begins for two minutes. Then it
releases the fences that are finished: their taints and finalizers.

Exit status:
  0  recovery may be removed now
  1  it must not, or that could not be determined: the last line has the reason
  2  wrong usage`

// leaveCommand returns the command belay-controller leave.
func leaveCommand() *cobra.Command {
	var kubeconfig, lease string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "leave [flags]",
		Short: "Check that recovery may be removed, and release what is finished",
		Long:  aboutLeave,
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			namespace, name, ok := strings.Cut(lease, "/")
			if !ok || namespace == "" || name == "" {
				return usage.Errorf("--detector-lease must be NAMESPACE/NAME, not %q", lease)
			}
			if timeout <= 0 {
				return usage.Errorf("--timeout is %v, but must be above 0", timeout)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			c, err := leaveClient(ctx, kubeconfig)
			if err != nil {
				return err
			}
			if err := recovery.Leave(ctx, c, client.ObjectKey{Namespace: namespace, Name: name}); err != nil {
				return fmt.Errorf("leave: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Recovery may be removed: no NodeFence is left to end, and none begins within %v.\n", recovery.LeaveLease)
			return err //nolint:wrapcheck // of the output
		},
	}
	var sets cliflag.NamedFlagSets
	f := sets.FlagSet("Leave")
	f.StringVar(&kubeconfig, "kubeconfig", "", "Kubeconfig file. By default $KUBECONFIG, then ~/.kube/config, then the cluster that this runs in, as for kubectl.")
	f.StringVar(&lease, "detector-lease", metav1.NamespaceSystem+"/"+recovery.Name+"-"+roleDetector,
		"Lease by which the detector leads, as NAMESPACE/NAME. Where one process runs all parts of recovery it is "+metav1.NamespaceSystem+"/"+recovery.Name+".")
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "How long this may take. A detector that leads needs the duration of its lease to stop, 15s by default.")
	f.BoolP("help", "h", false, "Print this help.")
	group(cmd, sets)
	return cmd
}

func leaveClient(ctx context.Context, kubeconfig string) (client.Client, error) {
	config, _, err := personConfig(ctx, kubeconfig)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	err = errors.Join(corev1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme), fencingv1.AddToScheme(scheme))
	if err != nil {
		return nil, fmt.Errorf("register API types: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("set up the client: %w", err)
	}
	return c, nil
}
