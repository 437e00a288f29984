package explain

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"belay.dev/belay/internal/decision"
)

// Reasons that a driver's answer gives, to an attach, a detach or a mount.
const (
	// HandleNotFound: the storage knows no volume of the PersistentVolume's handle.
	HandleNotFound decision.Reason = "HandleNotFound"
	// VolumeInOtherZone: the storage cannot attach the volume to a machine in the node's zone.
	VolumeInOtherZone decision.Reason = "VolumeInOtherZone"
	// DriverNotAuthorized: the storage refuses the driver's own credentials, or they lack a right.
	DriverNotAuthorized decision.Reason = "DriverNotAuthorized"
	// StorageQuotaReached: a quota of the storage or the cloud is used up.
	StorageQuotaReached decision.Reason = "StorageQuotaReached"
	// OperationPending: the driver refuses because an earlier operation of the volume or its machine has not ended.
	OperationPending decision.Reason = "OperationPending"
	// RequestNotSupported: the driver cannot do what is asked of it, however often it is asked.
	RequestNotSupported decision.Reason = "RequestNotSupported"
	// FileSystemDamaged: a check of the file system found errors that it did not correct.
	FileSystemDamaged decision.Reason = "FileSystemDamaged"
	// FileSystemMismatch: the node cannot read the file system as the type that the PersistentVolume names.
	FileSystemMismatch decision.Reason = "FileSystemMismatch"
	// FSGroupRefused: the storage refuses the change of ownership that the pod's fsGroup asks for.
	FSGroupRefused decision.Reason = "FSGroupRefused"
	// NodeIdentityShared: the driver knows two Nodes by one CSI node ID.
	NodeIdentityShared decision.Reason = "NodeIdentityShared"
)

// Answer is what a situation says about the answer of a driver. Its texts are clean.
type Answer struct {
	Call       Operation // what the driver was called for
	Handle     string    // of the volume
	Elsewhere  string    // where the volume is attached at the storage, "node b"
	HostName   string    // the name of that machine in the cluster, if it had a Node
	Outside    bool      // that machine is no node of the cluster
	Lists      bool      // that node lists the volume in use; the answer names none
	Ask        string    // a command of the storage's own client that shows where it is, and its documentation
	AskSource  string
	NotSent    bool   // the attacher did not call the driver
	Until      string // when it ends the call that is in flight
	ListedAt   string // the other node that the driver lists the volume at, in words
	OtherNode  string // and its name; empty if no node of the cluster has that ID
	RetryNow   bool   // the VolumeAttachment has an attacher that takes a request for an attempt
	SharedID   string // the node ID that the driver has for several Nodes
	Affinity   bool   // the PersistentVolume has a node affinity
	Or         string // what the answer may mean instead
	Unread     bool   // the PersistentVolume could not be read
	Zone       string // that of the node of the pod that waits
	Zones      []Zone // those of the other nodes that are Ready
	ZoneKey    string // the label of nodes that has it
	Works      string // what the driver has done meanwhile, for an operation that it does not carry out
	AskPlace   string // where people look for it if the storage's client has no such command: "in vCenter"
	Right      string // what the storage calls the permission that the call needs: "ec2:DeleteVolume"
	Tried      string // the type of file system that the driver tried to mount the device as
	Device     string // that device
	FSType     string // the type that the PersistentVolume names
	Nowhere    bool   // no node is where the volume can be used
	BelayFrees bool   // belay-attacher runs for the driver, whose list shows where its volumes are published
	AskNone    string // what to do if the storage shows no machine that has the volume
	Open       string // how long an earlier call has been open, at least
	Said       string // what the answer is about, if there are steps for that: a situation of internal/drivers/facts.yaml
	What       string // the thing that the answer names: an object, a module, an image
}

// Zone is a zone and the nodes that are in it, in words.
type Zone struct{ Name, Nodes string }

func (z Zone) String() string { return z.Name + " (" + z.Nodes + ")" }

// Mount is the operation of a node that sets up a volume for a pod.
const Mount Operation = "mount"

func init() { maps.Copy(guides, answerGuides) }

var answerGuides = map[decision.Reason]Guide{
	BackendDisagrees: {
		Title: "The storage says that the volume is attached elsewhere",
		Page:  pageAttach, Event: FailedAttachVolume, Verdict: Unsafe,
		Summary: func(s Situation) string {
			switch {
			case s.Lists:
				return fmt.Sprintf("%s lists the volume in use, and no VolumeAttachment shows it there; the storage has it attached, or may have%s", s.Elsewhere, because(s.Detail))
			case s.Elsewhere != "":
				return fmt.Sprintf("the storage says that %s has the volume, and no VolumeAttachment shows it", s.Elsewhere)
			}
			if s.Or != "" {
				return fmt.Sprintf("the storage says that the volume is not available: another machine has it, which no VolumeAttachment shows, or it is %s%s", s.Or, because(s.Detail))
			}
			return fmt.Sprintf("the storage says that the volume is in use elsewhere, and no VolumeAttachment shows it%s", because(s.Detail))
		},
		Next: func(s Situation) []Step {
			steps := []Step{askStorage(s)}
			if s.Or != "" {
				steps[0].Text = "Ask the storage for the state of the volume, and which machine has it. Find out what runs there before you detach it." + documented(s)
				steps = append(steps, Step{Text: "If it is " + s.Or + ", wait until that has ended: no machine has it then. The attach is tried again by itself."})
			}
			where := "the other machine"
			if s.Elsewhere != "" {
				where = s.Elsewhere
			}
			who := where
			if s.HostName != "" {
				who += " (host name " + s.HostName + ")"
			}
			if s.Outside {
				who += ", which is no node of this cluster,"
			}
			steps = append(steps, Step{
				Text:   fmt.Sprintf("Make sure that %s does not use the volume, then detach it there at the storage.", who),
				Danger: "if " + where + " still has the volume mounted, its writes are lost",
			})
			return append(append(append(steps, ofNone(s)...), freedByBelay(s)...), retryNow(s)...)
		},
	},
	HandleNotFound: {
		Title: "The storage does not know the volume",
		Page:  pageDriver, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the storage has no volume with the handle%s of PersistentVolume %s%s", onNode(" ", s.Handle), volumeName(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{
					Text: "Create another PersistentVolume with the right handle, and a claim for it: no retry helps. The handle of a PersistentVolume cannot be changed. " +
						"Compare it with the volumes at the storage, in the region, project or account of the driver.",
					Command: ofVolume(s, "kubectl describe pv %s"),
				},
				{Text: "See what the storage has under the handle." + documented(s), Command: s.Ask},
				{Text: "If the volume was deleted at the storage, restore it there from a snapshot or a backup, under a PersistentVolume of its own."},
			}
		},
	},
	VolumeInOtherZone: {
		Title: "The volume is in another zone than the node",
		Page:  pageDriver, Silence: onlyAsked,
		Summary: func(s Situation) string {
			where, why := "in another zone than node "+s.Wanted, "PersistentVolume "+volumeName(s)+" has no node affinity"
			if s.Zone != "" {
				where = "not in " + s.Zone + ", where node " + s.Wanted + " is"
			}
			if len(s.Zones) > 0 {
				why += "; other nodes: " + zones(s)
			}
			if s.Affinity {
				why = "the pod got the node against the node affinity of PersistentVolume " + volumeName(s) + ", as spec.nodeName or a changed label of the node allows"
			}
			if s.Unread {
				return fmt.Sprintf("the volume is %s%s", where, because(s.Detail))
			}
			return fmt.Sprintf("the volume is %s, and %s%s", where, why, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			if s.Affinity || s.Unread {
				return []Step{
					{Text: "See from which nodes the volume can be reached. Retrying does not help.", Command: ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.nodeAffinity}{"\n"}'`)},
					{Text: "Remove spec.nodeName from the pod's template, then delete the pod: the scheduler chooses a node for the next one.", Command: deletePod(s)},
				}
			}
			steps := []Step{{
				Text: "Set spec.nodeAffinity of the PersistentVolume to the zone in which the storage has the volume. " +
					"nodeAffinity can be set once, because this PersistentVolume has none. Retrying does not help." + documented(s),
				Command: cmp.Or(s.Ask, nodesWith(s)),
			}}
			return append(append(steps, bindToZone(s)...), []Step{
				{Text: "Delete the pod: the next one gets a node in that zone.", Command: deletePod(s)},
				{Text: "If no node is in that zone, add one there, or restore the volume's data in a zone that has nodes.", Command: nodesWith(s)},
			}...)
		},
	},
	DriverNotAuthorized: {
		Title: "The storage refuses the driver's credentials",
		Page:  pageDriver, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s is not allowed %s: the storage refuses its credentials, or they lack a right%s", csiDriver(s), toDo(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			if s.Said != "" {
				return said(s, describeMount)
			}
			if s.Call == Mount { // by the node's pod of the driver, with the Secret that the volume names
				return []Step{{
					Text:    "Correct the credentials in the Secret that the PersistentVolume names, or give their user " + permission(s, callOf(s)) + " at the storage. A role of the driver's pods or of the node counts where there is no Secret. It is tried again by itself.",
					Command: ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.csi}{"\n"}'`),
				}}
			}
			return append([]Step{{
				Text: "Give the driver's controller " + permission(s, callOf(s)) + ", or renew its credentials. " +
					"The call is repeated with back-off, and succeeds after that. The whole message is in the log, and in the VolumeAttachment." + decode(s),
				Command: logsCommand(s),
			}}, retryNow(s)...)
		},
	},
	StorageQuotaReached: {
		Title: "A quota of the storage is used up",
		Page:  pageDriver, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("a quota of the storage keeps %s from what it is called for, %s%s", csiDriver(s), toDo(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return append([]Step{{Text: "Raise the quota that the message names, or free some of it, at the storage. Another attempt helps only after that; the call is repeated with back-off."}}, retryNow(s)...)
		},
	},
	OperationPending: {
		Title: "An earlier operation of the volume has not ended",
		Page:  pageDriver, Silence: onlyAsked,
		Summary: func(s Situation) string {
			open := ""
			if s.Open != "" {
				open = ", for at least " + s.Open
			}
			return fmt.Sprintf("%s still has an earlier call for the volume or its machine open%s, and refuses %s%s", csiDriver(s), open, toDo(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			if s.Call == Mount {
				return []Step{
					{
						Text: "Find the driver's pod on node " + s.Wanted + ", and read its log: it shows what the earlier call hangs in. " +
							"Often the node does not reach the storage: repair that first. The refused call is repeated, and succeeds only after the earlier one has ended.",
						Command: podsOn(s.Wanted),
					},
					{
						Text:   "Only if the node reaches the storage and the call still hangs: delete the driver's pod on node " + s.Wanted + ". Its DaemonSet starts another one.",
						Danger: "where a process in that pod serves the mounts, as with FUSE, all mounts of the driver on the node break, also those of pods that run",
					},
				}
			}
			return []Step{askStorage(s), {
				Text:    "Find out what the earlier call hangs in, in the log of the driver's controller. The refused call is repeated, and succeeds only after the earlier one has ended.",
				Command: logsCommand(s),
			}}
		},
	},
	RequestNotSupported: {
		Title: "The driver does not support what is asked of it",
		Page:  pageDriver, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("%s cannot do what it is asked for, %s%s", csiDriver(s), toDo(s), because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{{
				Text:    "Compare access modes, volume mode, mount options and parameters of the volume with what the driver, and the machine and kernel of the node, support. Another attempt does not help.",
				Command: ofVolume(s, "kubectl describe pv %s"),
			}}
		},
	},
	FileSystemDamaged: {
		Title: "The file system on the volume is damaged",
		Page:  pageMount, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the file system of the volume has errors that the check before the mount on node %s does not correct%s", s.Wanted, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return repairFileSystem(s)
		},
	},
	FileSystemMismatch: {
		Title: "The node cannot read the volume as the file system that it is mounted as",
		Page:  pageMount, Silence: onlyAsked,
		Summary: func(s Situation) string {
			if s.Tried != "" {
				said := s.Detail
				if words, _, ok := strings.Cut(said, ", bad option, "); ok { // the rest says no more than the sentence
					said = words
				}
				return fmt.Sprintf("the driver tried to mount %s as %s%s, and node %s finds another file system or a damaged one, or lacks the type%s",
					s.Device, s.Tried, typeNamed(s), s.Wanted, because(said))
			}
			return fmt.Sprintf("the volume has another file system than PersistentVolume %s names, or a damaged one, or the kernel of node %s lacks the type%s", volumeName(s), s.Wanted, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			device, tried := "the device", "the type that was tried"
			if s.Tried != "" {
				device, tried = s.Device, s.Tried
			}
			look := Step{
				Text:    "On node " + s.Wanted + ", read dmesg, and with blkid the type of " + device + "; do not format or repair it. Retrying does not help. " + startsPod,
				Command: cmp.Or(lookAtDevice(s), ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.csi}{"\n"}'`)),
			}
			again := makeAgain(s, "If it shows another type than spec.csi.fsType of the PersistentVolume")
			if s.Tried != "" && s.FSType != "" && s.Tried != s.FSType {
				look.Text += " The driver tried " + s.Tried + " and the PersistentVolume names " + s.FSType + ": one of them is wrong, and the file system may be sound."
				again.Text += " If it shows " + s.FSType + ", find out in the driver's configuration and log why it tries " + s.Tried + "."
			}
			return []Step{look, {
				Text:   "If blkid shows " + tried + ", its superblock is damaged, or its options do not fit: take a snapshot or a copy, and repair only the copy. dmesg says what it is.",
				Danger: "a repair of the volume itself may destroy what a copy would save",
			}, again}
		},
	},
	FSGroupRefused: {
		Title: "The storage refuses the change of ownership for fsGroup",
		Page:  pageMount, Silence: onlyAsked,
		Summary: func(s Situation) string {
			return fmt.Sprintf("the storage does not let node %s change the owner of the files, which the pod's fsGroup asks for; an NFS export with root_squash refuses that%s", s.Wanted, because(s.Detail))
		},
		Next: func(s Situation) []Step {
			return []Step{
				{ // k/k v1.36.3 pkg/volume/volume_linux.go requiresPermissionChange: the group, rwx for user and group, and setgid of the root directory
					Text: "Set fsGroupChangePolicy: OnRootMismatch in the pod's template. Give the root directory of the volume the group of fsGroup and mode 2770 at the file server: " +
						"kubelet then changes nothing. The command shows the pod's fsGroup.",
					Command: in(s.Namespace, "kubectl get pod "+s.Pod+` -o jsonpath='{.spec.securityContext}{"\n"}'`),
				},
				{Text: "Or leave fsGroup out of the pod's template, and give the files at the file server a group that the pod has."},
				{
					Text:   "Or export the share with no_root_squash, at the file server.",
					Danger: "root of each client that the export allows may then read and change all files of the share",
				},
				{
					Text:    "Or set fsGroupPolicy of the CSIDriver to None, if the driver's documentation allows that.",
					Command: "kubectl get csidriver " + s.Driver + ` -o jsonpath='{.spec.fsGroupPolicy}{"\n"}'`,
					Danger:  "this holds for all volumes of the driver, in all namespaces",
				},
			}
		},
	},
	NodeIdentityShared: {
		Title: "The driver knows two Nodes by one node ID",
		Page:  pageDriver, Silence: onlyAsked, Verdict: Unsafe,
		Summary: func(s Situation) string {
			return fmt.Sprintf("CSI driver %s has registered node ID %s on several Nodes, %s: what it attaches for one, it attaches to the machine of another", s.Driver, s.SharedID, s.Detail)
		},
		Next: func(s Situation) []Step {
			return []Step{
				{Text: "See which IDs the driver has registered.", Command: "kubectl get csinodes -o custom-columns='NODE:.metadata.name,IDS:.spec.drivers[*].nodeID'"},
				{
					Text:   "Find out whether one machine has two Nodes, or two machines were cloned with one identity. Drain the one that should not have the ID, correct its identity, and let its node pod of the driver register again.",
					Danger: "until then two nodes may write to one volume, whatever Kubernetes shows",
				},
			}
		},
	},
}

// toDo is what the driver was called for: "to attach it to node a".
func toDo(s Situation) string {
	switch s.Call {
	case Detach:
		return "to detach it from node " + s.Node
	case Mount:
		return "to mount it on node " + s.Wanted
	case Attach:
	}
	return "to attach it to node " + s.Wanted
}

func volumeName(s Situation) string { return cmp.Or(s.Volume, "(none)") }

// ofVolume fills in the PersistentVolume of a command; "" without one.
func ofVolume(s Situation, command string) string {
	if s.Volume == "" {
		return ""
	}
	return fmt.Sprintf(command, s.Volume)
}

// deletePod is the command that deletes the pod that waits; "" without one.
func deletePod(s Situation) string {
	if s.Pod == "" {
		return ""
	}
	return in(s.Namespace, "kubectl delete pod "+s.Pod)
}

func podsOn(node string) string {
	return "kubectl get pods -A -o wide --field-selector spec.nodeName=" + node
}

// askStorage asks where the volume is attached, with the storage's own client if one is known.
func askStorage(s Situation) Step {
	text := "Ask the storage which machine has the volume, and find out what runs there before you detach it."
	switch {
	case s.Ask != "":
	case s.AskPlace != "":
		text = "Find out " + s.AskPlace + " which machine has volume " + cmp.Or(s.Handle, "(unknown)") + ", and what runs there before you detach it."
	default:
		text += " The handle of the volume is " + cmp.Or(s.Handle, "unknown") + "."
	}
	return Step{Text: text + documented(s), Command: s.Ask}
}

// zoneKey is the label of nodes that has the zone, as the driver has it.
func zoneKey(s Situation) string { return cmp.Or(s.ZoneKey, "topology.kubernetes.io/zone") }

// nodesWith shows the zone of each node.
func nodesWith(s Situation) string { return "kubectl get nodes -L " + zoneKey(s) }

// zones lists those of the other nodes, the first ones.
func zones(s Situation) string {
	const most = 5
	var all []string
	for _, z := range s.Zones {
		all = append(all, z.String())
	}
	if len(all) > most {
		all = append(all[:most], fmt.Sprintf("and %d more", len(s.Zones)-most))
	}
	return strings.Join(all, ", ")
}

// bindToZone has a PersistentVolume used in the zone where it is: a command for each zone, if there are few.
func bindToZone(s Situation) (steps []Step) {
	const most = 3
	if len(s.Zones) == 0 || len(s.Zones) > most || s.Volume == "" {
		return []Step{{Text: "Set it: the zone is in the label " + zoneKey(s) + " of the nodes.", Command: ofVolume(s, "kubectl edit pv %s")}}
	}
	for _, z := range s.Zones {
		affinity := fmt.Sprintf(`{"spec":{"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":%q,"operator":"In","values":[%q]}]}]}}}}`, strings.Trim(zoneKey(s), "'"), z.Name)
		steps = append(steps, Step{
			Text:    "If that is " + z.Name + ", set it so: its nodes are " + z.Nodes + ".",
			Command: "kubectl patch pv " + s.Volume + " -p " + ShellWord(affinity),
			Danger:  "it cannot be changed after that",
		})
	}
	return steps
}

// decode is how to read an error of AWS that has in it, encoded, which permission is missing; empty for another one.
func decode(s Situation) string {
	if !strings.Contains(s.Detail, encoded) {
		return ""
	}
	return " aws sts decode-authorization-message decodes what follows \"" + encoded + ":\", as described at " +
		"https://docs.aws.amazon.com/cli/latest/reference/sts/decode-authorization-message.html"
}

const encoded = "Encoded authorization failure message"

// permit is what to do about a permission of the driver at the storage, which it needs for what it was called for: "delete volumes".
func permit(s Situation, what string) string {
	return "Give the driver, or its role at the cloud, " + permission(s, what) + "."
}

// aPermission matches the name of a permission: that of AWS, of Azure and of Google Cloud.
var aPermission = regexp.MustCompile(`\b([a-z0-9-]+:[A-Z][a-z]+[A-Z]\w+)|action '(Microsoft\.[\w./]+)'|[Rr]equired '([\w./]+)' permission|[Pp]ermission:? '([\w./]+)'`)

// permission says which permission is missing: the one that the error names, or the one that the call needs.
func permission(s Situation, what string) string {
	if found := aPermission.FindStringSubmatch(s.Detail); found != nil {
		return "the permission " + strings.Join(found[1:], "")
	}
	if s.Detail == "" {
		return "the permission that the error names"
	}
	right := ""
	if s.Right != "" {
		right = " (" + s.Right + ")"
	}
	return "the permission to " + what + right
}

// callOf is what the driver was called for, of volumes as such.
func callOf(s Situation) string {
	switch s.Call {
	case Detach:
		return "detach volumes"
	case Mount:
		return "mount volumes"
	case Attach:
	}
	return "attach volumes"
}

// typeNamed says which type the PersistentVolume names.
func typeNamed(s Situation) string {
	if s.FSType == "" {
		return ""
	}
	return " (PersistentVolume " + volumeName(s) + " names " + s.FSType + ")"
}

// documented is where the storage's own client is described.
func documented(s Situation) string {
	if s.Ask == "" {
		return ""
	}
	return " The command is described at " + s.AskSource
}

// retryNow asks belay-attacher for an attempt; csi-attacher has no such request.
func retryNow(s Situation) []Step {
	if !s.RetryNow || s.Attachment == "" {
		return nil
	}
	return []Step{{
		Text:    "Once the cause is gone, bring the next attempt forward: the back-off is up to five minutes long.",
		Command: "kubectl annotate volumeattachment " + s.Attachment + ` retry="$(date +%s)" --overwrite`,
	}}
}

// AskWith fills in the handle of a volume in a command that has HANDLE; "" if the handle has characters that a shell would read.
func AskWith(command, handle string) string {
	if handle == "" || strings.Trim(handle, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:") != "" || handle[0] == '-' {
		return ""
	}
	return strings.Replace(command, "HANDLE", handle, 1)
}
