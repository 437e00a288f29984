package demo

import (
	"fmt"
	"io"
	"strings"

	"belay.dev/belay/lab/cluster"
)

// NotShown is a part that this run of the demo leaves out.
type NotShown struct {
	Part string `json:"part"`
	// Reason is why, Instead what the demo does in its place, Get how to see it.
	Reason  string `json:"reason"`
	Instead string `json:"instead"`
	Get     string `json:"get"`
}

// instead is what the demo does in place of a part.
var instead = map[string]string{
	cluster.PartRecovery: "the demo sets the out-of-service taint, as an operator does",
	cluster.PartKubelets: "the nodes run belay-node, and processes in place of containers",
}

const installPackages = "run hack/install-packages"

// notShown are the parts that are left out: for the flags, or for programs that are not installed.
func (o options) notShown(missing []cluster.Missing) []NotShown {
	var all []NotShown
	add := func(part, reason, get string) {
		all = append(all, NotShown{Part: part, Reason: reason, Instead: instead[part], Get: get})
	}
	lacks := map[string]string{}
	for _, m := range missing {
		lacks[m.Part] = needs(m)
	}
	if o.upstream {
		add(cluster.PartRecovery, "upstream's plane has none", "leave --upstream out")
	} else if reason := lacks[cluster.PartRecovery]; reason != "" {
		add(cluster.PartRecovery, reason, installPackages)
	}
	if o.nodes == cluster.NodeKindBelay {
		add(cluster.PartKubelets, "--nodes belay", "leave --nodes out")
	} else if reason := lacks[cluster.PartKubelets]; reason != "" && o.nodes == "" { // with --nodes kubelet the lab refuses to start
		add(cluster.PartKubelets, reason, installPackages)
	}
	return all
}

// needs names the programs that are missing and their packages.
func needs(m cluster.Missing) string {
	packages := "package"
	if len(m.Packages) > 1 {
		packages += "s"
	}
	return fmt.Sprintf("needs %s (%s %s)", strings.Join(m.Programs, ", "), packages, strings.Join(m.Packages, ", "))
}

// requireAll is an error if any part is missing.
func requireAll(missing []cluster.Missing) error {
	if len(missing) == 0 {
		return nil
	}
	var all []string
	for _, m := range missing {
		all = append(all, m.Part+" "+needs(m))
	}
	return fmt.Errorf("--require-all: the demo cannot show all on this machine: %s: %s", strings.Join(all, "; "), installPackages)
}

// writeNotShown lists the parts that are left out; nothing if there is none.
func writeNotShown(w io.Writer, all []NotShown) error {
	if len(all) == 0 {
		return nil
	}
	var parts []string
	lines := &strings.Builder{}
	for _, n := range all {
		parts = append(parts, n.Part)
		fmt.Fprintf(lines, "  %s: %s. Instead, %s. To see it, %s.\n", n.Part, n.Reason, n.Instead, n.Get)
	}
	if _, err := fmt.Fprintf(w, "NOT SHOWN: %s\n%s", strings.Join(parts, ", "), lines); err != nil {
		return fmt.Errorf("write what is not shown: %w", err)
	}
	return nil
}
