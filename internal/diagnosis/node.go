package diagnosis

import (
	"fmt"
	"slices"
	"strings"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// ofNode returns what waits because of a node: its volumes that others wait for, that are not attached, or that do not leave it.
func (x *state) ofNode(name string) (found []Finding, clear string, err error) {
	node := x.nodes[name]
	ref := Ref{Resource: Nodes, Name: name}
	attached := 0
	for _, va := range x.Attachments {
		if va.Spec.NodeName != name {
			continue
		}
		attached++
		f, _ := x.ofAttachment(va)
		found = append(found, f...)
	}
	if node == nil && attached == 0 {
		if x.exists(ref) == decision.No {
			return nil, "", fmt.Errorf("%s does not exist, and no VolumeAttachment refers to it", ref)
		}
		return nil, "", x.missing(ref)
	}
	if node != nil {
		for _, unique := range volumesOf(node) {
			if key, ok := keyOf(unique); ok {
				found = append(found, x.irregular(key)...)
			}
		}
	}
	if state := x.node(name); state.State == NodeNotReady || state.State == NodeUnreachable {
		found = append(found, x.lost(state, attached))
	}
	found = slices.DeleteFunc(found, func(f Finding) bool { return f.Verdict == Clear })
	return found, fmt.Sprintf("node %s is Ready, and nothing is wrong with the volumes that are attached to it (%d)", name, attached), nil
}

// lost describes a node that is not Ready.
func (x *state) lost(n NodeState, attached int) Finding {
	w := wait{reason: explain.NodeNotReady}
	if n.Since != nil {
		w.since = *n.Since
	}
	f := x.findingOf(w, explain.Situation{Node: n.Name})
	f.Subject = Ref{Resource: Nodes, Name: n.Name}
	f.Summary = fmt.Sprintf("node %s is not Ready (%s); volumes attached to it: %d%s", n.Name, n.State, attached, x.attachedTo(n.Name))
	if attached == 0 {
		f.Verdict, f.Next = Blocked, nil
	}
	return f
}

// fewNames limits the names in a sentence.
const fewNames = 5

// attachedTo names the first volumes that are attached to a node, by their claims where these may be named.
func (x *state) attachedTo(node string) string {
	var names []string
	for _, va := range x.Attachments {
		if va.Spec.NodeName != node {
			continue
		}
		pv := x.volumes[kube.SourceName(va)]
		switch {
		case pv != nil && pv.Spec.ClaimRef != nil && x.mayName(pv.Spec.ClaimRef.Namespace):
			names = append(names, "claim "+join(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name))
		case kube.SourceName(va) != "":
			names = append(names, "volume "+kube.SourceName(va))
		}
	}
	slices.Sort(names)
	if len(names) > fewNames {
		names = append(names[:fewNames], "...")
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}
