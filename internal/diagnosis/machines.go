package diagnosis

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// elsewhere adds to a wait where the storage has the volume: at the machine that the message names, else at a node that lists it. If that is the node
// that the call was for, no other has it. It returns what the message hides.
func (x *state) elsewhere(w *wait, key attachment.VolumeKey, own, text, where string) string {
	switch where = strings.TrimRight(where, ".:"); {
	case where == "this" || x.isMachine(own, key.Driver, where):
		w.reason = attachment.AttachFailed
		return "it is attached to node " + own + " itself, so that no other node has it"
	case len(where) < 3 && !isNumber.MatchString(where) || articles[where]:
		where = ""
	}
	text = strings.ToLower(text)
	for _, name := range x.nodeNames() {
		if name != own && (x.isMachine(name, key.Driver, where) || where == "" && x.mentions(text, name, key.Driver)) {
			w.answer.Elsewhere = "node " + name
			return ""
		}
	}
	if where != "" {
		w.answer.Elsewhere = "machine " + x.foreign(path.Base(where))
		w.answer.HostName = x.foreign(hostOfInstance(key.Driver, path.Base(where)))
		w.answer.Outside = slices.Contains(x.Whole, CSINodes) && slices.Contains(x.Whole, Nodes)
		return ""
	}
	if name := x.inUseAt(key, own); name != "" {
		w.answer.Elsewhere, w.answer.Lists = "node "+name, true
	}
	return ""
}

// inUseAt is a node other than one that lists a volume in use; "" if none that was read does.
func (x *state) inUseAt(key attachment.VolumeKey, except string) string {
	unique := kube.UniqueVolumeName(key.Driver, key.Handle)
	for _, name := range x.listed[unique] {
		if node := x.nodes[name]; name != except && node != nil && kube.InUse(node, unique) {
			return name
		}
	}
	return ""
}

// articles follow "attached to" where a message names no machine.
var articles = map[string]bool{"the": true, "an": true, "another": true, "one": true, "some": true, "different": true, "other": true, "node": true, "instance": true}

var isNumber = regexp.MustCompile(`^[0-9]+$`)

// nodeNames are those of all Nodes and CSINodes, sorted.
func (x *state) nodeNames() []string {
	var names []string
	for _, node := range x.Nodes {
		names = append(names, node.Name)
	}
	for _, node := range x.CSINodes {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// scaleSet matches the provider ID of a machine of an Azure scale set, which the driver calls SET_NUMBER
// (kubernetes-sigs/azuredisk-csi-driver@v1.34.0 pkg/azuredisk/azure_controller_common.go:160).
var scaleSet = regexp.MustCompile(`/virtualMachineScaleSets/([^/]+)/virtualMachines/(\d+)$`)

// azureDisk is the driver to which a machine of a scale set is SET_NUMBER, while its host name, which is that of the Node, ends in the number in base 36,
// with six digits: SET_10 is SET00000A (learn.microsoft.com/azure/virtual-machine-scale-sets/virtual-machine-scale-sets-instance-ids). The rest is the
// name of the set with AKS, and may be another elsewhere.
const azureDisk = "disk.csi.azure.com"

var (
	hostOfSet     = regexp.MustCompile(`^(.+)([0-9a-zA-Z]{6})$`)
	instanceOfSet = regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9-]*)_([0-9]+)$`)
)

// instanceOf is the machine of a scale set that has a host name; empty if it is no such name.
func instanceOf(host string) string {
	found := hostOfSet.FindStringSubmatch(host)
	if found == nil {
		return ""
	}
	number, err := strconv.ParseUint(found[2], 36, 64)
	if err != nil {
		return ""
	}
	return found[1] + "_" + strconv.FormatUint(number, 10)
}

// hostOfInstance is the host name of a machine of a scale set; empty if it is no such machine.
func hostOfInstance(driver, machine string) string {
	found := instanceOfSet.FindStringSubmatch(machine)
	if driver != azureDisk || found == nil {
		return ""
	}
	number, err := strconv.ParseUint(found[2], 10, 31)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s%06s", found[1], strconv.FormatUint(number, 36))
}

// machineIDs are what a storage may call the machine of a node: the node's name, its CSI node ID, its provider ID and system UUID.
func (x *state) machineIDs(name, driver string) []string {
	ids := []string{name, x.nodeID(name, driver)}
	if node := x.nodes[name]; node != nil {
		ids = append(ids, node.Spec.ProviderID, node.Status.NodeInfo.SystemUUID)
		if found := scaleSet.FindStringSubmatch(node.Spec.ProviderID); found != nil {
			ids = append(ids, found[1]+"_"+found[2])
		}
	}
	if driver == azureDisk && (x.nodes[name] == nil || x.nodes[name].Spec.ProviderID == "") {
		ids = append(ids, instanceOf(name))
	}
	for _, id := range ids {
		if strings.Contains(id, "/") {
			ids = append(ids, path.Base(id))
		}
	}
	return slices.DeleteFunc(ids, func(id string) bool { return id == "" })
}

// isMachine reports whether a word of a storage is a name of the node's machine.
func (x *state) isMachine(node, driver, word string) bool {
	return word != "" && slices.ContainsFunc(x.machineIDs(node, driver), func(id string) bool {
		return strings.EqualFold(id, word) || strings.EqualFold(path.Base(id), path.Base(word)) && !isNumber.MatchString(path.Base(id))
	})
}

// mentions reports whether a text in lower case has an ID of the node's machine as a word. Short IDs are words of a language.
func (x *state) mentions(text, node, driver string) bool {
	return slices.ContainsFunc(x.machineIDs(node, driver), func(id string) bool {
		return len(id) > 3 && indexWord(text, strings.ToLower(id)) >= 0
	})
}

// indexWord is where a text has a name that is no part of a longer one; -1 if nowhere. A dot ends a name: that of a host may have its domain.
func indexWord(text, name string) int { return indexJoined(text, name, "-_") }

// indexJoined is where a text has a name that is no part of a longer one of letters, digits and what joins them; -1 if nowhere.
func indexJoined(text, name, joins string) int {
	part := func(i int) bool {
		if i < 0 || i >= len(text) {
			return false
		}
		c := text[i]
		return strings.IndexByte(joins, c) >= 0 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	for at := 0; ; at++ {
		i := strings.Index(text[at:], name)
		if i < 0 {
			return -1
		}
		if at += i; !part(at-1) && !part(at+len(name)) {
			return at
		}
	}
}

// slots are how many VolumeAttachments of a driver are for a node, and how many volumes its CSINode allows; known is false if that is not known.
func (x *state) slots(node, driver string) (used, limit int, known bool) {
	csiNode := x.csiNodes[node]
	if csiNode == nil || !slices.Contains(x.Whole, Attachments) {
		return 0, 0, false
	}
	for _, va := range x.Attachments {
		if va.Spec.NodeName == node && va.Spec.Attacher == driver {
			used++
		}
	}
	for _, d := range csiNode.Spec.Drivers {
		if d.Name == driver && d.Allocatable != nil && d.Allocatable.Count != nil {
			return used, int(*d.Allocatable.Count), true
		}
	}
	return 0, 0, false
}

func slotsTaken(used, limit int) string {
	return fmt.Sprintf("the CSINode allows %d volumes, and with this one %d VolumeAttachments are for the node", limit, used)
}

// driverID is a CSI node ID of a driver.
type driverID struct{ driver, id string }

// twins are the other nodes for which a driver has registered the node ID of this one, sorted.
func (x *state) twins(node, driver string) (id string, others []string) {
	if x.byNodeID == nil {
		x.byNodeID = map[driverID][]string{}
		for _, n := range x.CSINodes {
			for _, d := range n.Spec.Drivers {
				x.byNodeID[driverID{d.Name, d.NodeID}] = append(x.byNodeID[driverID{d.Name, d.NodeID}], n.Name)
			}
		}
	}
	if id = x.nodeID(node, driver); id == "" {
		return "", nil
	}
	others = slices.DeleteFunc(slices.Clone(x.byNodeID[driverID{driver, id}]), func(other string) bool { return other == node })
	slices.Sort(others)
	return id, slices.Compact(others)
}

// identityFacts says which other Nodes carry an identity of a node's machine: then it is no proof of which machine that is.
func (x *state) identityFacts(name string) (facts []Fact) {
	node := x.nodes[name]
	if node == nil {
		return nil
	}
	if x.carriers == nil {
		x.carriers = kube.Carriers(x.Nodes)
	}
	for _, i := range kube.IdentitiesOf(node) {
		if others := slices.DeleteFunc(slices.Clone(x.carriers[i]), func(other string) bool { return other == name }); len(others) > 0 {
			facts = append(facts, Fact{Component: "node " + name, Message: "has the " + i.Kind + " of " + strings.Join(others, ", ") + " too: one machine has several Nodes, or several machines have one identity"})
		}
	}
	return facts
}

// renamed reports whether a VolumeAttachment is for another machine than the one that the driver has registered for its node now: it has another node
// ID, and nothing shows that it is one machine.
func (x *state) renamed(va *storagev1.VolumeAttachment, key attachment.VolumeKey) (was, is string, renamed bool) {
	a := kube.AttachmentFacts(va, key)
	was, is = a.NodeID, x.nodeID(va.Spec.NodeName, key.Driver)
	if was == "" || is == "" || was == is || a.SameMachineAs == is {
		return was, is, false
	}
	n := x.facts(va.Spec.NodeName, kube.UniqueVolumeName(key.Driver, key.Handle))
	return was, is, !n.SameMachine(&a)
}

// worksElsewhere is what a driver has attached since an operation of it was asked for: it works.
func (x *state) worksElsewhere(va *storagev1.VolumeAttachment, w wait) string {
	if x.latest == nil {
		x.latest = map[string]*storagev1.VolumeAttachment{}
		for _, other := range x.Attachments {
			if before := x.latest[other.Spec.Attacher]; other.Status.Attached && other.DeletionTimestamp == nil &&
				(before == nil || other.CreationTimestamp.After(before.CreationTimestamp.Time)) {
				x.latest[other.Spec.Attacher] = other
			}
		}
	}
	latest := x.latest[va.Spec.Attacher]
	if latest == nil || w.since.IsZero() || !latest.CreationTimestamp.After(w.since) {
		return ""
	}
	return fmt.Sprintf("the driver has attached the volume of VolumeAttachment %s to node %s, after %s", latest.Name, latest.Spec.NodeName, stamp(latest.CreationTimestamp.Time))
}

// affine reports whether a PersistentVolume says from which nodes it can be reached.
func affine(pv *corev1.PersistentVolume) bool {
	return pv != nil && pv.Spec.NodeAffinity != nil && pv.Spec.NodeAffinity.Required != nil
}

// zonesFor adds in which zone a node is, and where the others are.
func (x *state) zonesFor(w *wait, driver, name string) {
	key := x.zoneKey(driver, name)
	elsewhere := map[string][]string{}
	w.answer.ZoneKey = x.foreign(key)
	for _, n := range x.Nodes {
		switch zone := n.Labels[key]; {
		case n.Name == name:
			w.answer.Zone = x.foreign(zone)
		case zone != "" && x.node(n.Name).State == NodeReady && !x.lacksDriver(n.Name, driver):
			elsewhere[x.foreign(zone)] = append(elsewhere[x.foreign(zone)], n.Name)
		}
	}
	delete(elsewhere, w.answer.Zone)
	for _, zone := range slices.Sorted(maps.Keys(elsewhere)) {
		slices.Sort(elsewhere[zone])
		w.answer.Zones = append(w.answer.Zones, explain.Zone{Name: zone, Nodes: few(slices.Compact(elsewhere[zone]))})
	}
}

// zoneKey is the label of nodes by which a driver knows their zones: one that it has registered, or that of Kubernetes.
func (x *state) zoneKey(driver, node string) string {
	if csi := x.csiNodes[node]; csi != nil {
		for _, d := range csi.Spec.Drivers {
			for _, key := range d.TopologyKeys {
				if d.Name == driver && strings.HasSuffix(key, "zone") {
					return key
				}
			}
		}
	}
	return corev1.LabelTopologyZone
}

// deletedNode reports whether the Node of a VolumeAttachment is known to be gone.
func (x *state) deletedNode(va *storagev1.VolumeAttachment) bool {
	return x.nodes[va.Spec.NodeName] == nil && x.exists(Ref{Resource: Nodes, Name: va.Spec.NodeName}) == decision.No
}
