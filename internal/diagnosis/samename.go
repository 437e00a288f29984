package diagnosis

import (
	"fmt"
	"slices"
	"strings"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fencing"
	"belay.dev/belay/internal/kube"
)

// Several machines may have had the name of a node, and each may have a NodeFence that is not over. What is asked about the node is about the machine that the Node
// shows.

// chooseFences finds the NodeFence of each node: that of the machine which the Node shows, or else the latest.
func (x *state) chooseFences() {
	for _, f := range x.Fences {
		name := f.Spec.NodeName
		if x.fences[name] != nil {
			continue
		}
		if x.fences[name] = x.standingFence(name); x.fences[name] == nil {
			x.fences[name] = kube.LatestFence(x.Fences, name)
		}
	}
}

// standingFence is the NodeFence of the machine that a Node shows, nil without one that is not over.
func (x *state) standingFence(name string) *fencingv1.NodeFence {
	if node := x.nodes[name]; node != nil {
		return kube.StandingFence(x.Fences, kube.BootOf(node))
	}
	return nil
}

// fencesOf are the fences of a node that are not over, that of fenceOf first.
func (x *state) fencesOf(node string) (all []*fence) {
	first := x.fenceOf(node)
	if first == nil {
		return nil
	}
	all = append(all, first)
	for _, object := range x.Fences {
		if object.Spec.NodeName == node && object.Name != first.object.Name && !kube.FenceFinished(object) {
			all = append(all, x.read(object))
		}
	}
	return all
}

// fenceOfMachine is the fence of a node that a person means: that of the machine, or fenceOf if none is about it.
func (x *state) fenceOfMachine(node, machine string) *fence {
	all := x.fencesOf(node)
	i := slices.IndexFunc(all, func(f *fence) bool {
		return machine != "" && fencing.MachineID(machine) == fencing.MachineID(f.Boot.Machine)
	})
	if i < 0 && len(all) > 0 {
		i = 0
	}
	if i < 0 {
		return nil
	}
	return all[i]
}

// fenceOfWait is the fence that may end a wait for a node: of a volume that an earlier machine of the name has, the fence of that machine.
func (x *state) fenceOfWait(node string, replaced bool) *fence {
	if replaced {
		for _, f := range x.fencesOf(node) {
			if x.replaced(f) {
				return f
			}
		}
	}
	return x.fenceOf(node)
}

// replaced reports whether the Node shows another machine than the one that is fenced.
func (x *state) replaced(f *fence) bool { return x.replaces(f.Boot) }

// replaces reports whether the Node shows another machine than that of the boot.
func (x *state) replaces(boot fencing.Boot) bool {
	node := x.nodes[boot.Node]
	return node != nil && kube.BootOf(node).Replaces(boot)
}

// notShown says first of a fence of an earlier machine that another one has the name now: a person who reads the name alone would switch that one off. It is empty
// for the fence of the machine that the Node shows, and once its own machine is proven off.
func (x *state) notShown(f *fence) string {
	if !x.replaced(f) || f.Proven() {
		return ""
	}
	n := x.node(f.node())
	return explain.AnotherMachine(f.node(), n.State, x.foreign(kube.BootOf(x.nodes[f.node()]).Machine), x.foreign(f.Boot.Machine))
}

// forMachine adds the machine to the commands about a fence in a text, if the Node shows another one.
func (x *state) forMachine(boot fencing.Boot, text string) string {
	if !x.replaces(boot) {
		return text
	}
	for _, verb := range []string{"fence", "unfence"} {
		command := "kubectl belay " + verb + " " + explain.ShellWord(boot.Node)
		text = strings.ReplaceAll(text, command, command+" --machine "+explain.ShellWord(x.foreign(boot.Machine)))
	}
	return text
}

// others names the fences of other machines of the name, and what they wait for.
func (x *state) others(f *fence) []string {
	var names []string
	for _, other := range x.fencesOf(f.node()) {
		if other.object.Name != f.object.Name {
			names = append(names, fmt.Sprintf("NodeFence %s is about another machine of this name, %s, and waits for %s", other.object.Name, x.foreign(other.Boot.Machine), other.missing))
		}
	}
	return names
}

// otherMachines says of which other machines of the name there are fences, for a person who means one of them.
func (x *state) otherMachines(f *fence) string {
	var machines []string
	for _, other := range x.fencesOf(f.node()) {
		if other.object.Name != f.object.Name {
			machines = append(machines, x.foreign(other.Boot.Machine))
		}
	}
	if len(machines) == 0 {
		return ""
	}
	return "; other fences of this name are about " + strings.Join(machines, ", ")
}

// fenceBefore is the fence that a request for a power-off finds: that of the machine which the Node shows, nil without one.
func (x *state) fenceBefore(node string) *fence {
	if object := x.standingFence(node); object != nil {
		return x.read(object)
	}
	if x.nodes[node] != nil {
		return nil
	}
	return x.fenceOf(node)
}

// place is where the next NodeFence of a node has its place.
func (x *state) place(node string) kube.FencePlace {
	place, _ := kube.PlaceFence(x.Fences, kube.BootOf(x.nodes[node]))
	return place
}

// recordNamed is the record that has the name of the next NodeFence, nil for none.
func recordNamed(place kube.FencePlace) *fencingv1.NodeFence {
	i := slices.IndexFunc(place.Over, func(f *fencingv1.NodeFence) bool { return f.Name == place.Name })
	if i < 0 {
		return nil
	}
	return place.Over[i]
}
