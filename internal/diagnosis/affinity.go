package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// whereUsed says where a volume can be used, and which nodes are there. Names of the pod's own objects, of nodes and of volumes may be named, also if
// something in a namespace that the reader may not read is named alike.
func (x *state) whereUsed(pv *corev1.PersistentVolume, nodes []string, pod *corev1.Pod) string {
	text := "volume " + pv.Name + " can be used only where " + x.foreign(affinityOf(pv))
	switch {
	case !slices.Contains(x.Whole, Nodes):
	case len(nodes) == 0:
		text += cmp.Or(x.foreign(x.valuesThere(pv)), ", and no node is there")
	default:
		text += ": " + x.whereRegistered(pv, nodes)
		if others := otherReasons(schedulerSays(pod)); len(others) > 0 {
			text += ", where the pod does not fit: " + x.foreign(strings.Join(others, ", "))
		}
	}
	return text
}

// whereRegistered lists nodes, without those on which the driver of a volume has not registered: the volume cannot be used there either.
func (x *state) whereRegistered(pv *corev1.PersistentVolume, nodes []string) string {
	key, ok := kube.KeyOfVolume(pv)
	if !ok {
		return few(nodes)
	}
	usable := slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return x.lacksDriver(name, key.Driver) })
	if len(usable) == 0 {
		return few(nodes) + ", where CSI driver " + x.foreign(key.Driver) + " has not registered"
	}
	return few(usable)
}

// valuesThere lists the values that nodes have for the label that a volume needs.
func (x *state) valuesThere(pv *corev1.PersistentVolume) string {
	key := affinityKey(pv)
	var values []string
	for _, n := range x.Nodes {
		if value := n.Labels[key]; value != "" {
			values = append(values, value)
		}
	}
	slices.Sort(values)
	if values = slices.Compact(values); len(values) == 0 {
		return ""
	}
	return "; the nodes have " + few(values)
}

// affinityKey is the first label of nodes that decides where a volume can be used; empty for none.
func affinityKey(pv *corev1.PersistentVolume) string {
	if pv == nil {
		return ""
	}
	if affine(pv) {
		for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				return e.Key
			}
		}
	}
	for _, label := range kube.ZoneLabels {
		if pv.Labels[label] != "" {
			return label
		}
	}
	return ""
}

// nodesThat returns the names of the nodes whose labels fit.
func (x *state) nodesThat(fit func(labels map[string]string) bool) (names []string) {
	for _, n := range x.Nodes {
		if fit(n.Labels) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names) // one may have been read twice
}

// affinityOf is where a volume can be used, in words; empty for everywhere.
func affinityOf(pv *corev1.PersistentVolume) string {
	var terms []string
	if a := pv.Spec.NodeAffinity; a != nil && a.Required != nil {
		for _, term := range a.Required.NodeSelectorTerms {
			var all []string
			for _, e := range slices.Concat(term.MatchFields, term.MatchExpressions) {
				all = append(all, requirement(e.Key, string(e.Operator), e.Values))
			}
			terms = append(terms, strings.Join(all, " and "))
		}
	}
	for _, label := range kube.ZoneLabels {
		if zone := pv.Labels[label]; zone != "" && len(terms) == 0 {
			terms = append(terms, label+" is "+zone)
		}
	}
	return strings.Join(terms, " or ")
}

func requirement(key, operator string, values []string) string {
	switch corev1.NodeSelectorOperator(operator) {
	case corev1.NodeSelectorOpIn:
		if len(values) == 1 {
			return key + " is " + values[0]
		}
		return key + " is one of " + few(values)
	case corev1.NodeSelectorOpNotIn:
		return key + " is none of " + few(values)
	case corev1.NodeSelectorOpExists:
		return key + " exists"
	case corev1.NodeSelectorOpDoesNotExist:
		return key + " does not exist"
	case corev1.NodeSelectorOpGt:
		return key + " is more than " + few(values)
	case corev1.NodeSelectorOpLt:
		return key + " is less than " + few(values)
	}
	return key + " " + operator + " " + few(values)
}

// hostOf is the one node on which the data of a volume is, by its label: that of the host name, or one that its driver has for each node, such as
// topology.topolvm.io/node. Empty for a volume that several nodes could have.
func hostOf(pv *corev1.PersistentVolume) string {
	a := pv.Spec.NodeAffinity
	if a == nil || a.Required == nil || len(a.Required.NodeSelectorTerms) != 1 {
		return ""
	}
	for _, e := range a.Required.NodeSelectorTerms[0].MatchExpressions {
		own := e.Key == corev1.LabelHostname || strings.HasSuffix(e.Key, "/node") || strings.HasSuffix(e.Key, "/hostname")
		if own && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
			return e.Values[0]
		}
	}
	return ""
}

// withoutSpace says of the claims of a pod what they want and what there is, and returns the first.
func (x *state) withoutSpace(pod *corev1.Pod, w *wait) *Volume {
	var v *Volume
	var said []string
	for i := range pod.Spec.Volumes {
		name := kube.ClaimName(pod, &pod.Spec.Volumes[i])
		claim := x.claims[join(pod.Namespace, name)]
		if claim == nil || claim.Spec.VolumeName != "" {
			continue
		}
		class := x.class(claim)
		if v == nil {
			v = &Volume{Namespace: pod.Namespace, Claim: name}
			w.fill = func(s *explain.Situation) {
				s.Class = kube.ClassOf(claim)
				if class != nil {
					s.Provisioner = class.Provisioner
				}
			}
		}
		switch {
		case w.reason == explain.NotEnoughStorage:
			said = append(said, x.capacityFor(claim))
		case class != nil:
			said = append(said, x.bindable(claim, class))
		}
	}
	if said = slices.DeleteFunc(said, func(text string) bool { return text == "" }); len(said) > 0 {
		w.detail = strings.Join(said, "; ")
	}
	return v
}

// wanted is the size that a claim asks for.
func wanted(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[corev1.ResourceStorage]
}

// capacityFor says how large a volume of a claim's class can be, as its driver reports it, and where. The scheduler compares the size with
// maximumVolumeSize if there is one, else with capacity (k/k v1.36.3 pkg/scheduler/framework/plugins/volumebinding/binder.go capacitySufficient).
func (x *state) capacityFor(claim *corev1.PersistentVolumeClaim) string {
	if !slices.Contains(x.Whole, Capacities) {
		return ""
	}
	name := kube.ClassOf(claim)
	size := wanted(claim)
	asks := fmt.Sprintf("claim %s asks for %s of StorageClass %s", claim.Name, size.String(), name)
	var largest *resource.Quantity
	var nodes []string
	for _, c := range x.Capacities {
		has := cmp.Or(c.MaximumVolumeSize, c.Capacity)
		if c.StorageClassName != name || has == nil {
			continue
		}
		here := x.nodesThat(func(labels map[string]string) bool { return kube.InSegment(c.NodeTopology, labels) })
		switch {
		case largest == nil || has.Cmp(*largest) > 0:
			largest, nodes = has, here
		case has.Cmp(*largest) == 0:
			nodes = append(nodes, here...)
		}
	}
	if largest == nil {
		return asks + ", and its driver reports no free storage for it on any node: no CSIStorageCapacity has this class"
	}
	slices.Sort(nodes)
	on := ""
	if nodes = slices.Compact(nodes); len(nodes) > 0 {
		on = " on " + few(nodes)
	}
	return fmt.Sprintf("%s, and the largest volume that its driver has room for is %s%s", asks, largest.String(), on)
}

// bindable says which volumes of its class a claim could be bound to, or where it may be provisioned.
func (x *state) bindable(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	if class.Provisioner != kube.NoProvisioner {
		if len(class.AllowedTopologies) == 0 {
			return ""
		}
		nodes := x.nodesThat(func(labels map[string]string) bool { return kube.InTopologies(class.AllowedTopologies, labels) })
		text := fmt.Sprintf("StorageClass %s provisions only where %s", class.Name, x.foreign(topologies(class.AllowedTopologies)))
		if slices.Contains(x.Whole, Nodes) {
			text += ": " + cmp.Or(few(nodes), "no node is there")
		}
		return text
	}
	size := wanted(claim)
	asks := fmt.Sprintf("claim %s asks for %s of StorageClass %s, which provisions nothing", claim.Name, size.String(), class.Name)
	if !slices.Contains(x.Whole, Volumes) {
		return asks
	}
	of, small, elsewhere := 0, 0, []string{}
	for _, pv := range x.Volumes {
		if pv.Spec.StorageClassName != class.Name {
			continue
		}
		of++
		has := pv.Spec.Capacity[corev1.ResourceStorage]
		switch {
		case pv.Spec.ClaimRef != nil:
		case has.Cmp(size) < 0:
			small++
		default:
			elsewhere = append(elsewhere, pv.Name)
		}
	}
	text := fmt.Sprintf("%s: of the %d PersistentVolumes of that class, %d are free and large enough", asks, of, len(elsewhere))
	if small > 0 {
		text += fmt.Sprintf(", %d are free and too small", small)
	}
	if len(elsewhere) > 0 {
		slices.Sort(elsewhere)
		text += fmt.Sprintf(" (%s), on nodes that the pod does not fit or with other access modes", few(elsewhere))
	}
	return text
}

func topologies(terms []corev1.TopologySelectorTerm) string {
	var any []string
	for _, term := range terms {
		var all []string
		for _, e := range term.MatchLabelExpressions {
			all = append(all, requirement(e.Key, string(corev1.NodeSelectorOpIn), e.Values))
		}
		any = append(any, strings.Join(all, " and "))
	}
	return strings.Join(any, " or ")
}
