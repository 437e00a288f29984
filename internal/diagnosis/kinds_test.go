package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// kindText is what a program says, and what an operator takes it for.
type kindText struct {
	source string
	make   func(*scene)
	want   []decision.Reason
	text   string
}

func onNode(driver, code, text string) func(*scene) {
	return func(s *scene) {
		s.mountFails(code, text)
		s.driver(driver)
	}
}

func made(driver, code, text string) func(*scene) {
	return func(s *scene) {
		s.unbound()
		s.schedules(unboundText)
		s.Classes[0].Provisioner = driver
		s.Claims[0].Annotations[ProvisionerAnnotation] = driver
		text = strings.TrimSpace(text)
		if code != "" {
			text = "rpc error: code = " + code + " desc = " + text
		}
		s.ofClaim(driver+"_pod_uid", "Warning", "ProvisioningFailed", `failed to provision volume with StorageClass "fast": `+text, time.Minute)
	}
}

// driver makes the volume that of another driver, attached to node b.
func (s scene) driver(driver string) {
	unique := corev1.UniqueVolumeName(kube.UniqueVolumeName(driver, "h"))
	s.Volumes[0].Spec.CSI.Driver, s.va.Spec.Attacher, s.va.Name = driver, driver, kube.AttachmentName("h", driver, "b")
	s.Nodes[1].Status.VolumesAttached, s.Nodes[1].Status.VolumesInUse = []corev1.AttachedVolume{{Name: unique}}, []corev1.UniqueVolumeName{unique}
	s.CSINodes[0].Spec.Drivers[0].Name = driver
}

var kindTexts = []kindText{
	{"ceph/ceph-csi#5150", onNode("rbd.csi.ceph.com", "Internal", "rbd: map failed with error an error (exit status 13) occurred while running rbd args: [--id csi-rbd-node -m 10.0.0.1 --keyfile=***stripped*** map pool/csi-vol-1 --device-type krbd], rbd error output: rbd: sysfs write failed\nrbd: map failed: (13) Permission denied"), []decision.Reason{explain.DriverNotAuthorized}, "Correct the credentials in the Secret that the PersistentVolume names"},
	{"ceph/ceph rbd map: features", onNode("rbd.csi.ceph.com", "Internal", "rbd: map failed with error an error (exit status 6) occurred while running rbd args: [map pool/csi-vol-1], rbd error output: rbd: sysfs write failed\nRBD image feature set mismatch. You can disable features unsupported by the kernel with \"rbd feature disable\".\nrbd: map failed: (6) No such device or address"), []decision.Reason{explain.RequestNotSupported}, ""},
	{"ceph/ceph-csi#1915", onNode("rbd.csi.ceph.com", "Internal", "rbd: map failed with error an error (exit status 2) occurred while running rbd args: [map pool/csi-vol-1], rbd error output: rbd: error opening image csi-vol-1: (2) No such file or directory"), []decision.Reason{explain.HandleNotFound}, "no retry helps"},
	{"ceph mount.ceph: no mds", onNode("cephfs.csi.ceph.com", "Internal", "an error (exit status 32) occurred while running mount args: [-t ceph 10.0.0.1:6789:/volumes/csi /mnt] stderr: mount error: no mds server is up or the cluster is laggy"), []decision.Reason{explain.StorageServerFailing}, ""},
	{"ceph mount.ceph: timed out", onNode("cephfs.csi.ceph.com", "Internal", "an error (exit status 32) occurred while running mount args: [-t ceph 10.0.0.1:6789:/volumes/csi /mnt] stderr: mount error 110 = Connection timed out"), []decision.Reason{explain.StorageServerFailing}, ""},
	{"cifs-utils mount.cifs: 13", onNode("smb.csi.k8s.io", "Internal", "volume(v) mount \"//srv/share\" on \"/mnt\" failed with mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t cifs -o <masked> //srv/share /mnt\nOutput: mount error(13): Permission denied\nRefer to the mount.cifs(8) manual page (e.g. man mount.cifs) and kernel log messages (dmesg)"), []decision.Reason{explain.DriverNotAuthorized}, ""},
	{"cifs-utils mount.cifs: 2", onNode("smb.csi.k8s.io", "Internal", "volume(v) mount \"//srv/share\" on \"/mnt\" failed with mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t cifs -o <masked> //srv/share /mnt\nOutput: mount error(2): No such file or directory\nRefer to the mount.cifs(8) manual page"), []decision.Reason{explain.HandleNotFound, explain.StorageServerFailing}, ""},
	{"cifs-utils mount.cifs: 115", onNode("file.csi.azure.com", "Internal", "volume(v) mount \"//acc.file.core.windows.net/s\" on \"/mnt\" failed with mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t cifs -o <masked> //acc.file.core.windows.net/s /mnt\nOutput: mount error(115): Operation now in progress\nRefer to the mount.cifs(8) manual page"), []decision.Reason{explain.StorageServerFailing}, ""},
	{"aws/efs-utils mount_efs", onNode("efs.csi.aws.com", "Internal", "Could not mount \"fs-1:/\" at \"/mnt\": mount failed: exit status 1\nMounting command: mount\nMounting arguments: -t efs -o tls fs-1:/ /mnt\nOutput: Failed to resolve \"fs-1.efs.us-east-1.amazonaws.com\" - check that your file system ID is correct, and ensure that the VPC has an EFS mount target for this file system ID."), []decision.Reason{explain.StorageServerFailing}, ""},
	{"aws/efs-utils, nfs-utils", onNode("efs.csi.aws.com", "Internal", "Could not mount \"fs-1:/\" at \"/mnt\": mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t efs -o tls fs-1:/ /mnt\nOutput: b'mount.nfs4: access denied by server while mounting 127.0.0.1:/'"), []decision.Reason{explain.StorageServerFailing, explain.DriverNotAuthorized}, ""},
	{"nfs-utils utils/mount/error.c", onNode("nfs.csi.k8s.io", "Internal", "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs nas:/x /mnt\nOutput: mount.nfs: mounting nas:/x failed, reason given by server: No such file or directory"), []decision.Reason{explain.StorageServerFailing, explain.HandleNotFound}, ""},
	{"nfs-utils utils/mount/error.c", onNode("nfs.csi.k8s.io", "Internal", "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs -o foo nas:/x /mnt\nOutput: mount.nfs: an incorrect mount option was specified"), []decision.Reason{explain.RequestNotSupported}, ""},
	{"openebs/zfs-localpv#547, k/k 1.34 pkg/volume/csi/csi_mounter.go:354", func(s *scene) {
		s.mounts()
		s.says("", "Pod", "FailedMount", `MountVolume.SetUp failed for volume "pv" : applyFSGroup failed for vol pv: lstat /var/snap/microk8s/common/var/lib/kubelet/pods/b8/volumes/kubernetes.io~csi/pv/mount: no such file or directory`, time.Second)
	}, []decision.Reason{explain.MountFailing}, "mountPropagation: Bidirectional"},
	{"Azure: OperationNotAllowed", attaches("disk.csi.azure.com", "Internal", `Attach volume /subscriptions/s/d to instance b failed with Retriable: false, RetryAfter: 0s, HTTPStatusCode: 409, RawError: {"error": {"code": "OperationNotAllowed", "message": "The maximum number of data disks allowed to be attached to a VM of this size is 4."}}`), []decision.Reason{explain.AttachLimitReached}, ""},
	{"Azure: zones", attaches("disk.csi.azure.com", "Internal", `Attach volume /subscriptions/s/d to instance b failed with Retriable: false, HTTPStatusCode: 400, RawError: {"error": {"code": "BadRequest", "message": "Disk /subscriptions/s/d cannot be attached to the VM because it is not in the same zone as the VM. VM zone: '2'. Disk zone: '1'. "}}`), []decision.Reason{explain.VolumeInOtherZone}, ""},
	{"GCE: attachDisk", attaches("pd.csi.storage.gke.io", "Internal", "Failed to Attach: failed cloud service attach disk call: googleapi: Error 403: Required 'compute.instances.attachDisk' permission for 'projects/p/zones/z/instances/b', forbidden"), []decision.Reason{explain.DriverNotAuthorized}, "compute.instances.attachDisk"},
	{"GCE: disk types", attaches("pd.csi.storage.gke.io", "InvalidArgument", "Failed to Attach: failed cloud service attach disk call: googleapi: Error 400: pd-balanced disk type cannot be used by c4-standard-4 machine type., badRequest"), []decision.Reason{explain.RequestNotSupported}, ""},
	{"hetznercloud/csi-driver internal/driver/controller.go", attaches("csi.hetzner.cloud", "Unavailable", "failed to publish volume: server and volume are not in the same location (resource_in_different_location)"), []decision.Reason{explain.VolumeInOtherZone}, ""},
	{"ceph/ceph-csi internal/util/connection.go", made("rbd.csi.ceph.com", "Internal", "failed to get connection: connecting failed: rados: ret=-13, Permission denied"), []decision.Reason{explain.ProvisioningFailed}, "permission to create volumes"},
	{"ceph/ceph-csi internal/util/csiconfig.go", made("rbd.csi.ceph.com", "InvalidArgument", "failed to fetch monitor list using clusterID (rook-ceph): missing configuration for cluster ID \"rook-ceph\""), []decision.Reason{explain.ProvisioningFailed}, "Correct the StorageClass"},
	{"Cinder: quota", made("cinder.csi.openstack.org", "Internal", `CreateVolume failed with error Expected HTTP response code [202] when accessing [POST https://c/volumes], but got 413 instead: {"overLimit": {"code": 413, "message": "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. Requested 100G, quota is 1000G and 950G has been consumed."}}`), []decision.Reason{explain.ProvisioningFailed}, "Raise the quota"},
	{"rancher/local-path-provisioner provisioner.go", made("rancher.io/local-path", "", "configuration error, no node was specified"), []decision.Reason{explain.ProvisioningFailed}, "WaitForFirstConsumer"},
}

// TestKindsOfTexts: texts that were chosen before the words and patterns that read them.
func TestKindsOfTexts(t *testing.T) {
	for _, k := range kindTexts {
		s := newScene()
		k.make(&s)
		e, err := Explain(s.Snapshot, theWaiter)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(k.want, e.Reason) || !says(&e, k.text) {
			t.Errorf("%s: %s: %s, want one of %v and %q\n%+v", k.source, e.Reason, e.Summary, k.want, k.text, e.Findings[0].Next)
		}
	}
}
