package explain

import (
	"regexp"

	"belay.dev/belay/internal/attachment"
)

// storageTexts are those in which a server of a storage has its part, and those about how the pod wants the volume.
var storageTexts = []kubeletText{
	{ // pkg/volume/iscsi/iscsi_util.go:352, 368; after "output:" and "Error" open-iscsi usr/iscsi_err.c ISCSI_ERR_ISCSID_NOTCONN
		kinds: iscsi, pattern: regexp.MustCompile(`(?s)(?:iscsi: failed to |failed to sendtargets to portal ).*could not connect to iscsid`), reason: NodeProgramMissing,
		why:   "the daemon iscsid does not run on node {node}",
		steps: []Step{{Text: "Start iscsid on node {node} (systemctl enable --now iscsid), and on each node that may run the pod. kubelet tries again by itself.", Command: "kubectl get node {node} -o wide"}},
	},
	{ // as the next one; open-iscsi usr/io.c iscsi_io_connect: an error of connect(2), in 2.0 as its number
		kinds: iscsi, pattern: regexp.MustCompile(`failed to sendtargets to portal ((\S+):(\d+)) output: [^\n]*(?:[Cc]onnection refused|cannot make connection to \S+ \(111\))`), reason: StorageServerFailing,
		why: "its portal {1} refuses the connection of node {node}",
		steps: []Step{ // the portal has a port: pkg/volume/iscsi/iscsi.go portalMounter
			{
				Text:    "Start the iSCSI target at {1}, or let node {node} through its firewall. Either no program listens there, or a firewall rejects the node. The command tries the port from the node. " + startsPod,
				Command: "kubectl debug node/{node} -it --image=busybox -- nc -zv -w 5 {2} {3}",
			},
			{Text: "Compare the address in the PersistentVolume with the target's.", Command: "kubectl describe pv {pv}"},
		},
	},
	{ // pkg/volume/iscsi/iscsi_util.go:352; after "output:" open-iscsi usr/initiator_common.c, usr/login.c
		kinds: iscsi, pattern: regexp.MustCompile(`failed to sendtargets to portal (\S+) output: (?:iscsiadm: )?([^\n]*)`), reason: StorageServerFailing,
		why: "its portal {1} does not answer node {node}: {2}",
		steps: []Step{
			{Text: "Make sure that the machine of the iSCSI target runs at {1}, and that no firewall keeps node {node} from it. The PersistentVolume has its address.", Command: "kubectl describe pv {pv}"},
		},
	},
	{ // as the next one; usr/iscsi_err.c: ISCSI_ERR_TRANS, ISCSI_ERR_TRANS_TIMEOUT
		kinds: iscsi, pattern: regexp.MustCompile(`(?s)iscsi: failed to attach disk: Error.*portal: ([^,\]\s]+),(\d+).*\((?:4 - encountered connection failure|8 - connection timed out)\)`), reason: StorageServerFailing,
		why:   "its portal {1}:{2} does not answer the login of node {node}",
		steps: []Step{{Text: "Make sure that the iSCSI target runs at {1}:{2}, and that no firewall keeps node {node} from it. The PersistentVolume has its address.", Command: "kubectl describe pv {pv}"}},
	},
	{ // pkg/volume/iscsi/iscsi_util.go:368, 93, 123
		kinds: iscsi, pattern: regexp.MustCompile(`(?s)iscsi: failed to (?:attach disk: Error|update (?:discoverydb|node) with CHAP, output): (?:Logging in to .*?\n)?(.*)`), reason: StorageServerFailing,
		why:   "the iSCSI target refuses the login of node {node}: {1}",
		steps: []Step{{Text: "Compare the initiator name of node {node} (/etc/iscsi/initiatorname.iscsi) with what the target allows, and the CHAP secret with the target's.", Command: "kubectl describe pv {pv}"}},
	},
	{ // pkg/volume/iscsi/iscsi_util.go:422
		kinds: iscsi, pattern: regexp.MustCompile(`Timed out waiting for device at path (\S+) after`), reason: StorageServerFailing,
		why:   "the iSCSI target took the login of node {node}, and shows it no disk at {1}",
		steps: []Step{{Text: "Make sure that the LUN of the PersistentVolume exists at the target, and that it is mapped to the initiator of node {node}.", Command: "kubectl describe pv {pv}"}},
	},
	{ // pkg/volume/fc/fc_util.go:241
		kinds: []string{"fc"}, pattern: regexp.MustCompile(`no fc disk found`), reason: StorageServerFailing,
		why:   "node {node} sees no Fibre Channel disk with the targets and LUN, or world wide IDs, of the volume",
		steps: []Step{{Text: "Make sure that the LUN is mapped to the host bus adapters of node {node}, that the fabric's zones let them reach the target, and that the volume names the right one.", Command: "kubectl describe pv {pv}"}},
	},
	{ // nfs-utils 2.8.2 utils/mount/error.c mount_error
		kinds: nfs, pattern: regexp.MustCompile(`access denied by server while mounting (\S+)`), reason: StorageServerFailing,
		why:   "the NFS server denies node {node} the export {1}",
		steps: []Step{{Text: "Add the address of node {node} to the export at the server, and export again (exportfs -ra). The command shows the addresses of the node.", Command: "kubectl get node {node} -o wide"}}, //nolint:misspell // the program of nfs-utils
	},
	{ // nfs-utils 2.8.2 utils/mount/error.c mount_error
		kinds: nfs, pattern: regexp.MustCompile(`(?s)mounting (\S+) failed, reason given by server:\s+([^\n]*)`), reason: StorageServerFailing,
		why:   "the NFS server does not export {1}: {2}",
		steps: []Step{{Text: "Create and export {1} at the server, or use the path that it exports. The path of a PersistentVolume cannot be changed: to use another one, set its reclaim policy to Retain, delete it and the claim, and create both again.", Command: "kubectl describe pv {pv}"}},
	},
	{ // linux-nfs/nfs-utils nfs-utils-2-9-2-rc6 utils/mount/stropts.c:329
		kinds: nfs, pattern: regexp.MustCompile(`rpc\.statd is not running`), reason: NodeProgramMissing,
		why: "the daemon rpc.statd does not run on node {node}, which NFS 3 needs for locks", said: "daemonMissing",
	},
	{ // linux-nfs/nfs-utils nfs-utils-2-9-2-rc6 utils/mount/error.c:216 and 264, with EPROTONOSUPPORT of stropts.c:779
		kinds: nfs, pattern: regexp.MustCompile(`mount\.nfs4?: (?:mount\(2\): )?((?:Protocol not supported|requested NFS version or transport protocol is not supported)[^\n]*)`), reason: StorageServerFailing,
		why: "the NFS server or node {node} does not have the NFS version that the mount asks for: {1}", said: "nfsVersion",
	},
	{ // nfs-utils 2.8.2 utils/mount/error.c rpc_mount_errors, mount_error; utils/mount/network.c nfs_lookup
		kinds: nfs, pattern: regexp.MustCompile(`mount\.nfs4?: ([^\n]*(?:Connection refused|[Tt]imed out|No route to host|Network is unreachable|resolve|not supported|Name or service not known)[^\n]*)`), reason: StorageServerFailing,
		why:   "node {node} does not get an answer from the NFS server: {1}",
		steps: []Step{{Text: "Make sure that the server runs and has NFS enabled, that node {node} resolves its name (nodes do not use the cluster's DNS), and that no firewall is between them.", Command: "kubectl get node {node} -o wide"}},
	},

	{ // pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go:487
		pattern: regexp.MustCompile(`volume (\S+) has volumeMode Block, but is specified in volumeMounts`), reason: VolumeUnsupported, cause: ModeDiffers,
		why: "its claim has the volumeMode Block, and the pod wants it as a file system, in volumeMounts",
		steps: []Step{
			{Text: "Use volumeDevices in the pod's template, with a devicePath, or a claim with the volumeMode Filesystem.", Command: "kubectl explain pod.spec.containers.volumeDevices"},
		},
	},
	{ // pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go:494
		pattern: regexp.MustCompile(`volume (\S+) has volumeMode (\S+), but is specified in volumeDevices`), reason: VolumeUnsupported, cause: ModeDiffers,
		why:   "its claim has the volumeMode {2}, and the pod wants it as a device, in volumeDevices",
		steps: []Step{{Text: "Use volumeMounts in the pod's template, or a claim with the volumeMode Block.", Command: "kubectl explain pvc.spec.volumeMode"}},
	},
	{ // pkg/volume/csi/csi_mounter.go:557
		kinds: csi, pattern: regexp.MustCompile(`volume mode "([^"]+)" not supported by driver (\S+) \(no CSIDriver object\)`), reason: VolumeUnsupported, cause: DriverMissing,
		why: "CSI driver {2} is not installed: it has no CSIDriver object, which a volume in a pod's spec needs",
		steps: []Step{
			{Text: "Install CSI driver {2}, or correct its name in the pod's template. The command lists those that are installed.", Command: "kubectl get csidrivers"},
		},
	},
	{ // pkg/volume/csi/csi_mounter.go:562
		kinds: csi, pattern: regexp.MustCompile(`volume mode "([^"]+)" not supported by driver (\S+) \(only supports (\[[^\]]*\])\)`), reason: VolumeUnsupported, cause: LifecycleDiffers,
		why:   "CSI driver {2} allows the volume modes {3}, and the pod wants {1}",
		steps: []Step{{Text: "Use a claim in the pod's template, if the driver allows Persistent alone, or a driver that allows {1}.", Command: "kubectl get csidriver {2} -o jsonpath='{.spec.volumeLifecycleModes}'"}},
	},
	{ // pkg/volume/plugins.go:72
		pattern: regexp.MustCompile(`no volume plugin matched`), reason: VolumeUnsupported, cause: KindUnknown,
		why:   "kubelet on node {node} has no plugin for volumes of this kind: it was removed from Kubernetes, or its CSI driver is not installed",
		steps: []Step{{Text: "Use a CSI driver for this storage, and a PersistentVolume or pod that names it. The command lists those that are installed.", Command: "kubectl get csidrivers"}},
	},
	{ // pkg/volume/git_repo/git_repo.go:175
		kinds: []string{"gitRepo"}, pattern: regexp.MustCompile(`git-repo volume plugin has been disabled`), reason: VolumeUnsupported, cause: KindRemoved,
		why:   "kubelet does not set up gitRepo volumes any more",
		steps: []Step{{Text: "Clone the repository in an init container, into a volume of the kind emptyDir.", Command: "kubectl explain pod.spec.volumes.gitRepo"}},
	},
	{ // pkg/volume/util/operationexecutor/operation_generator.go:2156
		pattern: regexp.MustCompile(`mount options are not supported for this volume type`), reason: VolumeUnsupported, cause: MountOptions,
		why:   "its PersistentVolume has mount options, which volumes of this kind do not allow",
		steps: []Step{{Text: "Remove mountOptions from the PersistentVolume.", Command: "kubectl get pv {pv} -o jsonpath='{.spec.mountOptions}'"}},
	},
	{ // k8s.io/component-helpers v0.36.3 storage/volume/helpers.go:79, by pkg/volume/util/operationexecutor/operation_generator.go:458
		pattern: regexp.MustCompile(`^no matching NodeSelectorTerms$`), reason: VolumeUnsupported, cause: NodeExcluded,
		why: "the node affinity of its PersistentVolume excludes the node",
		steps: []Step{
			{Text: "Let the scheduler choose the node: remove nodeName from the pod's template. It then takes one from which the volume can be reached.", Command: "kubectl get pv {pv} -o jsonpath='{.spec.nodeAffinity}'"},
			{Text: "If the volume has to be on node {node}, create one there, and copy the data."},
		},
	},
	{ // pkg/kubelet/volumemanager/cache/desired_state_of_world.go:377
		pattern: regexp.MustCompile(`conflicting SELinux labels of volume \S+: ("[^"]*") and ("[^"]*")`), reason: VolumeUnsupported, cause: LabelsDiffer,
		why:   "two pods on node {node} want it with different SELinux labels: {1} and {2}",
		steps: []Step{{Text: "Give the pods the same seLinuxOptions, or run them on different nodes.", Command: "kubectl explain pod.spec.securityContext.seLinuxOptions"}},
	},
	{ // pkg/volume/emptydir/empty_dir.go:275, 427, 442
		kinds: []string{"emptyDir"}, pattern: regexp.MustCompile(`(unknown storage medium .*|medium:? \S+ can't be used if .*|medium \S+: hugePages storage requested, .*)`), reason: VolumeUnsupported, cause: MediumUnusable,
		why:   "the pod's spec does not fit: {1}",
		steps: []Step{{Text: "Correct the medium of the volume, or the resource requests for huge pages, in the pod's template.", Command: "kubectl explain pod.spec.volumes.emptyDir.medium"}},
	},
	{ // pkg/volume/util/operationexecutor/operation_generator.go:482
		pattern: regexp.MustCompile(`volume uses the ReadWriteOncePod access mode and is already in use by another pod`), reason: ReadWriteOncePodInUse,
	},

	{ // pkg/volume/csi/csi_mounter.go:354, in 1.30 to 1.37; openebs/zfs-localpv#547
		kinds: csi, pattern: regexp.MustCompile(`applyFSGroup failed for vol \S+: (?:lstat|open) (/\S+): no such file or directory`), reason: MountFailing,
		why: "kubelet does not find what the driver has mounted, {1}: the driver uses another directory than kubelet's, or its mounts do not reach the node",
		steps: []Step{
			{Text: "Compare the directory of kubelet in the message with that in the driver's DaemonSet, which has to mount it with mountPropagation: Bidirectional. They differ where kubelet has another --root-dir, as with MicroK8s and k0s: set it in the driver's installation.", Command: "kubectl get pods -A -o wide --field-selector spec.nodeName={node}"},
		},
	},

	{ // pkg/volume/csi/csi_mounter.go:239, with plugin/pkg/admission/noderestriction/admission.go:718 of the API server; v1.37.2 :762 has the second form
		kinds: csi, pattern: regexp.MustCompile(`failed to get service accoount token attributes: .*(?:\baudience "([^"]+)" not found in pod spec volume|not authorized to request tokens for audience "([^"]+)")`), reason: MountFailing,
		why: "the API server gives kubelet no service account token for the audience {1}{2}: it finds no CSIDriver of the pod's volumes that lists it", said: "tokenMissing",
	},
	{ // pkg/volume/csi/csi_mounter.go:239, with pkg/kubelet/token/token_manager.go:119
		kinds: csi, pattern: regexp.MustCompile(`failed to get service accoount token attributes: failed to fetch token: serviceaccounts "([^"]+)" not found`), reason: VolumeSourceMissing,
		why:   "the ServiceAccount {1} of the pod does not exist in namespace {namespace}",
		steps: []Step{{Text: "Create the ServiceAccount {1}, or correct serviceAccountName in the pod's template.", Command: "kubectl get serviceaccounts -n {namespace}"}},
	},
	{ // Linux's ESTALE and ENOTCONN, as Go and C print them; kubernetes/kubernetes#96361
		pattern: regexp.MustCompile(`(?i)\b(?:stale (?:NFS )?file handle|transport endpoint is not connected)`), reason: MountFailing,
		why: "a mount of the volume on node {node} is dead: what served it has ended, or the server has dropped it", said: "staleMount",
	},
	{ // Linux's ENOSPC; pkg/volume/util/atomic_writer.go; vllm-project/aibrix#694
		pattern: regexp.MustCompile(`(/[^\s:]+): no space left on device`), reason: MountFailing,
		why: "the file system of {1} on the node is full", said: "noSpace",
	},
	{ // Linux's EMFILE and ENFILE; k3s-io/k3s#1042
		pattern: regexp.MustCompile(`too many open files`), reason: MountFailing,
		why: "a limit of open files, or of inotify, is reached on node {node}", said: "openFiles",
	},
	{ // util-linux/util-linux@39465c780 libmount/src/context_mount.c:1722
		kinds: []string{"iscsi", "fc", "local"}, pattern: regexp.MustCompile(`(/dev/\S+) (?:is )?already mounted or mount point busy`), reason: MountFailing,
		why: "something else on node {node} holds the volume's device {1}, such as multipathd, LVM or a mount that was left", said: "deviceBusy",
	},

	// pkg/volume/csi/csi_attacher.go:634
	{kinds: csi, pattern: regexp.MustCompile(`volume attachment is being deleted`), reason: attachment.Detaching},
	// pkg/volume/csi/csi_client.go:160
	{kinds: csi, pattern: regexp.MustCompile(`driver name (\S+) not found in the list of registered CSI drivers`), reason: DriverNotOnNode},
	// pkg/volume/csi/csi_attacher.go:312, csi_mounter.go:222, csi_block.go:239; expander.go
	{kinds: csi, pattern: regexp.MustCompile(`(?:fetching|failed to get) Node(?:Stage|Publish|Expand)SecretRef (\S+?)(?: failed)?: .*?([^:]+)$`), reason: SecretMissing},
}

// containerTexts are about a volume that is mounted, and that a container cannot get. The last group is the volume, or a path of it.
var containerTexts = []kubeletText{
	{ // pkg/kubelet/kubelet_pods.go:358, 372; both leave out the cause, which is in kubelet's log
		pattern: regexp.MustCompile(`failed to (prepare|create) subPath (?:directory )?for volumeMount "([^"]+)" of container "([^"]+)"`), reason: ContainerMountFailing, cause: SubPathUnusable,
		why: "kubelet of node {node} cannot make or enter {folder}: permissions (root_squash of NFS), or a file in the way",
		steps: []Step{
			{
				Text: "See whether root of node {node} may enter and write the volume's root directory, at the file server. " +
					"Or create {folder} beforehand, or correct subPath in the pod's template. The event lacks the cause: kubelet's log on the node has it, in a line with \"subPath\".",
				Command: "kubectl get pod {pod} -n {namespace} -o jsonpath='{.spec.containers[*].volumeMounts}'",
			},
		},
	},
	{ // pkg/kubelet/kubelet_pods.go:320, 324
		pattern: regexp.MustCompile("(?:error|unable to provision) SubPath `([^`]*)`:? (.*)"), reason: ContainerMountFailing, cause: SubPathUnusable, nameless: true,
		why:   "the subPath {1} cannot be used: {2}",
		steps: []Step{{Text: "Correct subPath in the pod's template: it is relative to the volume and has no \"..\".", Command: "kubectl explain pod.spec.containers.volumeMounts.subPath"}},
	},
	{ // containerd v2.0 internal/cri/opts/spec_linux_opts.go WithMounts: "relabel"; CRI-O v1.34 server/container_create_linux.go: "relabel failed"
		pattern: regexp.MustCompile(`relabel (?:failed )?"?(/[^" ]+?)"?:? (?:with "[^"]*" failed: )?(?:relabel failed: )?((?:l?setxattr|lstat|open).*)`), reason: ContainerMountFailing, cause: LabelRefused,
		why: "the container runtime of node {node} cannot give it the pod's SELinux label: {2}",
		steps: []Step{
			{Text: "Mount a file system without SELinux labels with the option context=, or let its CSIDriver have seLinuxMount: true; a system path such as /etc cannot be labelled at all.", Command: "kubectl get csidrivers -o custom-columns=NAME:.metadata.name,SELINUXMOUNT:.spec.seLinuxMount"},
		},
	},
	{ // containerd v2.1 internal/cri/opts/spec_linux_opts.go, as yandex-cloud/k8s-csi-s3#133 quotes it
		pattern: regexp.MustCompile(`failed to stat "?(/[^": ]+)"?: .*((?i)stale (?:NFS )?file handle|transport endpoint is not connected)`), reason: ContainerMountFailing, cause: MountDead,
		why: "its mount on node {node} is dead ({2}): what served it has ended, or the server has dropped it", said: "staleMount",
	},
	{ // opencontainers/runc v1.3 libcontainer/rootfs_linux.go prepareRootfs
		pattern: regexp.MustCompile(`error mounting "([^"]+)" to rootfs at "([^"]+)": (.*)`), reason: ContainerMountFailing, cause: MountPathUnusable,
		why:   "the container runtime of node {node} cannot mount it at {2}: {3}",
		steps: []Step{{Text: "A file and a directory do not fit: compare subPath and mountPath with what the volume has, and with what the image has at {2}.", Command: "kubectl get pod {pod} -n {namespace} -o jsonpath='{.spec.containers[*].volumeMounts}'"}},
	},
}
