package explain

import (
	"cmp"
	"strings"
)

// The steps for what the text of a driver, or of a program on the node, is about where the reason alone says too little of it.

// shows begins a command that looks at a node, and debugs says what it leaves behind.
func shows(node, command string) string {
	return "kubectl debug node/" + node + " -it --image=busybox -- " + command
}

const disks = "chroot /host lsblk -o NAME,TYPE,SIZE,SERIAL,MOUNTPOINT"

// saidSteps are the steps by what a text is about: a situation of internal/drivers/facts.yaml.
var saidSteps = map[string]func(Situation) []Step{
	"deviceMissing": func(s Situation) []Step {
		steps := []Step{{
			Text:    "See which disks node " + s.Wanted + " has, and read dmesg there: its kernel has not found the disk, or udev has not named it. " + debugs,
			Command: shows(s.Wanted, disks),
		}}
		if s.Ask != "" {
			steps = append(steps, Step{Text: "See whether the storage has the volume attached to this machine." + documented(s), Command: s.Ask})
		}
		return append(steps, Step{
			Text:    "If the storage has it attached there, and the disk does not appear, move the pod: cordon the node, then delete the pod. The next one gets another node.",
			Command: "kubectl cordon " + s.Wanted, Danger: "no new pods are placed on the node until it is uncordoned",
		})
	},
	"deviceBusy": func(s Situation) []Step {
		return []Step{
			{
				Text:    "See what holds the disk on node " + s.Wanted + ": a device of TYPE mpath below it is multipath's, one of TYPE lvm LVM's, and a mount point is a mount. " + debugs,
				Command: shows(s.Wanted, disks),
			},
			{
				Text:   "If it is mpath, and the volume is not meant to be used through multipath, add its disks to the section blacklist of /etc/multipath.conf on the nodes, then restart multipathd. The mount is tried again by itself.",
				Danger: "a disk that the node does use through multipath loses its paths: list only those of the driver",
			},
			{Text: "If a mount was left there by no pod, drain the node and restart it. Do not format, and do not unmount by force, what another program uses."},
		}
	},
	"mountBusy": func(s Situation) []Step {
		return []Step{
			{
				Text:    "See which mounts of the share node " + s.Wanted + " has: one may be at the same place, or have other options. " + debugs,
				Command: shows(s.Wanted, "grep -E ' (nfs4?|cifs|smb3) ' /proc/mounts"),
			},
			{Text: "If other volumes use the same share, give them the same mount options.", Command: ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.mountOptions}{"\n"}'`)},
		}
	},
	"readOnly": func(s Situation) []Step {
		return []Step{{
			Text: "See whether the volume is meant to be read-only: the command shows its access modes and readOnly. If it is, use readOnly in the pod's template. " +
				"If not, read dmesg on node " + s.Wanted + ", and ask the storage: both make a disk with errors read-only.",
			Command: ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.accessModes}{"\n"}{.spec.csi.readOnly}{"\n"}'`),
		}}
	},
	"volumeError": func(s Situation) []Step {
		return append([]Step{{
			Text:    "Find out at the storage why the volume is in an error state, before its state is reset there: a failed operation may have left the data as it was, or not." + documented(s),
			Command: s.Ask,
		}}, retryNow(s)...)
	},
	"notReady": func(s Situation) []Step {
		step := Step{Text: "See at the storage what the volume waits for: its replicas or their nodes may be down, or it is being attached or restored. The call is repeated by itself."}
		if s.Driver == "driver.longhorn.io" && s.Handle != "" {
			step.Command = "kubectl get volumes.longhorn.io -A --field-selector metadata.name=" + ShellWord(s.Handle)
		}
		return append([]Step{step}, describeMount(s)...)
	},
	"staleMount": func(s Situation) []Step {
		return []Step{
			{
				Text: "See what serves the mount: for FUSE a pod of the driver on node " + s.Wanted + ", which has ended or started again; " +
					"for NFS the export at the file server, which was deleted or exported again.",
				Command: podsOn(s.Wanted),
			},
			{
				Text:    "Once that runs, delete this pod, and the other pods on the node that use the volume: kubelet unmounts it after the last, and mounts it again for the next.",
				Command: deletePod(s),
			},
		}
	},
	"noSpace": func(s Situation) []Step {
		return []Step{{
			Text: "See which file system of node " + s.Wanted + " is full (df -i for inodes), and free some of it: kubelet tries again by itself. " +
				"A Secret or a token is in memory, up to the pod's memory limit. " + debugs,
			Command: shows(s.Wanted, "df -h /host/var/lib/kubelet"),
		}}
	},
	"openFiles": func(s Situation) []Step {
		return []Step{{
			Text: "Compare the limits of node " + s.Wanted + " with what it needs, and raise them: fs.inotify.max_user_instances where a watcher fails, fs.file-max, " +
				"or LimitNOFILE of the program that reports it. " + debugs,
			Command: shows(s.Wanted, "cat /proc/sys/fs/inotify/max_user_instances /proc/sys/fs/file-nr"),
		}}
	},
	"nfsVersion": func(s Situation) []Step {
		return []Step{{
			Text: "Compare the version that the mount asks for with those that the server has turned on: nfsvers in mountOptions of the PersistentVolume or the StorageClass, " +
				"else /etc/nfsmount.conf of node " + s.Wanted + ". Set it to one that both have (3, 4.1 or 4.2), or turn that on at the server.",
			Command: ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.mountOptions}{"\n"}'`),
		}}
	},
	"blocklisted": func(s Situation) []Step {
		return []Step{
			{
				Text: "See whether an address of node " + s.Wanted + " is on Ceph's blocklist (ceph osd blocklist ls), and who put it there: Ceph itself, for a client that lost its lock, " +
					"or a NetworkFence of csi-addons. The command shows the node's addresses.",
				Command: "kubectl get node " + s.Wanted + " -o wide",
			},
			{
				Text:   "Drain and restart the node: it comes back as another client. If it was fenced by its whole address, then take that from the list.",
				Danger: "a node that is taken from the list before it was restarted may write what it had cached over what others wrote since",
			},
		}
	},
	"imageInUse": func(s Situation) []Step {
		command := ""
		if s.What != "" && !strings.HasPrefix(s.What, "-") {
			command = "rbd status " + ShellWord(s.What)
		}
		return []Step{{
			Text: "Ask Ceph which clients watch the image (rbd status), and find out what runs at their addresses: a machine that still has it mapped may write to it. " +
				"A client that has ended leaves the list by itself. The command is described at https://docs.ceph.com/en/latest/man/8/rbd/ .",
			Command: command,
		}}
	},
	"sourceMissing": func(s Situation) []Step {
		namespace, name, ok := strings.Cut(s.What, "/")
		if !ok || namespace == "" || strings.HasPrefix(namespace, "-") {
			return describeMount(s)
		}
		return []Step{{
			Text: "Create the SecretProviderClass " + name + " in namespace " + namespace + ", which has to be the pod's, or correct secretProviderClass in the pod's template. " +
				"The mount is tried again by itself. The command lists those that exist.",
			Command: "kubectl get secretproviderclasses -n " + ShellWord(namespace),
		}}
	},
	"providerMissing": func(s Situation) []Step {
		return []Step{{
			Text: "See whether the DaemonSet of the provider " + s.What + " has a pod on node " + s.Wanted + ", and install it if not: the driver finds it by its socket, " + s.What + ".sock, " +
				"in the directory for providers that both have to mount. If the name is wrong, correct provider in the SecretProviderClass.",
			Command: podsOn(s.Wanted),
		}}
	},
	"moduleMissing": func(s Situation) []Step {
		return []Step{{
			Text: "Load the kernel module " + s.What + " on node " + s.Wanted + " (modprobe " + s.What + "), and on each node that may run the pod. If the kernel does not have it, " +
				"install the package with its modules; if modprobe finds it, the driver's pod lacks the node's /lib/modules. The command shows the kernel.",
			Command: "kubectl get node " + s.Wanted + ` -o jsonpath='{.status.nodeInfo.kernelVersion}{"\n"}'`,
		}}
	},
	"daemonMissing": func(s Situation) []Step {
		text := "Start iscsid on node " + s.Wanted + " (systemctl enable --now iscsid; the package is open-iscsi or iscsi-initiator-utils)"
		if s.What != "iscsid" {
			text = "Start rpc.statd on node " + s.Wanted + " (systemctl start rpc-statd, which needs rpcbind), or mount with NFS 4, which does not need it: nfsvers=4.2 in mountOptions. Install it"
		}
		return []Step{{
			Text:    text + ", and on each node that may run the pod. The mount is tried again by itself.",
			Command: "kubectl get node " + s.Wanted + " -o wide",
		}}
	},
	"hostProgram": func(s Situation) []Step {
		return []Step{{
			Text:    "Install " + s.What + " on node " + s.Wanted + ", and on each node that may run the pod: the driver runs it there. The mount is tried again by itself.",
			Command: "kubectl get node " + s.Wanted + " -o wide",
		}}
	},
	"driverProgram": func(s Situation) []Step {
		return []Step{{
			Text: "Use an image of the driver that has " + s.What + ", or a file system or kind of volume that does not need it: installing it on node " + s.Wanted + " does not help. " +
				"The command shows the driver's pod there.",
			Command: podsOn(s.Wanted),
		}}
	},
	"passphrase": func(s Situation) []Step {
		return []Step{{
			Text:    "Correct the Secret that the PersistentVolume names: it has to have the passphrase that the volume was created with. Do not replace it by a new one: the data can be read with the first one only.",
			Command: ofVolume(s, `kubectl get pv %s -o jsonpath='{.spec.csi}{"\n"}'`),
		}}
	},
	"tokenMissing": func(s Situation) []Step {
		step := Step{Text: "Make sure that tokenRequests of the CSIDriver lists the audience: kubelet gets tokens for those alone, and passes them to the driver with the next attempt. " +
			"The documentation of the driver or provider has the audience, and its Helm chart the value. The command shows what is set."}
		if s.Driver != "" {
			step.Command = "kubectl get csidriver " + s.Driver + ` -o jsonpath='{.spec.tokenRequests}{"\n"}'`
		}
		return []Step{step}
	},
	"deviceName": func(s Situation) []Step {
		step := Step{Text: "Wait for the next attempts: the driver chooses another name at each. If it lasts, compare the block devices that EC2 shows with those of the image (AMI) of the machine, which the driver does not see."}
		if command := AskWith("aws ec2 describe-instances --instance-ids HANDLE --query 'Reservations[].Instances[].BlockDeviceMappings'", s.NodeID); command != "" {
			step.Text += " The command is described at https://docs.aws.amazon.com/cli/latest/reference/ec2/describe-instances.html ."
			step.Command = command
		}
		return append([]Step{step}, retryNow(s)...)
	},
	"keyUnusable": func(s Situation) []Step {
		return append([]Step{{Text: useKey(s) + " The attach is tried again by itself. Do not delete the key: without it the data is lost.", Command: ofVolume(s, "kubectl describe pv %s")}}, retryNow(s)...)
	},
	"noCredentials": func(s Situation) []Step {
		if s.Call == Mount {
			return []Step{{Text: credentials, Command: podsOn(s.Wanted)}}
		}
		return append([]Step{{Text: credentials, Command: logsCommand(s)}}, retryNow(s)...)
	},
	"unreachable": func(s Situation) []Step {
		return append([]Step{{Text: reach, Command: logsCommand(s)}}, retryNow(s)...)
	},
	"certificate": func(s Situation) []Step {
		if s.Call == Mount {
			return []Step{{Text: trust, Command: podsOn(s.Wanted)}}
		}
		return append([]Step{{Text: trust, Command: logsCommand(s)}}, retryNow(s)...)
	},
}

// keyRights are what a cloud asks for before it uses a key: aws-samples/eks-workshop-v2#1542 and kubernetes/kubernetes#62171,
// kubernetes-sigs/gcp-compute-persistent-disk-csi-driver#590, kubernetes-sigs/azuredisk-csi-driver#2609.
var keyRights = map[string]string{
	"ebs.csi.aws.com":       "the driver's role kms:CreateGrant, kms:Decrypt, kms:DescribeKey, kms:GenerateDataKeyWithoutPlaintext and kms:ReEncrypt*",
	"pd.csi.storage.gke.io": "the service agent of Compute Engine roles/cloudkms.cryptoKeyEncrypterDecrypter",
	"disk.csi.azure.com":    "the driver's identity the permission Microsoft.Compute/diskEncryptionSets/read",
}

// useKey is what to look at where a key cannot be used.
func useKey(s Situation) string {
	rights := cmp.Or(keyRights[cmp.Or(s.Driver, s.Provisioner)], "the driver's role the permission to encrypt and decrypt with it")
	return "See whether the key exists and is enabled, and give " + rights + " for it."
}

const (
	reach       = "Make sure that the machine of the driver's controller reaches the address in the message: DNS resolves it, and no firewall, proxy or missing route or endpoint is between them. The call is repeated with back-off."
	credentials = "Give the driver credentials, in one of the ways that its documentation has: a role for its ServiceAccount, a role of the machine that it runs on, or a Secret. " +
		"Those of a ServiceAccount count only in pods that were created after the annotation."
	trust = "Give the driver the CA that has signed the certificate of the storage, or renew the certificate there if it has expired. A wrong clock on the driver's node looks the same."
)

// said are the steps for what a text is about, else others.
func said(s Situation, otherwise func(Situation) []Step) []Step {
	if steps := saidSteps[s.Said]; steps != nil {
		return steps(s)
	}
	return otherwise(s)
}

// HasSteps reports whether there are steps for a situation of internal/drivers/facts.yaml.
func HasSteps(situation string) bool { return saidSteps[situation] != nil }

// causeSteps are the steps of causes that provisioners' and drivers' texts name, for the creation of a volume.
var causeSteps = map[Cause]func(Situation) []Step{
	KeyUnusable: func(s Situation) []Step {
		return []Step{ofClass(s, useKey(s)+" It is that of the StorageClass, else the default of the account. The provisioner tries again by itself.")}
	},
	AttemptRepeated: func(s Situation) []Step {
		return []Step{
			ofClass(s, useKey(s)+" EC2 deletes a volume whose key the driver may not use, and refuses the next attempt with this text."),
			{
				Text:    "Once that is right, or if the StorageClass was changed between two attempts, delete the claim, which has no volume, and create it again.",
				Command: in(s.Namespace, "kubectl delete pvc "+s.Claim),
			},
		}
	},
	PolicyMissing: func(s Situation) []Step {
		return []Step{ofClass(s, "Compare the storage policy that the StorageClass names with those in vCenter (Policies and Profiles): create it there, or create another StorageClass. Its parameters cannot be changed.")}
	},
	NoDatastore: func(s Situation) []Step {
		return []Step{ofClass(s, "Compare storage policy and topology of the StorageClass with the datastores in vCenter: one has to be compatible with the policy, be mounted on the hosts of all nodes that the claim may use, and give the driver's user Datastore.FileManagement.")}
	},
	ExportNotWritable: func(s Situation) []Step {
		return []Step{
			ofClass(s, "Let the provisioner write to the directory, at the file server. It comes as root, which root_squash of an NFS export turns into the anonymous user (anonuid): export it with rw, and give the directory to that user. An SMB share has to let the user of the Secret write. The provisioner tries again by itself."),
			{Text: "Or export the share with no_root_squash, at the file server.", Danger: "root of each client that the export allows may then read and change all files of the share"},
		}
	},
	ServerRefuses: func(s Situation) []Step {
		return []Step{ofClass(s, "Make sure that the server and the share that the StorageClass names exist, that the machine of the provisioner reaches the server, and that it lets that machine in. The provisioner tries again by itself.")}
	},
	CredentialsMissing: func(s Situation) []Step { return []Step{describeClaim(s, credentials)} },
	StorageUnreachable: func(s Situation) []Step { return []Step{describeClaim(s, reach)} },
	CertificateRefused: func(s Situation) []Step { return []Step{describeClaim(s, trust)} },
}

// ofClass is a step that looks at the StorageClass, else at the claim.
func ofClass(s Situation, text string) Step {
	switch {
	case s.Class != "":
		return Step{Text: text, Command: "kubectl get storageclass " + s.Class + " -o yaml"}
	case s.Claim != "":
		return describeClaim(s, text)
	}
	return Step{Text: text, Command: "kubectl describe pv " + cmp.Or(s.Volume, "")}
}
