package diagnosis

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/drivers"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// of makes the volume one of another driver, which is being attached to node a, and fails with this error.
func (s scene) failing(driver string, e storagev1.VolumeError) {
	s.Volumes[0].Spec.CSI.Driver, s.va.Spec.Attacher = driver, driver
	s.va.Status = storagev1.VolumeAttachmentStatus{AttachError: &e}
}

func grpcError(code, text string) storagev1.VolumeError {
	return storagev1.VolumeError{Message: fmt.Sprintf("rpc error: code = %s desc = %s", code, text)}
}

// TestAnswersOfDrivers: each example of internal/drivers/facts.yaml is explained as what it is an example of, and the explanation adds what the
// driver's text hides.
func TestAnswersOfDrivers(t *testing.T) {
	publish := map[drivers.Situation]decision.Reason{
		drivers.AttachedElsewhere: explain.BackendDisagrees, drivers.NodeFull: explain.AttachLimitReached, drivers.UnknownNode: attachment.AttachFailed,
		drivers.VolumeGone: explain.HandleNotFound, drivers.Busy: attachment.AttachFailed, drivers.RateLimit: attachment.AttachFailed,
	}
	hides := map[drivers.Situation]string{
		drivers.UnknownNode: "does not know a machine with the node's ID", drivers.Busy: "another operation", drivers.RateLimit: "limits requests",
	}
	examples := 0
	for _, f := range drivers.All() {
		for _, situation := range drivers.Situations() {
			for i, a := range f.Answers[situation] {
				if a.Example == "" {
					continue
				}
				examples++
				codes := []string{a.Code}
				if a.Code == drivers.AnyCode {
					codes = []string{"ResourceExhausted", "InvalidArgument", "Unavailable"}
				}
				for _, code := range codes {
					t.Run(fmt.Sprintf("%s/%s/%d/%s", f.Driver, situation, i, code), func(t *testing.T) {
						want := publish[situation]
						if a.Call == drivers.Unpublish && want == attachment.AttachFailed {
							want = attachment.DetachFailed
						}
						e := grpcError(code, a.Example)
						reason, read := reasonOf(hearError(&e), f.Driver, a.Call)
						if said := meant[read.Situation]; reason != want || !strings.Contains(said, hides[situation]) || said != "" && hides[situation] == "" {
							t.Errorf("%q: %s, %q; want %s, and %q", e.Message, reason, said, want, hides[situation])
						}
					})
				}
			}
		}
	}
	if examples < 80 {
		t.Errorf("the file has %d examples", examples)
	}
}

// TestAnswersBesideTheFacts: what the file does not list is read by CSI's codes: for a driver that it does not know, and for one that it
// knows as far as the file has nothing else.
func TestAnswersBesideTheFacts(t *testing.T) {
	const ebs, gce, hetzner = "ebs.csi.aws.com", "pd.csi.storage.gke.io", "csi.hetzner.cloud"
	for name, one := range map[string]struct {
		driver string
		err    storagev1.VolumeError
		want   decision.Reason
	}{
		"attached elsewhere, by the code":               {oneDriver, grpcError("FailedPrecondition", "in use"), explain.BackendDisagrees},
		"a text of EBS from another driver":             {oneDriver, grpcError("Internal", "api error VolumeInUse"), attachment.AttachFailed},
		"full, by the code":                             {oneDriver, grpcError("ResourceExhausted", "no more of them"), explain.AttachLimitReached},
		"not reached":                                   {oneDriver, grpcError("Unavailable", `connection error: desc = "transport: Error while dialing: dial unix /csi/csi.sock: connect: connection refused"`), explain.DriverUnavailable},
		"its connection broke":                          {oneDriver, grpcError("Unavailable", "error reading from server: EOF"), explain.DriverUnavailable},
		"EBS: EC2 did not answer the driver":            {ebs, grpcError("Internal", "Could not attach volume: error listing AWS instances: operation error EC2: DescribeInstances, request canceled, context deadline exceeded"), attachment.AttachFailed},
		"EBS: not reached":                              {ebs, grpcError("Unavailable", "connection error: desc = refused"), explain.DriverUnavailable},
		"EBS: no answer":                                {ebs, grpcError("DeadlineExceeded", "context deadline exceeded"), explain.DriverUnavailable},
		"EBS: no answer, and no code":                   {ebs, storagev1.VolumeError{Message: "context deadline exceeded"}, explain.DriverUnavailable},
		"GCE: a precondition that is another one":       {gce, grpcError("FailedPrecondition", "Disk (d1) requires restriping before being attached to instance (i)"), attachment.AttachFailed},
		"GCE: full is not read, so the code counts":     {gce, grpcError("ResourceExhausted", "no more disks"), explain.AttachLimitReached},
		"GCE: the code is in the field alone":           {gce, storagev1.VolumeError{Message: "The disk resource 'd' is already being used by 'i'", ErrorCode: new(int32(3))}, explain.BackendDisagrees},
		"Hetzner: exhausted, and not the node":          {hetzner, grpcError("ResourceExhausted", "something else"), attachment.AttachFailed},
		"Hetzner: unavailable, and not a locked one":    {hetzner, grpcError("Unavailable", "connection refused"), explain.DriverUnavailable},
		"the attacher's own words about a known one":    {ebs, storagev1.VolumeError{Message: "the VolumeAttachment was removed before the driver confirmed the detach"}, explain.BackendDisagrees},
		"a Secret of a known one":                       {ebs, storagev1.VolumeError{Message: `failed to load secret "ns/s": not found`}, explain.SecretMissing},
		"a known one that has not registered":           {ebs, storagev1.VolumeError{Message: "CSINode n does not contain driver ebs.csi.aws.com"}, explain.DriverNotOnNode},
		"a text of the facts without the driver's code": {ebs, storagev1.VolumeError{Message: "VolumeInUse"}, attachment.AttachFailed},
	} {
		t.Run(name, func(t *testing.T) {
			if reason, _ := reasonOf(hearError(&one.err), one.driver, drivers.Publish); reason != one.want {
				t.Errorf("%q: %s, want %s", one.err.Message, reason, one.want)
			}
		})
	}
}

// TestAnswerThatMisleads: an explanation adds to the driver's text what the driver means.
func TestAnswerThatMisleads(t *testing.T) {
	s := newScene()
	s.failing("ebs.csi.aws.com", grpcError("NotFound", `Volume "vol-1" not found`))
	s.holder.Status = s.waiter.Status
	e, err := Explain(s.Snapshot, Ref{Resource: Attachments, Name: s.va.Name})
	if err != nil || e.Reason != attachment.AttachFailed || !strings.Contains(e.Summary, `Volume "vol-1" not found (the driver answers so if it does not know a machine with the node's ID`) {
		t.Errorf("%s: %s (%v), want that the machine is unknown, and not the volume", e.Reason, e.Summary, err)
	}
}

// answered makes a scene in which the attach to node b, or its mount there, fails with a driver's answer, and returns what is explained.
func answered(t *testing.T, call drivers.Call, driver, code, text string, change func(scene)) Explanation {
	t.Helper()
	s := newScene()
	s.Volumes[0].Spec.CSI.Driver, s.va.Spec.Attacher, s.va.Spec.NodeName = driver, driver, "b"
	s.va.Name = kube.AttachmentName("h", driver, "b")
	s.a.Status.VolumesInUse, s.a.Status.VolumesAttached, s.Pods = nil, nil, []*corev1.Pod{s.waiter}
	s.CSINodes = []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "node-far"}}}
	for i, id := range map[string]string{"a": "fr-par-1/s1", "b": "i-own"} {
		s.CSINodes = append(s.CSINodes, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: i}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: id}}}})
	}
	s.Drivers = []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: driver}}}
	e := grpcError(code, text)
	e.Time = metav1.NewTime(s.Now.Add(-time.Minute))
	switch call {
	case drivers.Publish:
		s.va.Status = storagev1.VolumeAttachmentStatus{AttachError: &e}
	case drivers.Unpublish:
		s.va.Status, s.va.DeletionTimestamp = storagev1.VolumeAttachmentStatus{Attached: true, DetachError: &e}, &metav1.Time{Time: s.Now.Add(-time.Minute)}
	case drivers.Mount:
		s.Nodes[1].Status.VolumesAttached = []corev1.AttachedVolume{{Name: corev1.UniqueVolumeName(kube.UniqueVolumeName(driver, "h"))}}
		s.says("", "Pod", "FailedMount", `MountVolume.MountDevice failed for volume "pv" : `+e.Message, 10*time.Second)
	}
	if change != nil {
		change(s)
	}
	got, err := Explain(s.Snapshot, Ref{Pods, "ns", "waiter"})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestTextsOfDrivers holds answers that no situation of the lab has, each from another line of a driver's source, or of an issue that quotes it.
func TestTextsOfDrivers(t *testing.T) {
	for source, one := range map[string]struct {
		call               drivers.Call
		driver, code, text string
		want               decision.Reason
		says               string
	}{
		"digitalocean/csi-digitalocean v4.14.0-5-g0711283d driver/controller.go:361":  {drivers.Publish, "dobs.csi.digitalocean.com", "FailedPrecondition", `volume "h" is attached to the wrong droplet (4711), detach the volume to fix it`, explain.BackendDisagrees, "that machine 4711 has the volume, and no VolumeAttachment shows it"},
		"scaleway/scaleway-csi v0.3.6 pkg/driver/controller.go:212":                   {drivers.Publish, "csi.scaleway.com", "FailedPrecondition", "volume fr-par-1/v1 already attached to another node fr-par-1/s1", explain.BackendDisagrees, "that node a has the volume"},
		"the same by a driver that the file does not know":                            {drivers.Publish, oneDriver, "Internal", "volume v1 already attached to another node fr-par-1/s1", explain.BackendDisagrees, "that node a has the volume"},
		"oracle/oci-cloud-controller-manager v1.35.0 bv_controller.go:735":            {drivers.Publish, "blockvolume.csi.oraclecloud.com", "Internal", "Failed to attach volume to node. The volume is already attached to another node.", explain.BackendDisagrees, "no VolumeAttachment shows"},
		"kubevirt/csi-driver 27b52aa22da7 pkg/service/controller.go:392":              {drivers.Publish, "csi.kubevirt.io", "FailedPrecondition", "volume is attached to another VM", explain.BackendDisagrees, "no VolumeAttachment shows"},
		"kubernetes-sigs/alibaba-cloud-csi-driver 8aacf9009bf9 pkg/disk/cloud.go:162": {drivers.Publish, "diskplugin.csi.alibabacloud.com", "Internal", "SDK.ServerError ErrorCode: InstanceDiskLimitExceeded, Node(i-own) exceed the limit attachments of disk", explain.AttachLimitReached, ""},
		"UpCloudLtd/upcloud-csi v1.2.0 internal/controller/controller.go:279":         {drivers.Publish, "other.csi.example.com", "ResourceExhausted", "The limit of the number of attached devices has been reached", explain.AttachLimitReached, ""},
		"dell/csi-powerstore v2.16.0 pkg/controller/publisher.go:72":                  {drivers.Publish, "csi-powerstore.dellemc.com", "NotFound", "host with k8s node ID 'n1-10.0.0.1' not found", attachment.AttachFailed, "no sign that the volume is lost"},
		"exoscale/exoscale-csi-driver v0.34.3 driver/controller.go:278":               {drivers.Publish, "csi.exoscale.com", "NotFound", "volume 7a1 not found", explain.HandleNotFound, "handle h of PersistentVolume pv"},
		"NetApp/trident 71dd7161840c frontend/csi/volume_publish_manager.go:105":      {drivers.Publish, "csi.trident.netapp.io", "Aborted", "request waited too long for the lock", explain.OperationPending, "open, for at least 10m, and refuses"},
		"kubernetes-sigs/ibm-powervs-block-csi-driver 06d965ddb66f node.go:145":       {drivers.Mount, "powervs.csi.ibm.com", "Aborted", "An operation with the given volume key v1 already exists", explain.OperationPending, "open, for at least 10s, and refuses"},
		"topolvm/topolvm 83e3dcee2fd7 internal/driver/node.go:224":                    {drivers.Mount, "topolvm.io", "Internal", "target device is already formatted with different filesystem: volume=v1, current=xfs, new:ext4", explain.FileSystemMismatch, "current=xfs"},
		"dell/csi-unity 8a247ce2cdc5 service/mount.go:133":                            {drivers.Mount, "csi-unity.dellemc.com", "Internal", "can't change permissions of folder /var/lib/kubelet/v: chmod /var/lib/kubelet/v: operation not permitted", explain.FSGroupRefused, "fsGroup"},
		"kubernetes-sigs/aws-ebs-csi-driver v1.64.0 pkg/driver/controller.go:553":     {drivers.Publish, "ebs.csi.aws.com", "InvalidArgument", "Volume capability not supported", explain.RequestNotSupported, "to attach it to node b"},
		"kubernetes-sigs/cluster-api-provider-aws#4260":                               {drivers.Publish, "ebs.csi.aws.com", "Internal", `Could not attach volume "vol-0475f64ff83e38dd9" to node "i-021bdeb1a8dbf7694": could not attach volume "vol-0475f64ff83e38dd9" to node "i-021bdeb1a8dbf7694": UnauthorizedOperation: You are not authorized to perform this operation. Encoded authorization failure message: QZ9VYB`, explain.DriverNotAuthorized, ": UnauthorizedOperation: You are not"},
		"oracle/oci-cloud-controller-manager#332":                                     {drivers.Publish, oneDriver, "Unknown", "Failed to attach instance to node. error : Service error:NotAuthorizedOrNotFound. Authorization failed or requested resource not found.. http status code: 404.", explain.DriverNotAuthorized, "NotAuthorizedOrNotFound"},
		"kubernetes-sigs/vsphere-csi-driver#2808":                                     {drivers.Mount, "csi.vsphere.vmware.com", "Internal", "error in formatting and mounting volume. Parameters:{v ext4 /var/lib/kubelet/plugins/Kubernetes.io/csi/pv/pvc-1/globalmount [] false} err: mount failed: exit status 32 mounting arguments: -t ext4 -o defaults /dev/disk/by-id/wwn-1 /mnt/globalmount output: mount: /mnt/globalmount: can't read superblock on /dev/sdi", explain.FileSystemDamaged, ": can't read superblock on /dev/sdi"},
		"dell/csm#896": {drivers.Mount, "csi-powermax.dellemc.com", "Internal", "error performing private mount: mount failed: exit status 32 mounting arguments: -t xfs -o nouuid,defaults /dev/d /mnt output: mount: /mnt: mount(2) system call failed: Structure needs cleaning.", explain.FileSystemDamaged, "Structure needs cleaning"},
	} {
		t.Run(source, func(t *testing.T) {
			if e := answered(t, one.call, one.driver, one.code, one.text, nil); e.Reason != one.want || !strings.Contains(e.Summary, one.says) {
				t.Errorf("%s: %s, want %s with %q", e.Reason, e.Summary, one.want, one.says)
			}
		})
	}
}

// TestTextsOfOthers holds the same words from another speaker, or about something else: they are not read so.
func TestTextsOfOthers(t *testing.T) {
	slots := func(limit int32) func(scene) {
		return func(s scene) {
			for _, n := range s.CSINodes {
				for i := range n.Spec.Drivers {
					n.Spec.Drivers[i].Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
				}
			}
		}
	}
	for name, one := range map[string]struct {
		call               drivers.Call
		driver, code, text string
		change             func(scene)
		want               decision.Reason
	}{
		"a cloud gives the driver no answer":                                                       {drivers.Publish, oneDriver, "Internal", "DescribeInstances: request canceled, context deadline exceeded", nil, attachment.AttachFailed},
		"the driver's own deadline":                                                                {drivers.Publish, oneDriver, "DeadlineExceeded", "waiting for disk d1: context deadline exceeded", nil, attachment.AttachFailed},
		"the driver quotes a connection of its own":                                                {drivers.Publish, oneDriver, "Internal", "lvmd: rpc error: code = Unavailable desc = connection refused", nil, attachment.AttachFailed},
		"the driver says that its storage is not there":                                            {drivers.Publish, oneDriver, "Unavailable", "server is locked", nil, attachment.AttachFailed},
		"the driver's own secret":                                                                  {drivers.Publish, oneDriver, "Internal", "get secret of the array: not found", nil, attachment.AttachFailed},
		"a secret that the driver got, in a mount":                                                 {drivers.Mount, "rbd.csi.ceph.com", "Internal", "missing ID field 'userID' in secrets: failed to fetch", nil, explain.MountFailing},
		"the driver looks for a CSINode":                                                           {drivers.Publish, oneDriver, "Internal", `csinodes.storage.k8s.io "b" not found`, nil, attachment.AttachFailed},
		"the driver quotes belay-attacher":                                                         {drivers.Publish, oneDriver, "Internal", explain.MayBeRestored, nil, attachment.AttachFailed},
		"FAILED_PRECONDITION of a migration":                                                       {drivers.Publish, oneDriver, "FailedPrecondition", "Disk d1 requires restriping before being attached to instance i", nil, attachment.AttachFailed},
		"FAILED_PRECONDITION of a node that is not clean":                                          {drivers.Publish, "csi.trident.netapp.io", "FailedPrecondition", "not safe to publish volume to node b", nil, attachment.AttachFailed},
		"RESOURCE_EXHAUSTED of a rate limit":                                                       {drivers.Publish, oneDriver, "ResourceExhausted", "RATE_LIMIT_EXCEEDED", nil, attachment.AttachFailed},
		"RESOURCE_EXHAUSTED of a detach":                                                           {drivers.Unpublish, oneDriver, "ResourceExhausted", "too many", nil, attachment.DetachFailed},
		"RESOURCE_EXHAUSTED with 1 of 16 slots taken":                                              {drivers.Publish, oneDriver, "ResourceExhausted", "no more of them", slots(16), attachment.AttachFailed},
		"attached to this very node, by its ID":                                                    {drivers.Publish, oneDriver, "FailedPrecondition", "volume v1 is already attached to node i-own", nil, attachment.AttachFailed},
		"attached to this very node (trident, 71dd7161840c frontend/csi/controller_server.go:476)": {drivers.Publish, "csi.trident.netapp.io", "AlreadyExists", "this volume is already published to this node with different options", nil, attachment.AttachFailed},
		"a volume that is called quota":                                                            {drivers.Publish, oneDriver, "Internal", "volume team-quota-limit: out of luck", func(s scene) { s.named("team-quota-limit") }, attachment.AttachFailed},
		"a volume of the letter that names are blanked with":                                       {drivers.Publish, oneDriver, "Internal", "volume xxxxx: out of luck, xxxxx", func(s scene) { s.named("xxxxx") }, attachment.AttachFailed},
		"a mount's words in an attach":                                                             {drivers.Publish, oneDriver, "Internal", "image copy: wrong fs type, bad option, bad superblock", nil, attachment.AttachFailed},
		"a share is exported":                                                                      {drivers.Mount, oneDriver, "Internal", "already attached to another node s1", nil, explain.MountFailing},
	} {
		t.Run(name, func(t *testing.T) {
			if e := answered(t, one.call, one.driver, one.code, one.text, one.change); e.Reason != one.want {
				t.Errorf("%s: %s, want %s", e.Reason, e.Summary, one.want)
			}
		})
	}
}

// named gives the volume another handle.
func (s scene) named(handle string) {
	s.Volumes[0].Spec.CSI.VolumeHandle = handle
	s.va.Name = kube.AttachmentName(handle, s.va.Spec.Attacher, "b")
}
