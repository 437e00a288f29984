package drivercheck

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/usage"
)

// ErrBroken is returned when the driver has broken the order.
var ErrBroken = errors.New("the driver carries out calls out of order")

// Command is "check-driver".
func Command() *cobra.Command {
	o := Options{}
	endpoint, output, mode := "", "text", string(corev1.ReadWriteOnce)
	command := &cobra.Command{
		Use:   "check-driver --endpoint unix:///PATH --volume HANDLE --node-id ID",
		Short: "Check whether a CSI driver carries out calls in order",
		Long: `Check whether a CSI driver carries out the calls for one volume and node in order, also those that their callers have abandoned: what belay
needs so that an exclusive volume is on one node (docs/drivers.md).

It abandons a ControllerPublishVolume after a deadline, repeats ControllerUnpublishVolume until the driver has done it, and reads
ListVolumes for --settle: the volume must not be published again. Then the same the other way round. Use a volume that nothing needs.
A call that is answered, or not even sent, by its deadline shows nothing.

Exit status 0: each call that could be abandoned kept the order. 1: the order was broken, nothing was shown, or an error.`,
		Example: `  # A driver on this machine
  belay-lab check-driver --endpoint unix:///csi/csi.sock --volume vol-1 --node-id node-1

  # A slow driver, with the deadlines that its attacher uses
  belay-lab check-driver --endpoint unix:///csi/csi.sock --volume vol-1 --node-id node-1 --deadline 1s --deadline 15s --settle 5m`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Mode = corev1.PersistentVolumeAccessMode(mode)
			if err := o.validate(endpoint, output); err != nil {
				return err
			}
			o.Progress = func(format string, args ...any) { _, _ = fmt.Fprintf(c.ErrOrStderr(), format+"\n", args...) }
			driver, err := Dial(c.Context(), endpoint, o.Timeout)
			if err != nil {
				return err
			}
			defer driver.Close()
			rounds, err := Run(c.Context(), driver, o)
			if len(rounds) > 0 {
				err = errors.Join(err, show(c, driver.Name, rounds, err, output))
			}
			if verdict(rounds) == Broken {
				err = errors.Join(ErrBroken, err)
			}
			return err
		},
	}
	f := command.Flags()
	f.StringVar(&endpoint, "endpoint", "", "the socket of the driver's controller service, such as unix:///csi/csi.sock (required)")
	f.StringVar(&o.Volume, "volume", "", "the handle of a volume that nothing uses (required)")
	f.StringVar(&o.Node, "node-id", "", "the CSI node ID of a node that the volume can be published to (required)")
	f.StringVar(&mode, "access-mode", mode, "the access mode of the volume")
	f.DurationSliceVar(&o.Deadlines, "deadline", []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second}, "after how long a call is abandoned; repeat the flag for several")
	f.DurationVar(&o.Settle, "settle", 10*time.Second, "how long the volume is watched after each pair of calls: longer than the driver takes for a call")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "how long the driver may take to do a call that is not abandoned, with retries; each try has an eighth of it")
	f.StringVarP(&output, "output", "o", output, "text or json; progress goes to stderr")
	return command
}

func (o *Options) validate(endpoint, output string) error {
	for _, required := range []struct{ flag, value string }{{"endpoint", endpoint}, {"volume", o.Volume}, {"node-id", o.Node}} {
		if required.value == "" {
			return usage.Errorf("--%s is required", required.flag)
		}
	}
	if _, err := target(endpoint); err != nil {
		return err
	}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadWriteMany, corev1.ReadOnlyMany}
	switch {
	case !slices.Contains(modes, o.Mode):
		return usage.Errorf("--access-mode is %q, but must be one of %v", o.Mode, modes)
	case output != "text" && output != "json":
		return usage.Errorf("--output is %q, but must be text or json", output)
	case len(o.Deadlines) == 0 || slices.Min(o.Deadlines) <= 0:
		return usage.Errorf("--deadline must be above zero")
	case o.Settle <= 0 || o.Timeout <= 0:
		return usage.Errorf("--settle and --timeout must be above zero")
	}
	return nil
}

// show prints the rounds. Of a run that ended with an error they are not all.
func show(c *cobra.Command, driver string, rounds []Round, failed error, output string) error {
	if output == "json" {
		encoder := json.NewEncoder(c.OutOrStdout())
		encoder.SetIndent("", "  ")
		message := ""
		if failed != nil {
			message = failed.Error()
		}
		return encoder.Encode(struct {
			Driver  string  `json:"driver"`
			Verdict Verdict `json:"verdict"`
			Error   string  `json:"error,omitempty"`
			Rounds  []Round `json:"rounds"`
		}{driver, verdict(rounds), message, rounds})
	}
	table := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintf(table, "CALL\tDEADLINE\tABANDONED\tRETRIES OF THE NEXT\tORDER\n")
	for _, r := range rounds {
		order := string(r.Verdict)
		if r.Verdict == Broken {
			order = "BROKEN"
		}
		if r.Reason != "" {
			order += ": " + r.Reason
		}
		_, lineErr := fmt.Fprintf(table, "%s\t%v\t%v\t%d\t%s\n", r.Call, r.Deadline.Duration, r.Abandoned, r.Retries, order)
		err = errors.Join(err, lineErr)
	}
	return errors.Join(err, table.Flush())
}
