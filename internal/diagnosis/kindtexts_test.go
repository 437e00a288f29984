package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
)

// kindCase is a text of one kind, with what a reader needs: the cause within the sentence, and the first step.
type kindCase struct {
	source string // who writes it: repository, revision, file and line, or an issue that quotes it
	make   func(*scene)
	want   decision.Reason
	cause  string // parts of the sentence, divided by "|"
	next   string // parts of the first step, divided by "|"
	not    string // parts that neither may have
}

// ofKubelet has kubelet report a text about the waiter's claim.
func ofKubelet(text string) func(*scene) {
	return func(s *scene) {
		s.mounts()
		s.says("", "Pod", "FailedMount", setUpPV(text), time.Second)
	}
}

// inline has a driver refuse a volume that the pod's spec has, such as one of secrets.
func inline(driver, code, text string) func(*scene) {
	return func(s *scene) {
		s.kubelet(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}, "FailedMount", setUp("rpc error: code = "+code+" desc = "+text))
		s.driver(driver)
	}
}

const (
	secretsStore = "secrets-store.csi.k8s.io"
	mountedAs    = "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t ext4 -o defaults /dev/longhorn/pvc-1 /mnt\nOutput: mount: /mnt: "
	rbdMap       = "rbd: map failed with error an error (exit status 1) occurred while running rbd args: [--id csi-rbd-node map pool/csi-vol-1], rbd error output: rbd: sysfs write failed\nrbd: map failed: "
	cifs         = "volume(v) mount \"//srv/share\" on \"/mnt\" failed with mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t cifs -o <masked> //srv/share /mnt\nOutput: "
	nfsMount     = "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs -o nfsvers=4.2 nas:/x /mnt\nOutput: "
	ebsCreate    = `Could not create volume "pvc-1": `
)

// deviceCases are of the device of a volume on the node.
var deviceCases = map[string]kindCase{
	"held, mount": {
		source: "util-linux/util-linux v2.41 libmount/src/context_mount.c mnt_context_get_mount_excode; longhorn/longhorn#3994",
		make:   onNode("driver.longhorn.io", "Internal", mountedAs+"/dev/longhorn/pvc-1 already mounted or mount point busy.\n       dmesg(1) may have more information after failed mount system call.\n"),
		want:   explain.MountFailing, cause: "something else on node b holds the volume's device|already mounted or mount point busy", next: "multipath|lsblk",
	},
	"held, mke2fs": {
		source: "tytso/e2fsprogs v1.47.4 misc/util.c:152, k8s.io/mount-utils v0.36.3 mount_linux.go:613; longhorn/longhorn#3583",
		make: onNode("csi.example.com", "Internal", `format of disk "/dev/sdc" failed: type:("ext4") target:("/mnt") options:("defaults") errcode:(exit status 1) output:(mke2fs 1.47.0 (5-Feb-2023)`+"\n"+
			`/dev/sdc is apparently in use by the system; will not make a filesystem here!) `),
		want: explain.MountFailing, cause: "holds the volume's device", next: "multipath",
	},
	"missing, EBS": {
		source: "kubernetes-sigs/aws-ebs-csi-driver v1.64.0 pkg/driver/node.go:224, pkg/mounter/mount_linux.go:118",
		make:   onNode("ebs.csi.aws.com", "NotFound", `Failed to find device path /dev/xvdba. no device path for device "/dev/xvdba" volume "vol-1" found`),
		want:   explain.MountFailing, cause: "the volume's device does not appear on node b|/dev/xvdba", next: "dmesg|lsblk",
	},
	"missing, Azure": {
		source: "kubernetes-sigs/azuredisk-csi-driver d983d61 pkg/azuredisk/nodeserver.go:107",
		make:   onNode("disk.csi.azure.com", "Internal", "failed to find disk on lun 3. timed out waiting for the condition"),
		want:   explain.MountFailing, cause: "the volume's device does not appear|lun 3", next: "lsblk",
	},
	"missing, GCE": {
		source: "kubernetes-sigs/gcp-compute-persistent-disk-csi-driver b560165 pkg/gce-pd-csi-driver/node.go:398, utils_linux.go:48",
		make:   onNode("pd.csi.storage.gke.io", "Internal", `Error when getting device path: rpc error: code = Internal desc = error verifying GCE PD ("pvc-1") is attached: timed out waiting for the condition`),
		want:   explain.MountFailing, cause: "the volume's device does not appear", next: "lsblk",
	},
	"missing, Cinder": {
		source: "kubernetes/cloud-provider-openstack c453fb7 pkg/csi/cinder/nodeserver.go:196, pkg/util/mount/mount.go:144",
		make:   onNode("cinder.csi.openstack.org", "Internal", `Unable to find Device path for volume: failed to find device for the volumeID: "5d3d" within the alloted time`),
		want:   explain.MountFailing, cause: "the volume's device does not appear", next: "lsblk",
	},
	"missing, vSphere": {
		source: "kubernetes-sigs/vsphere-csi-driver bf80902 pkg/csi/service/osutils/linux_os_utils.go:871",
		make:   onNode("csi.vsphere.vmware.com", "Internal", "disk: 6000c29 not attached to node"),
		want:   explain.MountFailing, cause: "the volume's device does not appear", next: "lsblk",
	},
	"missing, mount": {
		source: "util-linux/util-linux v2.41 libmount/src/context_mount.c mnt_context_get_mount_excode",
		make:   onNode("csi.example.com", "Internal", mountedAs+"special device /dev/disk/by-id/nvme-x does not exist."),
		want:   explain.MountFailing, cause: "the volume's device does not appear", next: "lsblk",
	},
	"the name is taken": {
		source: "kubernetes-sigs/aws-ebs-csi-driver v1.64.0 pkg/cloud/cloud.go:2566; kubernetes-sigs/aws-ebs-csi-driver#1674",
		make: attaches("ebs.csi.aws.com", "Internal", `Could not attach volume "h" to node "i-1": could not attach volume "h" to node "i-1": operation error EC2: AttachVolume, https response error StatusCode: 400, RequestID: 7, `+
			`api error InvalidParameterValue: Invalid value '/dev/xvdba' for unixDevice. Attachment point /dev/xvdba is already in use`),
		want: attachment.AttachFailed, cause: "the machine has another device under the name|/dev/xvdba", next: "another name|block devices", not: "attached elsewhere",
	},
	"no name is left": {
		source: "kubernetes-sigs/aws-ebs-csi-driver v1.64.0 pkg/cloud/devicemanager/manager.go:150",
		make:   attaches("ebs.csi.aws.com", "Internal", `Could not attach volume "h" to node "i-1": could not get a free device name to assign to node i-1`),
		want:   explain.AttachLimitReached,
	},
	"read-only": {
		source: "util-linux/util-linux v2.41 libmount/src/context_mount.c mnt_context_get_mount_excode",
		make:   onNode("csi.example.com", "Internal", mountedAs+"/dev/sdc is write-protected but explicit read-write mode requested."),
		want:   explain.MountFailing, cause: "read-only", next: "read-only|kubectl get pv pv",
	},
}

// objectCases are of what a driver needs beside the storage: objects, programs, tokens.
var objectCases = map[string]kindCase{
	"a SecretProviderClass": {
		source: "kubernetes-sigs/secrets-store-csi-driver 0aad886 pkg/secrets-store/utils.go:95",
		make:   inline(secretsStore, "Unknown", `failed to get secretproviderclass ns/app-secrets, error: SecretProviderClass.secrets-store.csi.x-k8s.io "app-secrets" not found`),
		want:   explain.VolumeSourceMissing, cause: "SecretProviderClass|app-secrets", next: "Create the SecretProviderClass app-secrets in namespace ns|kubectl get secretproviderclasses -n ns",
	},
	"a provider": {
		source: "kubernetes-sigs/secrets-store-csi-driver 0aad886 pkg/secrets-store/nodeserver.go:358, provider_client.go:149",
		make:   inline(secretsStore, "Unknown", `failed to mount secrets store objects for pod ns/waiter, err: error connecting to provider "aws": provider not found: provider "aws"`),
		want:   explain.NodeProgramMissing, cause: `provider "aws"|does not run on node b`, next: "DaemonSet|provider aws|spec.nodeName=b",
	},
	"a token, kubelet of 1.36": {
		source: "1.36.3 pkg/volume/csi/csi_mounter.go:239, pkg/kubelet/token/token_manager.go:119, plugin/pkg/admission/noderestriction/admission.go:718",
		make: ofKubelet(`kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: failed to fetch token: serviceaccounts "app" is forbidden: ` +
			`audience "sts.amazonaws.com" not found in pod spec volume, system:node:b is not authorized to request tokens for this audience`),
		want: explain.MountFailing, cause: "token|audience sts.amazonaws.com", next: "tokenRequests|kubectl get csidriver disk.example.com",
	},
	"a token, kubelet of 1.37": {
		source: "1.37.2 pkg/volume/csi/csi_mounter.go:239, plugin/pkg/admission/noderestriction/admission.go:762",
		make:   ofKubelet(`kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: failed to fetch token: serviceaccounts "app" is forbidden: system:node:b is not authorized to request tokens for audience "vault"`),
		want:   explain.MountFailing, cause: "token|audience vault", next: "tokenRequests",
	},
	"a token, the ServiceAccount": {
		source: "1.36.3 pkg/volume/csi/csi_mounter.go:239, pkg/kubelet/token/token_manager.go:119",
		make:   ofKubelet(`kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: failed to fetch token: serviceaccounts "builder" not found`),
		want:   explain.VolumeSourceMissing, cause: "ServiceAccount builder", next: "kubectl get serviceaccounts -n ns",
	},
	"a token, AWS": {
		source: "aws/secrets-store-csi-driver-provider-aws a74182c utils/token_parser.go:36, server/server.go:241",
		make:   inline(secretsStore, "Unknown", `failed to mount secrets store objects for pod ns/waiter, err: rpc error: code = Unknown desc = IRSA token extraction failed: token for audience "sts.amazonaws.com" not found - ensure tokenRequests includes this audience in CSIDriver`),
		want:   explain.MountFailing, cause: "service account token", next: "tokenRequests|kubectl get csidriver " + secretsStore,
	},
	"a token, Azure": {
		source: "Azure/secrets-store-csi-driver-provider-azure d5f7cf5 pkg/auth/auth.go:40, pkg/provider/provider.go:148",
		make:   inline(secretsStore, "Unknown", `failed to mount secrets store objects for pod ns/waiter, err: rpc error: code = Unknown desc = failed to mount objects, error: failed to parse workload identity tokens, error: service account tokens not found`),
		want:   explain.MountFailing, cause: "service account token", next: "tokenRequests",
	},
	"a kernel module": {
		source: "rook/rook#8575, ceph/ceph-csi 52fcb7b internal/cephfs/mounter/kernel.go:68",
		make:   onNode("cephfs.csi.ceph.com", "Internal", "an error (exit status 1) occurred while running modprobe args: [ceph]"),
		want:   explain.NodeProgramMissing, cause: "the kernel of node b|ceph", next: "ceph|node b",
	},
	"a kernel module, modprobe": {
		source: "rook/rook#8919",
		make:   onNode("csi.example.com", "Internal", "modprobe: FATAL: Module nbd not found in directory /lib/modules/6.1.0"),
		want:   explain.NodeProgramMissing, cause: "nbd", next: "nbd",
	},
	"a file system of the kernel": {
		source: "piastry/cifs-utils cifs-utils-7.5 mount.cifs.c:2390",
		make:   onNode("smb.csi.k8s.io", "Internal", cifs+"mount error: cifs filesystem not supported by the system"),
		want:   explain.NodeProgramMissing, cause: "cifs", next: "cifs",
	},
	"iscsid": {
		source: "open-iscsi/open-iscsi bc23614 usr/iscsi_err.c:47",
		make:   onNode("csi.san.synology.com", "Internal", "Failed to discover targets: iscsiadm: can not connect to iSCSI daemon (111)!\niscsiadm: Could not perform SendTargets discovery: could not connect to iscsid\n (exit status 20)"),
		want:   explain.NodeProgramMissing, cause: "iscsid", next: "iscsid|node b",
	},
	"rpc.statd": {
		source: "linux-nfs/nfs-utils 2.9.2-rc6 utils/mount/stropts.c:329",
		make:   onNode("nfs.csi.k8s.io", "Internal", nfsMount+"mount.nfs: rpc.statd is not running but is required for remote locking.\nmount.nfs: Either use '-o nolock' to keep locks local, or start statd."),
		want:   explain.NodeProgramMissing, cause: "the daemon rpc.statd", next: "systemctl start rpc-statd|nfsvers",
	},
	"rpc.statd, kubelet": {
		source: "linux-nfs/nfs-utils 2.9.2-rc6 utils/mount/stropts.c:329, run by 1.36.3 pkg/volume/nfs/nfs.go",
		make:   reports(ofNFS, setUp(nfsMount+"mount.nfs: rpc.statd is not running but is required for remote locking.\n")),
		want:   explain.NodeProgramMissing, cause: "rpc.statd", next: "systemctl start rpc-statd|nfsvers",
	},
	"a program of the node": {
		source: "longhorn/longhorn#9002",
		make:   onNode("driver.longhorn.io", "Internal", "failed to encrypt device /dev/longhorn/pvc-1 with LUKS: failed to execute: /usr/bin/nsenter [nsenter --mount=/proc/1/ns/mnt cryptsetup -q luksFormat], output , stderr nsenter: failed to execute cryptsetup: No such file or directory: exit status 127"),
		want:   explain.NodeProgramMissing, cause: "cryptsetup is not installed on node b", next: "Install cryptsetup on node b",
	},
	"a program of the driver": {
		source: "golang/go 1.26.8 os/exec/exec.go Error, k8s.io/mount-utils v0.36.3 mount_linux.go:613",
		make:   onNode("csi.example.com", "Internal", `format of disk "/dev/sdb" failed: exec: "mkfs.xfs": executable file not found in $PATH`),
		want:   explain.MountFailing, cause: "the image of the driver lacks the program mkfs.xfs", next: "image of the driver",
	},
	"a passphrase": {
		source: "longhorn/longhorn#11233",
		make:   onNode("driver.longhorn.io", "Internal", "failed to execute: /usr/bin/nsenter [nsenter cryptsetup luksOpen /dev/longhorn/pvc-1 pvc-1 -d /dev/stdin], output , stderr No usable keyslot is available. : exit status 1"),
		want:   explain.MountFailing, cause: "passphrase", next: "Secret that the PersistentVolume names",
	},
}

// serverCases are of file servers, Ceph, and the mounts of both.
var serverCases = map[string]kindCase{
	"NFS version, kubelet": {
		source: "linux-nfs/nfs-utils 2.9.2-rc6 utils/mount/stropts.c:779, error.c:264",
		make:   reports(ofNFS, setUp(nfsMount+"mount.nfs: Protocol not supported for nas:/x on /mnt\n")),
		want:   explain.StorageServerFailing, cause: "NFS version|Protocol not supported", next: "nfsvers|node b", not: "does not get an answer",
	},
	"NFS version, a driver": {
		source: "linux-nfs/nfs-utils 2.9.2-rc6 utils/mount/error.c:216",
		make:   onNode("nfs.csi.k8s.io", "Internal", nfsMount+"mount.nfs: requested NFS version or transport protocol is not supported for /mnt"),
		want:   explain.StorageServerFailing, cause: "NFS version", next: "nfsvers|mountOptions",
	},
	"NFS, busy": {
		source: "linux-nfs/nfs-utils 2.9.2-rc6 utils/mount/error.c:228",
		make:   onNode("nfs.csi.k8s.io", "Internal", nfsMount+"mount.nfs: /mnt is busy or already mounted or sharecache fail"),
		want:   explain.MountFailing, cause: "mount of the share on node b is in the way", next: "/proc/mounts",
	},
	"SMB, busy": {
		source: "piastry/cifs-utils cifs-utils-7.5 mount.cifs.c:2428",
		make:   onNode("smb.csi.k8s.io", "Internal", cifs+"mount error(16): Device or resource busy\nRefer to the mount.cifs(8) manual page"),
		want:   explain.MountFailing, cause: "mount of the share on node b is in the way", next: "/proc/mounts",
	},
	"SMB, host": {
		source: "piastry/cifs-utils cifs-utils-7.5 mount.cifs.c:2428",
		make:   onNode("smb.csi.k8s.io", "Internal", cifs+"mount error(112): Host is down\nRefer to the mount.cifs(8) manual page"),
		want:   explain.StorageServerFailing, cause: "Host is down", next: "runs",
	},
	"SMB, name": {
		source: "piastry/cifs-utils cifs-utils-7.5 mount.cifs.c:1994",
		make:   onNode("smb.csi.k8s.io", "Internal", cifs+"mount error: could not resolve address for srv: Unknown error"),
		want:   explain.StorageServerFailing, cause: "could not resolve", next: "reaches it",
	},
	"SMB, dialect": {
		source: "piastry/cifs-utils cifs-utils-7.5 mount.cifs.c:2428; kubernetes-csi/csi-driver-smb#248",
		make:   onNode("smb.csi.k8s.io", "Internal", cifs+"mount error(95): Operation not supported\nRefer to the mount.cifs(8) manual page"),
		want:   explain.RequestNotSupported, cause: "Operation not supported", next: "mount options",
	},
	"Ceph, blocklist": {
		source: "red-hat-storage/ocs-ci#13690, ceph/ceph-csi#5316",
		make:   onNode("rbd.csi.ceph.com", "Internal", rbdMap+"(108) Cannot send after transport endpoint shutdown"),
		want:   explain.MountFailing, cause: "Ceph has node b on its blocklist", next: "ceph osd blocklist ls",
	},
	"Ceph, timeout": {
		source: "rook/rook#8464",
		make:   onNode("rbd.csi.ceph.com", "Internal", rbdMap+"(110) Connection timed out"),
		want:   explain.StorageServerFailing, cause: "Connection timed out", next: "reaches it",
	},
	"Ceph, monitors": {
		source: "ceph/ceph-csi#3076",
		make:   onNode("rbd.csi.ceph.com", "Internal", "rbd: map failed with error an error (exit status 2) occurred while running rbd args: [map pool/v1], rbd error output: rbd: failed to get mon address (possible ms_mode mismatch)\nrbd: map failed: (2) No such file or directory"),
		want:   explain.StorageServerFailing, cause: "mon address", next: "server",
	},
	"Ceph, image": {
		source: "ceph/ceph-csi#1915",
		make:   onNode("rbd.csi.ceph.com", "Internal", rbdMap+"(2) No such file or directory"),
		want:   explain.HandleNotFound, next: "no retry helps",
	},
	"Ceph, watcher": {
		source: "ceph/ceph-csi 52fcb7b internal/rbd/rbd_attach.go:530; rook/rook#11372",
		make:   onNode("rbd.csi.ceph.com", "Internal", "rbd image replicapool/csi-vol-1 is still being used"),
		want:   explain.MountFailing, cause: "another client has the image open", next: "rbd status",
	},
	"Ceph, user": {
		source: "ceph/ceph-csi#5150",
		make:   onNode("rbd.csi.ceph.com", "Internal", rbdMap+"(1) Operation not permitted"),
		want:   explain.DriverNotAuthorized, next: "Secret that the PersistentVolume names",
	},
	"iSCSI, no records": {
		source: "open-iscsi/open-iscsi bc23614 usr/iscsi_err.c:48",
		make:   onNode("org.democratic-csi.iscsi", "Internal", `{"code":21,"stdout":"","stderr":"iscsiadm: No records found\n"}`),
		want:   explain.StorageServerFailing, cause: "No records found", next: "iSCSI target",
	},
	"iSCSI, login": {
		source: "open-iscsi/open-iscsi bc23614 usr/iscsi_err.c:51",
		make:   onNode("csi.example.com", "Internal", "failed to login: iscsiadm: initiator reported error (24 - iSCSI login failed due to authorization failure)"),
		want:   explain.StorageServerFailing, cause: "authorization failure", next: "CHAP",
	},
	"SMB, login": {
		source: "piastry/cifs-utils cifs-utils-7.5 mount.cifs.c:2428",
		make:   onNode("smb.csi.k8s.io", "Internal", cifs+"mount error(126): Required key not available"),
		want:   explain.DriverNotAuthorized, next: "Secret that the PersistentVolume names",
	},
	"Azure Files, share": {
		source: "kubernetes-sigs/azurefile-csi-driver#687",
		make:   onNode("file.csi.azure.com", "Internal", cifs+"mount error(2): No such file or directory"),
		want:   explain.StorageServerFailing, cause: "No such file or directory", next: "has what the volume names",
	},
	"NFS, time": {
		source: "linux-nfs/nfs-utils 2.9.2-rc6 utils/mount/error.c:264",
		make:   onNode("nfs.csi.k8s.io", "Internal", nfsMount+"mount.nfs: Connection timed out for nas:/x on /mnt"),
		want:   explain.StorageServerFailing, cause: "Connection timed out", next: "reaches it",
	},
	"Longhorn, not ready": {
		source: "longhorn/longhorn-manager 5ddaa369f csi/node_server.go:544",
		make:   onNode("driver.longhorn.io", "Aborted", "volume pvc-1 is not ready for workloads"),
		want:   explain.MountFailing, cause: "not made the volume ready", next: "replicas|kubectl get volumes.longhorn.io",
	},
	"stale NFS, a driver": {
		source: "golang/go 1.26.8 syscall/zerrors_linux_amd64.go ESTALE, printed by os.Stat",
		make:   onNode("nfs.csi.k8s.io", "Internal", "stat /var/lib/kubelet/pods/0f/volumes/kubernetes.io~csi/pv/mount: stale NFS file handle"),
		want:   explain.MountFailing, cause: "a mount of the volume on node b is dead", next: "spec.nodeName=b",
	},
	"stale FUSE, a driver": {
		source: "ceph/ceph-csi#2634, golang/go 1.26.8 syscall/zerrors_linux_amd64.go ENOTCONN",
		make:   onNode("csi.juicefs.com", "Internal", "stat /var/lib/kubelet/pods/0f/volumes/kubernetes.io~csi/pv/mount: transport endpoint is not connected"),
		want:   explain.MountFailing, cause: "a mount of the volume on node b is dead", next: "spec.nodeName=b",
	},
	"stale FUSE, kubelet": {
		source: "kubernetes/kubernetes#96361",
		make:   ofKubelet("stat /var/lib/kubelet/pods/0f/volumes/kubernetes.io~csi/pv/mount: transport endpoint is not connected"),
		want:   explain.MountFailing, cause: "a mount of the volume on node b is dead", next: "spec.nodeName=b",
	},
	"stale FUSE, containerd": {
		source: "yandex-cloud/k8s-csi-s3#133",
		make: container(&ofNFS, "CreateContainerError", `failed to generate container "16" spec: failed to generate spec: failed to stat "/var/lib/kubelet/pods/0f/volumes/kubernetes.io~nfs/v": `+
			`stat /var/lib/kubelet/pods/0f/volumes/kubernetes.io~nfs/v: transport endpoint is not connected`),
		want: explain.ContainerMountFailing, cause: "volume v|dead", next: "spec.nodeName=b",
	},
}

// nodeCases are of the node itself.
var nodeCases = map[string]kindCase{
	"no space, kubelet": {
		source: "vllm-project/aibrix#694, 1.36.3 pkg/volume/util/atomic_writer.go",
		make:   reports(configMap("app"), setUp("write /var/lib/kubelet/pods/0f/volumes/kubernetes.io~configmap/v/..2025/app.yaml: no space left on device")),
		want:   explain.MountFailing, cause: "full", next: "df -h|node/b",
	},
	"no space, a driver": {
		source: "golang/go 1.26.8 syscall/zerrors_linux_amd64.go ENOSPC, printed by os.MkdirAll",
		make:   onNode("csi.example.com", "Internal", "mkdir /var/lib/kubelet/plugins/x/globalmount: no space left on device"),
		want:   explain.MountFailing, cause: "full", next: "df -h",
	},
	"read-only directory, a driver": {
		source: "golang/go 1.26.8 syscall/zerrors_linux_amd64.go EROFS, printed by os.MkdirAll",
		make:   onNode("csi.example.com", "Internal", "mkdir /var/lib/x/globalmount: read-only file system"),
		want:   explain.MountFailing, cause: "is read-only", next: "read-only",
	},
	"too many open files": {
		source: "k3s-io/k3s#1042",
		make:   onNode("csi.example.com", "Internal", "failed to start watcher: too many open files"),
		want:   explain.MountFailing, cause: "open files", next: "fs.inotify.max_user_instances",
	},
}

// cloudCases are of the storage's interface, and of who may call it.
var cloudCases = map[string]kindCase{
	"key, attach": {
		source: "kubernetes/kubernetes#62171",
		make: attaches("ebs.csi.aws.com", "Internal", `Could not attach volume "h" to node "i-1": operation error EC2: AttachVolume, https response error StatusCode: 400, RequestID: 7, `+
			`api error CustomerKeyHasBeenRevoked: Volume h cannot be attached. The encrypted volume was unable to access the KMS master key.`),
		want: attachment.AttachFailed, cause: "the key of the encrypted volume", next: "enabled|key|kms:CreateGrant",
	},
	"key, state": {
		source: "CiscoDevNet/cloud-cml#8",
		make:   attaches("ebs.csi.aws.com", "Internal", `Could not attach volume "h" to node "i-1": Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state`),
		want:   attachment.AttachFailed, cause: "the key of the encrypted volume", next: "enabled|key|kms:CreateGrant",
	},
	"key, create at GCE": {
		source: "kubernetes-sigs/gcp-compute-persistent-disk-csi-driver#590",
		make: made("pd.csi.storage.gke.io", "Internal", `CreateVolume failed to create single zonal disk "pvc-1": failed to insert zonal disk: unknown Insert disk error: googleapi: Error 400: `+
			`Cloud KMS error when using key projects/p/locations/global/keyRings/r/cryptoKeys/k: Permission 'cloudkms.cryptoKeyVersions.useToEncrypt' denied on resource 'projects/p', kmsPermissionDenied`),
		want: explain.ProvisioningFailed, cause: "key", next: "enabled|key|kubectl get storageclass fast",
	},
	"key, deleted after creation": {
		source: "kubernetes-sigs/aws-ebs-csi-driver v1.64.0 pkg/cloud/cloud.go:876; kubernetes-sigs/aws-ebs-csi-driver#2685",
		make: made("ebs.csi.aws.com", "Aborted", ebsCreate+"timed out waiting for volume to create: operation error EC2: DescribeVolumes, https response error StatusCode: 400, RequestID: 9, "+
			"api error InvalidVolume.NotFound: The volume 'vol-1' does not exist."),
		want: explain.ProvisioningFailed, cause: "EC2 deleted the volume", next: "key|kms:CreateGrant|kubectl get storageclass fast",
	},
	"key, the next attempt": {
		source: "kubernetes-sigs/aws-ebs-csi-driver v1.64.0 pkg/cloud/cloud.go:184; kubernetes-sigs/aws-ebs-csi-driver#3010",
		make:   made("ebs.csi.aws.com", "AlreadyExists", ebsCreate+"parameters on this idempotent request are inconsistent with parameters used in previous request(s)"),
		want:   explain.ProvisioningFailed, cause: "earlier attempt", next: "key",
	},
	"policy": {
		source: "kubernetes-sigs/vsphere-csi-driver bf80902 pkg/csi/service/vanilla/controller.go:804",
		make:   made("csi.vsphere.vmware.com", "Internal", `failed to create volume. Error: [Storage policy name "gold" not found in VC "vc.example.com"]`),
		want:   explain.ProvisioningFailed, cause: "gold", next: "storage policy|kubectl get storageclass fast",
	},
	"no datastore": {
		source: "kubernetes-sigs/vsphere-csi-driver bf80902 pkg/csi/service/vanilla/controller.go:1368",
		make:   made("csi.vsphere.vmware.com", "Internal", `No compatible datastores found for storage policy "gold" on VC "vc.example.com"`),
		want:   explain.ProvisioningFailed, cause: "No compatible datastores", next: "datastore",
	},
	"no shared datastore": {
		source: "kubernetes-sigs/vsphere-csi-driver bf80902 pkg/common/cns-lib/vsphere/virtualmachine.go:38",
		make:   made("csi.vsphere.vmware.com", "Internal", "failed to get shared datastores in kubernetes cluster. Error: no shared datastores found among given NodeVMs"),
		want:   explain.ProvisioningFailed, cause: "no shared datastores", next: "datastore",
	},
	"the export, a provisioner": {
		source: "kubernetes-sigs/nfs-subdir-external-provisioner 59a3ca2 cmd/nfs-subdir-external-provisioner/provisioner.go:116",
		make:   made("k8s-sigs.io/nfs-subdir-external-provisioner", "", "unable to create directory to provision new pv: mkdir /persistentvolumes/ns-claim-pvc-1: permission denied"),
		want:   explain.ProvisioningFailed, cause: "permission denied", next: "root_squash|file server",
	},
	"the export, a driver": {
		source: "kubernetes-csi/csi-driver-nfs d3b27c0 pkg/nfs/controllerserver.go:188",
		make:   made("nfs.csi.k8s.io", "Internal", "failed to make subdirectory: mkdir /tmp/pvc-1/pvc-1: permission denied"),
		want:   explain.ProvisioningFailed, cause: "permission denied", next: "root_squash",
	},
	"the server, a driver": {
		source: "kubernetes-csi/csi-driver-nfs d3b27c0 pkg/nfs/controllerserver.go:174",
		make:   made("nfs.csi.k8s.io", "Internal", "failed to mount nfs server: rpc error: code = Internal desc = "+nfsMount+"mount.nfs: access denied by server while mounting nas:/x"),
		want:   explain.ProvisioningFailed, cause: "access denied by server", next: "server|kubectl get storageclass fast",
	},
	"not reached, create": {
		source: "golang/go 1.26.8 net/net.go DNSError, OpError; kubernetes-sigs/aws-ebs-csi-driver#214",
		make:   made("ebs.csi.aws.com", "Internal", ebsCreate+`could not create volume in EC2: operation error EC2: CreateVolume, exceeded maximum number of attempts, 3, request send failed, Post "https://ec2.eu-west-1.amazonaws.com/": dial tcp: lookup ec2.eu-west-1.amazonaws.com: no such host`),
		want:   explain.ProvisioningFailed, cause: "does not reach", next: "DNS|firewall",
	},
	"not reached, attach": {
		source: "golang/go 1.26.8 net/net.go OpError",
		make:   attaches("csi.example.com", "Internal", `attach: Post "https://api.example.com/attach": dial tcp 10.0.0.7:443: i/o timeout`),
		want:   attachment.AttachFailed, cause: "does not reach", next: "DNS|firewall",
	},
	"not reached, gRPC of the storage": {
		source: "google.golang.org/grpc v1.81.1 internal/transport/http2_client.go, as a driver passes it on",
		make:   attaches("csi.example.com", "Unavailable", `connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.5:9500: connect: connection refused"`),
		want:   attachment.AttachFailed, cause: "does not reach", next: "firewall",
	},
	"not reached, mount": {
		source: "golang/go 1.26.8 net/net.go OpError",
		make:   onNode("csi.example.com", "Internal", `login: Get "https://10.0.0.7:8443/api": dial tcp 10.0.0.7:8443: connect: connection refused`),
		want:   explain.StorageServerFailing, cause: "connection refused", next: "reaches it",
	},
	"certificate, attach": {
		source: "golang/go 1.26.8 crypto/x509/verify.go UnknownAuthorityError; vmware-archive/vsphere-storage-for-kubernetes#63",
		make:   attaches("csi.vsphere.vmware.com", "Internal", `failed to get VirtualCenter: Post "https://vc.example.com:443/sdk": tls: failed to verify certificate: x509: certificate signed by unknown authority`),
		want:   attachment.AttachFailed, cause: "certificate", next: "CA|clock",
	},
	"certificate, create": {
		source: "golang/go 1.26.8 crypto/x509/verify.go CertificateInvalidError",
		make:   made("csi.trident.netapp.io", "Internal", `problem initializing storage: Post "https://10.0.0.8/servlets": x509: certificate has expired or is not yet valid: current time 2026-11-01T00:00:00Z is after 2026-10-01T00:00:00Z`),
		want:   explain.ProvisioningFailed, cause: "certificate", next: "CA|clock",
	},
	"error state": {
		source: "openstack/cinder ab09bc3 cinder/volume/api.py:2462, kubernetes/cloud-provider-openstack c453fb7 pkg/csi/cinder/controllerserver.go:335",
		make: attaches("cinder.csi.openstack.org", "Internal", "[ControllerPublishVolume] Attach Volume failed with error failed to attach h volume to i2 compute: Expected HTTP response code [200], got 400 instead: "+
			"Invalid volume: Volume h status must be available or downloading to reserve, but the current status is error."),
		want: attachment.AttachFailed, cause: "error state", next: "Find out at the storage|openstack volume show h",
	},
	"busy, Azure": {
		source: "kubernetes/kubernetes#78657",
		make:   attaches("disk.csi.azure.com", "Internal", `Attach volume d1 to instance b failed with StatusCode=409 Code="AttachDiskWhileBeingDetached" Message="Cannot attach data disk 'd1' to VM 'b' because the disk is currently being detached or the last detach operation failed."`),
		want:   explain.OperationPending, cause: "an earlier call for the volume",
	},
	"credentials, none": {
		source: "kubernetes-sigs/aws-ebs-csi-driver#2452",
		make:   made("ebs.csi.aws.com", "Internal", ebsCreate+"could not create volume in EC2: operation error EC2: CreateVolume, get identity: get credentials: failed to refresh cached credentials, no EC2 IMDS role found, operation error ec2imds: GetMetadata, http response error StatusCode: 404, request to EC2 IMDS failed"),
		want:   explain.ProvisioningFailed, cause: "no credentials", next: "Give the driver credentials",
	},
	"credentials, expired": {
		source: "microsoft/openshift-container-platform#193",
		make:   attaches("disk.csi.azure.com", "Internal", `Attach volume /s/d to instance b failed with ClientSecretCredential authentication failed: {"error":"invalid_client","error_description":"AADSTS7000222: The provided client secret keys are expired."}`),
		want:   explain.DriverNotAuthorized, next: "renew its credentials",
	},
	"credentials, a login": {
		source: "aws/eks-anywhere#1197",
		make:   attaches("csi.vsphere.vmware.com", "Internal", "failed to get VirtualCenter: ServerFaultCode: Cannot complete login due to an incorrect user name or password."),
		want:   explain.DriverNotAuthorized, next: "renew its credentials",
	},
}

// TestKindsOfCauses: the cause is named, and the first step is one for it, for the text of each driver that writes one.
func TestKindsOfCauses(t *testing.T) {
	for kind, cases := range map[string]map[string]kindCase{
		"device": deviceCases, "objects": objectCases, "server": serverCases, "node": nodeCases, "cloud": cloudCases, "another speaker": kindsOfOthers,
	} {
		for name, c := range cases {
			t.Run(kind+"/"+name, func(t *testing.T) { c.check(t) })
		}
	}
}

func (c *kindCase) check(t *testing.T) {
	t.Helper()
	s := newScene()
	c.make(&s)
	e, err := Explain(s.Snapshot, theWaiter)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Findings) == 0 {
		t.Fatalf("%s: nothing is found: %s", c.source, e.Summary)
	}
	first := ""
	if next := e.Findings[0].Next; len(next) > 0 {
		first = next[0].Text + " " + next[0].Command
	}
	if c.want != "" && e.Reason != c.want {
		t.Errorf("%s: %s: %s, want %s", c.source, e.Reason, e.Summary, c.want)
	}
	for _, one := range []struct{ what, parts, of string }{{"cause", c.cause, e.Summary}, {"first step", c.next, first}} {
		for part := range strings.SplitSeq(one.parts, "|") {
			if !strings.Contains(one.of, part) {
				t.Errorf("%s: the %s does not say %q: %s", c.source, one.what, part, one.of)
			}
		}
	}
	for part := range strings.SplitSeq(c.not, "|") {
		if part != "" && strings.Contains(e.Summary+first, part) {
			t.Errorf("%s: says %q: %s %s", c.source, part, e.Summary, first)
		}
	}
}

// TestMeaningsHaveSteps: what a text means has steps, at the node or for the attach, or for the creation of a volume.
func TestMeaningsHaveSteps(t *testing.T) {
	for situation, means := range meanings {
		_, creates := wordCauses[situation]
		if means == "" || !creates && !explain.HasSteps(string(situation)) {
			t.Errorf("%s has no steps: %q", situation, means)
		}
	}
}

// kindsOfOthers are the same words from another speaker, or about something else.
var kindsOfOthers = map[string]kindCase{
	"a device of another call": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "failed to find device path of the backend: no space left on device, too many open files"),
		want: attachment.AttachFailed, not: "on node b is|full|lsblk|fs.inotify",
	},
	"a controller that is busy": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "backend: already mounted or mount point busy"),
		want: attachment.AttachFailed, not: "multipath",
	},
	"kubelet about a SecretProviderClass": {
		source: "of kubelet, which does not read them", make: ofKubelet(`failed to get secretproviderclass ns/app-keys, error: SecretProviderClass "app-keys" not found`),
		want: explain.MountFailing, not: "kubectl get secretproviderclasses",
	},
	"a SecretProviderClass that is forbidden": {
		source: "kubernetes-sigs/secrets-store-csi-driver 0aad886 pkg/secrets-store/utils.go:95",
		make:   inline(secretsStore, "Unknown", `failed to get secretproviderclass ns/app-secrets, error: secretproviderclasses.secrets-store.csi.x-k8s.io "app-secrets" is forbidden: User "x" cannot get resource`),
		want:   explain.MountFailing, not: "Create the SecretProviderClass",
	},
	"a provider of something else": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", `provider not found: provider "aws"`),
		want: attachment.AttachFailed, not: "DaemonSet of the provider",
	},
	"a token of the driver's own": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "service account tokens not found"),
		want: attachment.AttachFailed, not: "tokenRequests",
	},
	"a token of a projected volume": {
		source: "1.36.3 pkg/volume/projected/projected.go, plugin/pkg/admission/noderestriction/admission.go:718",
		make:   reports(ofProjected, setUp(`failed to fetch token: serviceaccounts "app" is forbidden: audience "x" not found in pod spec volume, system:node:b is not authorized to request tokens for this audience`)),
		want:   explain.MountFailing, not: "kubectl get csidriver",
	},
	"an application with a full volume": {
		source: "of a tenant", make: func(s *scene) {
			s.mounts()
			s.says("", "Pod", "FailedMount", setUpPV("mkdir /data: no space left on device"), time.Second)
			s.Events[len(s.Events)-1].Source.Component = "my-app"
		}, not: "df -h",
	},
	"an application with a dead mount": {
		source: "of a tenant", make: func(s *scene) {
			s.mounts()
			s.says("", "Pod", "Unhealthy", "Readiness probe failed: ls: /data: transport endpoint is not connected", time.Second)
		}, not: "is dead",
	},
	"a controller with a dead mount": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "stat /export: stale NFS file handle"),
		want: attachment.AttachFailed, not: "is dead",
	},
	"an NFS version in a name": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "mount.nfs: Protocol not supported for nas:/x on /mnt"),
		want: attachment.AttachFailed, not: "nfsvers",
	},
	"a blocklist of something else": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "rbd: map failed: (108) Cannot send after transport endpoint shutdown"),
		want: attachment.AttachFailed, not: "blocklist ls",
	},
	"a key of Kubernetes": {
		source: "of kubelet", make: ofKubelet("InvalidKMSKey.InvalidState"),
		want: explain.MountFailing, not: "encrypted",
	},
	"a key of a file": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "invalid key: the keyring has no entry kms"),
		want: attachment.AttachFailed, not: "encrypted",
	},
	"a volume that is gone, of an attach": {
		source: "kubernetes-sigs/aws-ebs-csi-driver v1.64.0 pkg/cloud/cloud.go:1316",
		make:   attaches("ebs.csi.aws.com", "Internal", `Could not attach volume "h" to node "i-2": api error InvalidVolume.NotFound: The volume 'h' does not exist.`),
		want:   explain.HandleNotFound, not: "EC2 deleted",
	},
	"a name of another storage": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "port 7 is already in use"),
		want: attachment.AttachFailed, not: "another name",
	},
	"a policy of something else": {
		source: "of a driver", make: made("csi.example.com", "Internal", `backup policy "gold" not found`),
		want: explain.ProvisioningFailed, not: "storage policy",
	},
	"a directory of the provisioner's own": {
		source: "of a provisioner", make: made("example.com/p", "", "cannot read the configuration: open /etc/p.conf: permission denied"),
		want: explain.ProvisioningFailed, not: "root_squash",
	},
	"a socket of the driver's own": {
		source: "golang/go 1.26.8 net/net.go OpError", make: onNode("csi.example.com", "Internal", "dial unix /run/helper.sock: connect: connection refused"),
		want: explain.MountFailing, not: "reaches it",
	},
	"a driver that is not reached": {
		source: "google.golang.org/grpc v1.81.1 internal/transport/http2_client.go",
		make:   attaches("csi.example.com", "Unavailable", `connection error: desc = "transport: Error while dialing: dial unix /csi/csi.sock: connect: connection refused"`),
		want:   explain.DriverUnavailable, not: "interface of the storage",
	},
	"a deadline of the cloud": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", `Post "https://api.example.com/v1/attach": context deadline exceeded`),
		want: attachment.AttachFailed, not: "does not reach",
	},
	"a module of the driver's own": {
		source: "of a driver", make: onNode("csi.example.com", "Internal", "python: Module ceph not found"),
		want: explain.MountFailing, not: "modprobe",
	},
	"an image that is used": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "image v1 is still being used"),
		not: "rbd status",
	},
	"a program that a controller lacks": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", `exec: "iscsiadm": executable file not found in $PATH`),
		want: attachment.AttachFailed, not: "image of the driver",
	},
	"a passphrase of the storage": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "login: missing passphrase for encrypted volume store"),
		want: attachment.AttachFailed, not: "Secret that the PersistentVolume names",
	},
	"a registry's certificate": {
		source: "containerd v2.1.0 core/remotes/docker",
		make:   container(nil, "ErrImagePull", `failed to pull image "registry.example.com/app:2": tls: failed to verify certificate: x509: certificate signed by unknown authority`),
		want:   explain.NotVolume, not: "the driver's controller",
	},
	"a write-protected backend": {
		source: "of a driver", make: attaches("csi.example.com", "Internal", "pool p1 is read-only"),
		want: attachment.AttachFailed, not: "kubectl get pv pv -o",
	},
}
