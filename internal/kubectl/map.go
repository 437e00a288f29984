package kubectl

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/usage"
)

const mapLong = `Show for each node and driver how many volumes are attached, and how many slots are taken, the fullest node first.

ATTACHED counts the VolumeAttachments that are attached. SLOTS counts as the scheduler does: the volumes of the pods on
the node and the VolumeAttachments for it, each volume once, against the limit that the driver set in the CSINode. A volume that is neither may still take a slot of the machine: see "kubectl belay orphans".`

const mapExample = `  # Which nodes are full?
  kubectl belay map | head

  # All volumes of one node, with their states
  kubectl belay map --node node-1 -o wide`

func (p *plugin) mapCommand() *cobra.Command {
	var node, driver string
	var format output
	c := &cobra.Command{
		Use: "map", Short: "Show which node has which volumes, and its free slots", Long: mapLong, Example: mapExample, Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return p.volumeMap(c.Context(), node, driver, format) },
	}
	format.addToList(c)
	c.Flags().StringVar(&node, "node", "", "show only this node")
	_ = c.RegisterFlagCompletionFunc("node", p.completeFlag(diagnosis.Nodes)) // the flag was just added
	c.Flags().StringVar(&driver, "driver", "", "show only the volumes of this CSI driver")
	return c
}

func (p *plugin) volumeMap(ctx context.Context, node, driver string, format output) error {
	s, err := p.cluster(ctx, "")
	if err != nil {
		return err
	}
	m := diagnosis.Map(s, node, driver)
	nodes, attachments := slices.Contains(s.Whole, diagnosis.Nodes), slices.Contains(s.Whole, diagnosis.Attachments)
	if node != "" && len(m.Items) == 0 {
		if nodes {
			return fmt.Errorf("node %s does not exist, and has no volumes", node)
		}
		p.unread(m.Unread, format)
		return fmt.Errorf("node %s could not be read", node)
	}
	if driver != "" && nodes && attachments && !slices.ContainsFunc(m.Items, func(n diagnosis.NodeVolumes) bool { return len(n.Drivers) > 0 }) &&
		!slices.ContainsFunc(s.Drivers, func(d *storagev1.CSIDriver) bool { return d.Name == driver }) {
		return fmt.Errorf("CSI driver %s does not exist, and no node has volumes of it", driver)
	}
	names := make([]string, 0, len(m.Items))
	for i := range m.Items {
		names = append(names, nameOf(diagnosis.Ref{Resource: diagnosis.Nodes, Name: m.Items[i].Node.Name}))
	}
	if err := format.printList(p.Out, m, names, func() error { return p.mapTable(&m, format) }); err != nil {
		return err
	}
	if m.AtLeast {
		_, _ = fmt.Fprintln(p.ErrOut, "Not all pods and volumes could be read: more slots may be taken than shown.")
	}
	p.unread(m.Unread, format)
	if !nodes && !attachments {
		return found{StatusError}
	}
	return nil
}

func (p *plugin) mapTable(m *diagnosis.NodeMap, format output) error {
	t := &table{columns: []string{"NODE", "STATE", "DRIVER", "ATTACHED", "SLOTS"}, flexible: []string{"NODE", "DRIVER"}, spare: []string{"", "REPORTED", "IN USE", "DETACHING", "ATTACHING", "STATE"}}
	bars := p.style.width > 0
	if bars {
		t.columns = append(t.columns, "")
	}
	t.columns = append(t.columns, "ATTACHING", "DETACHING", "IN USE", "REPORTED")
	if format == formatWide {
		t.columns, t.overflow, t.spare = append(t.columns, "VOLUMES"), "VOLUMES", nil
	}
	for i := range m.Items {
		n := &m.Items[i]
		drivers := n.Drivers
		if len(drivers) == 0 {
			drivers = []diagnosis.DriverSlots{{}}
		}
		for j := range drivers {
			d := &drivers[j]
			cells := []string{n.Node.Name, n.Node.State, d.Driver, strconv.Itoa(d.Attached), slots(d)}
			if bars {
				cells = append(cells, slotBar(d))
			}
			cells = append(cells, strconv.Itoa(d.Attaching), strconv.Itoa(d.Detaching), strconv.Itoa(d.InUse), strconv.Itoa(d.Reported))
			if format == formatWide {
				cells = append(cells, volumesOf(n, d.Driver))
			}
			t.add(cells...)
		}
	}
	return t.print(p.Out, p.style)
}

// slots is "3/25", "3" without a limit, "3+1/25" with one VolumeAttachment that the scheduler does not count.
func slots(d *diagnosis.DriverSlots) string {
	text := strconv.Itoa(d.Used)
	if d.Uncounted > 0 {
		text += fmt.Sprintf("+%d", d.Uncounted)
	}
	if d.Limit != nil {
		text += fmt.Sprintf("/%d", *d.Limit)
	}
	return text
}

// barWidth is the length of a bar.
const barWidth = 10

// slotBar shows how much of the limit is taken: with blocks where the locale is UTF-8, else in ASCII.
func slotBar(d *diagnosis.DriverSlots) string {
	if d.Limit == nil {
		return ""
	}
	filled := min(barWidth, int(d.Fullness()*barWidth+0.5))
	if d.Used > 0 {
		filled = max(filled, 1)
	}
	full, empty := "#", "."
	if utf8Locale() {
		full, empty = "█", "░"
	}
	return strings.Repeat(full, filled) + strings.Repeat(empty, barWidth-filled)
}

// utf8Locale reads the locale as setlocale does: the first of these variables that is set.
func utf8Locale() bool {
	for _, variable := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToUpper(os.Getenv(variable)); value != "" {
			return strings.Contains(value, "UTF-8") || strings.Contains(value, "UTF8")
		}
	}
	return false
}

// volumesOf is "pv-1 (attached, in use), pv-2 (detaching)".
func volumesOf(n *diagnosis.NodeVolumes, driver string) string {
	var parts []string
	for i := range n.Volumes {
		if v := &n.Volumes[i]; v.Driver == driver {
			parts = append(parts, volumeName(&v.Volume)+" ("+strings.Join(v.States, ", ")+")")
		}
	}
	return strings.Join(parts, ", ")
}
