package diagnosis

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// readText is a text of another program and what an operator takes it for.
type readText struct {
	// source is who says it: repository, version, file and line. Kubernetes' own have the version alone.
	source string
	make   func(*scene)
	// about is the pod that waits, unless it says otherwise.
	about Ref
	want  decision.Reason
	// says are words of the summary.
	says []string
	// not is what it must not be taken for: the words are another speaker's.
	not []decision.Reason
}

// TestTextsChosenUnseen: texts that were chosen from the sources without a look at the code that reads them.
func TestTextsChosenUnseen(t *testing.T) {
	for kind, texts := range map[string]map[string]readText{
		"volumes": volumeTexts, "containers": containerTexts, "iSCSI and FC": blockTexts, "scheduler": schedulerTexts,
		"claims": claimTexts, "drivers": driverTexts, "another speaker": otherSpeakers,
	} {
		for name, text := range texts {
			t.Run(kind+"/"+name, func(t *testing.T) {
				s := newScene()
				text.make(&s)
				if text.about == (Ref{}) {
					text.about = theWaiter
				}
				e, err := Explain(s.Snapshot, text.about)
				if err != nil {
					t.Fatal(err)
				}
				if text.want != "" && e.Reason != text.want {
					t.Errorf("%s is taken for %s: %s", text.source, e.Reason, e.Summary)
				}
				for _, word := range text.says {
					if !strings.Contains(strings.ToLower(e.Summary), strings.ToLower(word)) {
						t.Errorf("%s: %q is not in: %s", text.source, word, e.Summary)
					}
				}
				for i := range e.Findings {
					if slices.Contains(text.not, e.Findings[i].Reason) {
						t.Errorf("%s is taken for %s: %s", text.source, e.Findings[i].Reason, e.Findings[i].Summary)
					}
				}
			})
		}
	}
}

// reports has kubelet report a text about the volume of the waiter.
func reports(volume corev1.VolumeSource, text string) func(*scene) {
	return func(s *scene) { s.kubelet(volume, "FailedMount", text) }
}

// inTree makes the volume of the claim one that has no CSI driver. Kubelet begins with one that is connected by the node, iSCSI and FC, when the
// controller has reported it as attached (k/k v1.36.3 pkg/volume/util/operationexecutor/operation_generator.go:1404).
func inTree(source corev1.PersistentVolumeSource, text string) func(*scene) {
	return func(s *scene) {
		s.mounts()
		s.Attachments, s.CSINodes, s.Volumes[0].Spec.PersistentVolumeSource = nil, nil, source
		s.Nodes[1].Status.VolumesAttached, s.Nodes[1].Status.VolumesInUse = nil, nil
		if key, ok := kube.KeyOfVolume(s.Volumes[0]); ok {
			s.Nodes[1].Status.VolumesAttached = []corev1.AttachedVolume{{Name: corev1.UniqueVolumeName(kube.UniqueVolumeName(key.Driver, key.Handle))}}
		}
		s.says("", "Pod", "FailedMount", text, time.Second)
	}
}

// container has a container of the waiter wait, which has the volume mounted.
func container(volume *corev1.VolumeSource, reason, text string) func(*scene) {
	return func(s *scene) {
		s.mounts()
		s.waiter.CreationTimestamp = metav1.NewTime(s.Now.Add(-10 * time.Minute))
		if volume != nil {
			s.waiter.Spec.Volumes[0].VolumeSource = *volume
		}
		s.waiter.Spec.Containers = []corev1.Container{{Name: "app", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/data"}}}}
		s.waiter.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: text}}}}
	}
}

// unscheduled has the scheduler say why it finds no node.
func unscheduled(text string) func(*scene) {
	return func(s *scene) { s.unscheduled(text) }
}

// unprovisioned has a claim without a volume, about which a component emits an event.
func unprovisioned(component, kind, reason, text string) func(*scene) {
	return func(s *scene) {
		s.unbound()
		s.ofClaim(component, kind, reason, text, time.Minute)
	}
}

// attaches has a driver refuse to attach.
func attaches(driver, code, text string) func(*scene) {
	return func(s *scene) { s.refuses(driver, code, text) }
}

// mountsBy has a driver refuse to mount.
func mountsBy(code, text string) func(*scene) {
	return func(s *scene) { s.mountFails(code, text) }
}

// detachesBy has a driver refuse to detach the volume from the node where it was.
func detachesBy(driver, code, text string) func(*scene) {
	return func(s *scene) {
		s.detaches(5*time.Minute, "rpc error: code = "+code+" desc = "+text)
		s.Volumes[0].Spec.CSI.Driver, s.va.Spec.Attacher, s.Drivers[0].Name = driver, driver, driver
		s.va.Name, s.va.Finalizers = kube.AttachmentName("h", driver, "a"), []string{kube.AttacherFinalizer(driver)}
	}
}

var (
	ofSecret    = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "tls"}}
	ofProjected = corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
		ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("corp-ca"), Path: "ca.pem"},
	}}}}
	ofNFS   = corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nas.example.com", Path: "/a"}}
	ofFlex  = corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "example.com/disk"}}
	ofImage = corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "registry.example.com/model:2"}}
	ofLocal = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/disks/ssd1"}}
	ofISCSI = corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
		TargetPortal: "10.0.0.5:3260", IQN: "iqn.2020-01.com.example:s1", Lun: 0, SecretRef: &corev1.SecretReference{Name: "chap", Namespace: "san"},
	}}
	ofFC = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd1"}, Lun: new(int32(3))}}
)

// volumeTexts are those of kubelet about volumes that are no claims of CSI drivers.
var volumeTexts = map[string]readText{
	"a key of a ConfigMap": {
		source: "1.36.3 pkg/volume/configmap/configmap.go:292",
		make:   reports(configMap("app"), setUp("configmap references non-existent config key: app.yaml")),
		want:   explain.VolumeSourceMissing, says: []string{"app.yaml", "volume v"},
	},
	"a key of a Secret": {
		source: "1.34.2 pkg/volume/secret/secret.go:280",
		make:   reports(ofSecret, setUp("references non-existent secret key: tls.crt")),
		want:   explain.VolumeSourceMissing, says: []string{"tls.crt", "volume v"},
	},
	"a ClusterTrustBundle": {
		source: "1.35.0 pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go:216",
		make:   reports(ofProjected, setUp(`while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "corp-ca" not found`)),
		want:   explain.VolumeSourceMissing, says: []string{"corp-ca"},
	},
	"a directory that cannot be made": {
		source: "1.36.3 pkg/volume/hostpath/host_path.go:505",
		make:   reports(hostPath("/srv/data"), setUp("mkdir /srv/data: read-only file system")),
		want:   explain.NodePathUnusable, says: []string{"/srv/data", "read-only"},
	},
	"a server without an address": {
		source: "nfs-utils 2.8.3 utils/mount/network.c, k8s.io/mount-utils v0.36.3 mount_linux.go:272",
		make: reports(ofNFS, setUp("mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs nas.example.com:/a /var/lib/kubelet/pods/0f1/volumes/kubernetes.io~nfs/v\n"+
			"Output: mount.nfs: Failed to resolve server nas.example.com: Name or service not known\n")),
		want: explain.StorageServerFailing, says: []string{"nas.example.com", "Name or service not known"},
	},
	"a FlexVolume's driver": {
		source: "1.34.2 pkg/volume/flexvolume/driver-call.go:268",
		make:   reports(ofFlex, setUp("mount command failed, status: Failure, reason: unable to find image vol-17")),
		want:   explain.MountFailing, says: []string{"vol-17", "volume v"},
	},
	"a local disk": {
		source: "1.36.3 pkg/volume/util/hostutil/hostutil.go:84",
		make:   inTree(ofLocal, `MountVolume.NewMounter initialization failed for volume "pv" : path "/mnt/disks/ssd1" does not exist`),
		want:   explain.NodePathUnusable, says: []string{"/mnt/disks/ssd1", "node b"},
	},
}

// containerTexts are of what a pod waits for when its volumes are mounted.
var containerTexts = map[string]readText{
	"a sandbox": {
		source: "1.36.3 pkg/kubelet/kuberuntime/kuberuntime_sandbox.go, projectcalico/calico v3.30 cni-plugin",
		make: func(s *scene) {
			s.kubelet(configMap("app"), "FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "1f": `+
				`plugin type="calico" failed (add): error getting ClusterInformation: connection is unauthorized: Unauthorized`)
		},
		want: explain.NotVolume, says: []string{"network"},
	},
	"an image": {
		source: "1.36.3 pkg/kubelet/images/image_manager.go",
		make: container(nil, "ImagePullBackOff", `Back-off pulling image "registry.example.com/app:2": ErrImagePull: failed to copy: httpReadSeeker: failed open: `+
			`unexpected status code https://registry.example.com/v2/app/blobs/sha256:1f: 429 Too Many Requests`),
		want: explain.NotVolume, says: []string{"image"},
	},
	"a key of an environment variable": {
		source: "1.36.3 pkg/kubelet/kubelet_pods.go:922",
		make:   container(nil, "CreateContainerConfigError", "couldn't find key DATABASE_URL in Secret ns/app"),
		want:   explain.NotVolume, says: []string{"DATABASE_URL"},
	},
	"a user": {
		source: "1.35.0 pkg/kubelet/kuberuntime/security_context.go",
		make:   container(nil, "CreateContainerConfigError", `container has runAsNonRoot and image will run as root (pod: "waiter_ns(waiter)", container: app)`),
		want:   explain.NotVolume, says: []string{"runAsNonRoot"},
	},
	"a subPath": {
		source: "1.36.3 pkg/kubelet/kubelet_pods.go:372",
		make:   container(nil, "CreateContainerConfigError", `failed to prepare subPath for volumeMount "v" of container "app"`),
		want:   explain.ContainerMountFailing, says: []string{"volume v", "app"},
	},
	"a program of the image": {
		source: "opencontainers/runc v1.3.0 libcontainer/init_linux.go, containerd v2.1.0",
		make: container(nil, "RunContainerError", `failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: `+
			`unable to start container process: error during container init: exec: "/data/run": stat /data/run: no such file or directory`),
		want: explain.NotVolume, says: []string{"/data/run"},
	},
	"a label": {
		source: "containerd v2.1.0 internal/cri/opts/spec_linux_opts.go",
		make: container(&ofNFS, "CreateContainerError", `failed to generate container "b6" spec: failed to generate spec: relabel "/var/lib/kubelet/pods/0f1/volumes/kubernetes.io~nfs/v" `+
			`with "system_u:object_r:container_file_t:s0:c1,c2" failed: lsetxattr /var/lib/kubelet/pods/0f1/volumes/kubernetes.io~nfs/v/db: permission denied`),
		want: explain.ContainerMountFailing, says: []string{"volume v", "permission denied"},
	},
	"the image of a volume": {
		source: "1.36.3 pkg/kubelet/kuberuntime/kuberuntime_manager.go:1866",
		make:   container(&ofImage, "ErrImagePull", `failed to pull and unpack image "registry.example.com/model:2": failed to resolve reference "registry.example.com/model:2": pull access denied`),
		want:   explain.MountFailing, says: []string{"registry.example.com/model:2", "volume v"},
	},
}

// blockTexts are those of the iSCSI and FC volumes of kubelet.
var blockTexts = map[string]readText{
	"no way to the portal": {
		source: "1.34.2 pkg/volume/iscsi/iscsi_util.go:352, :437",
		make: inTree(ofISCSI, waitForAttach("failed to get any path for iscsi disk, last err seen:\niscsi: failed to sendtargets to portal 10.0.0.5:3260 output: "+
			"iscsiadm: cannot make connection to 10.0.0.5: No route to host\niscsiadm: connection login retries (reopen_max) 5 exceeded\n"+
			"iscsiadm: Could not perform SendTargets discovery: encountered connection failure\n, err exit status 4")),
		want: explain.StorageServerFailing, says: []string{"10.0.0.5", "No route to host"},
	},
	"a login that is refused": {
		source: "1.36.3 pkg/volume/iscsi/iscsi_util.go:368, :437",
		make: inTree(ofISCSI, waitForAttach("failed to get any path for iscsi disk, last err seen:\niscsi: failed to attach disk: Error: "+
			"iscsiadm: Could not login to [iface: default, target: iqn.2020-01.com.example:s1, portal: 10.0.0.5,3260].\n"+
			"iscsiadm: initiator reported error (24 - iSCSI login failed due to authorization failure)\niscsiadm: Could not log into all portals\n (exit status 24)")),
		want: explain.StorageServerFailing, says: []string{"authorization failure"},
	},
	"no iscsiadm": {
		source: "1.36.3 pkg/volume/iscsi/iscsi_util.go:295, k8s.io/utils exec/exec.go",
		make:   inTree(ofISCSI, waitForAttach("executable file not found in $PATH")),
		want:   explain.NodeProgramMissing, says: []string{"iscsi", "node b"},
	},
	"no CHAP secret": {
		source: "1.36.3 pkg/volume/iscsi/iscsi.go:641",
		make:   inTree(ofISCSI, `MountVolume.NewMounter initialization failed for volume "pv" : couldn't get secret san/chap error: secrets "chap" not found`),
		want:   explain.VolumeSourceMissing, says: []string{"chap"},
	},
	"no disk": {
		source: "1.34.2 pkg/volume/fc/fc_util.go:241",
		make:   inTree(ofFC, waitForAttach("no fc disk found")),
		want:   explain.StorageServerFailing, says: []string{"Fibre Channel disk", "node b"},
	},
}

// schedulerTexts are those of the scheduler about volumes.
var schedulerTexts = map[string]readText{
	"affinity": {
		source: "1.31.4 pkg/scheduler/framework/plugins/volumebinding/binder.go:68",
		make: func(s *scene) {
			s.zone(corev1.LabelTopologyZone, "z1", "z2", "z2")
			s.unscheduled("0/3 nodes are available: 1 Insufficient memory, 2 node(s) had volume node affinity conflict. " +
				"preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.")
		},
		want: explain.VolumeTopologyConflict, says: []string{"volume pv"},
	},
	"zone": {
		source: "1.32.3 pkg/scheduler/framework/plugins/volumezone/volume_zone.go",
		make:   unscheduled("0/2 nodes are available: 2 node(s) had no available volume zone. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."),
		want:   explain.VolumeTopologyConflict,
	},
	"count": {
		source: "1.33.2 pkg/scheduler/framework/plugins/nodevolumelimits/csi.go:43",
		make:   unscheduled("0/2 nodes are available: 2 node(s) exceed max volume count. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."),
		want:   explain.AttachLimitReached,
	},
	"one pod": {
		source: "1.35.0 pkg/scheduler/framework/plugins/volumerestrictions/volume_restrictions.go:60",
		make: func(s *scene) {
			s.Volumes[0].Spec.AccessModes[0] = corev1.ReadWriteOncePod
			s.unscheduled("0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod. " +
				"preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.")
		},
		want: explain.ReadWriteOncePodInUse, says: []string{"holder"},
	},
	"a driver that is not installed": {
		source: "1.37.2 pkg/scheduler/framework/plugins/nodevolumelimits/csi.go:303",
		make: unscheduled("0/2 nodes are available: 2 disk.example.com CSI driver is not installed on the node. " +
			"preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."),
		want: explain.DriverNotOnNode, says: []string{"disk.example.com"},
	},
	"a claim that ends": {
		source: "1.36.3 pkg/scheduler/framework/plugins/volumebinding/volume_binding.go:345",
		make: func(s *scene) {
			s.Pods = []*corev1.Pod{s.waiter}
			s.Claims[0].DeletionTimestamp, s.Claims[0].Finalizers = &metav1.Time{Time: s.Now.Add(-5 * time.Minute)}, []string{"kubernetes.io/pvc-protection"}
			s.unscheduled(`0/2 nodes are available: persistentvolumeclaim "claim" is being deleted. not found`)
		},
		want: explain.ClaimTerminating, says: []string{"claim"},
	},
	"a claim that was not provisioned": {
		source: "1.34.2 pkg/scheduler/framework/plugins/volumebinding/binder.go:681",
		make: func(s *scene) {
			s.unbound() // a provisioner that gives the node back has emitted this before
			s.ofClaim(oneDriver+"_csi-0_1f", "Warning", "ProvisioningFailed", "rpc error: code = ResourceExhausted desc = no space in pool p1", time.Minute)
			s.unscheduled(`running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "claim"`)
		},
		want: explain.ProvisioningFailed, says: []string{"claim"},
	},
}

// claimTexts are events of claims.
var claimTexts = map[string]readText{
	"a source that ends": {
		source: "kubernetes-csi/external-provisioner v6.3.0 pkg/controller/controller.go:701, :1208", about: theClaim,
		make: unprovisioned(oneDriver+"_csi-0_1f", "Warning", "ProvisioningFailed", `failed to provision volume with StorageClass "fast": `+
			`error getting handle for DataSource Type PersistentVolumeClaim by Name base: the PVC DataSource base is currently being deleted`),
		want: explain.ProvisioningFailed, says: []string{"base"},
	},
	"no topology": {
		source: "kubernetes-csi/external-provisioner v6.3.0 pkg/controller/controller.go:737, topology.go:424", about: theClaim,
		make: unprovisioned(oneDriver+"_csi-0_1f", "Warning", "ProvisioningFailed", `failed to provision volume with StorageClass "fast": `+
			`error generating accessibility requirements: topologyKeys [topology.example.com/zone] were not found on any nodes`),
		want: explain.ProvisioningFailed, says: []string{"topology"},
	},
	"no space": {
		source: "topolvm/topolvm 83e3dce internal/driver/controller.go:263", about: theClaim,
		make: unprovisioned(oneDriver+"_csi-0_1f", "Warning", "ProvisioningFailed", `failed to provision volume with StorageClass "fast": `+
			`rpc error: code = ResourceExhausted desc = can not find enough volume space 1073741824`),
		want: explain.ProvisioningFailed, says: []string{"space"},
	},
	"a block volume": {
		source: "sig-storage-lib-external-provisioner v13.0.0 controller/controller.go:1324", about: theClaim,
		make: unprovisioned(oneDriver+"_csi-0_1f", "Warning", "ProvisioningFailed", "disk.example.com does not support block volume provisioning"),
		want: explain.ProvisioningFailed, says: []string{"block"},
	},
	"a volume of another claim": {
		source: "1.37.2 pkg/controller/volume/persistentvolume/pv_controller.go:470", about: theClaim,
		make: func(s *scene) {
			s.Pods, s.Claims[0].UID, s.Claims[0].Status.Phase = nil, "claim", corev1.ClaimPending
			s.Volumes[0].Spec.ClaimRef.Name, s.Volumes[0].Status.Phase = "other", corev1.VolumeBound
			s.Attachments = nil
			s.ofClaim("persistentvolume-controller", "Warning", "FailedBinding", `volume "pv" already bound to a different claim.`, time.Second)
		},
		want: explain.VolumeMismatch, says: []string{"pv", "other"},
	},
	"a volume that is lost": {
		source: "1.36.3 pkg/controller/volume/persistentvolume/pv_controller.go:514", about: theClaim,
		make: func(s *scene) {
			s.Pods, s.Volumes, s.Attachments = nil, nil, nil
			s.Claims[0].UID, s.Claims[0].Status.Phase = "claim", corev1.ClaimLost
			s.ofClaim("persistentvolume-controller", "Warning", "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!", time.Hour)
		},
		want: explain.PersistentVolumeMissing, says: []string{"pv"},
	},
	"a limit of the cloud": {
		source: "oracle/oci-cloud-controller-manager 1100ac3 pkg/csi/driver/bv_controller.go:492", about: theClaim,
		make: unprovisioned(oneDriver+"_csi-0_1f", "Warning", "ProvisioningFailed", `failed to provision volume with StorageClass "fast": rpc error: code = Internal desc = `+
			`New volume creation failed Error returned by Blockstorage Service. Http Status Code: 400. Error Code: LimitExceeded. Opc request id: 8e1. `+
			`Message: The following service limits were exceeded: total-storage-gb. Request a service limit increase from the service limits page in the console.`),
		want: explain.ProvisioningFailed, says: []string{"total-storage-gb"},
	},
}

// driverTexts are those of CSI drivers.
var driverTexts = map[string]readText{
	"attached elsewhere, with a code of a server that is away": {
		source: "linode/linode-blockstorage-csi-driver def6be4 internal/driver/controllerserver_helper.go:795",
		make:   attaches("linodebs.csi.linode.com", "Unavailable", "attach volume: [400] Volume 1042 is already attached"),
		want:   explain.BackendDisagrees, says: []string{"Volume 1042 is already attached"},
	},
	"attached to the wrong node": {
		source: "UpCloudLtd/upcloud-csi 705a0d3 internal/controller/controller.go:262",
		make:   attaches("storage.csi.upcloud.com", "FailedPrecondition", `volume "h" is attached to the wrong node (00f1), detach the volume to fix it`),
		want:   explain.BackendDisagrees, says: []string{"00f1"},
	},
	"published to another host": {
		source: "dell/csi-unity 8a247ce service/controller.go:1658",
		make:   attaches("csi-unity.dellemc.com", "Aborted", " runid=12 Volume has been published to a different host already."),
		want:   explain.BackendDisagrees,
	},
	"not found": {
		source: "piraeusdatastore/linstor-csi 44aa98a pkg/driver/driver.go:830",
		make:   attaches("linstor.csi.linbit.com", "NotFound", "ControllerPublishVolume failed for h: volume not present in storage backend"),
		want:   explain.HandleNotFound, says: []string{"volume pv"},
	},
	"wrong zone": {
		source: "kubernetes/cloud-provider-openstack c453fb7 pkg/csi/cinder/controllerserver.go:335, openstack/nova nova/volume/cinder.py check_availability_zone",
		make: attaches("cinder.csi.openstack.org", "Internal", `[ControllerPublishVolume] Attach Volume failed with error failed to attach h volume to 7c1 compute: `+
			`Expected HTTP response code [200] when accessing [POST https://nova.example.com/v2.1/servers/7c1/os-volume_attachments], but got 400 instead: `+
			`{"badRequest": {"code": 400, "message": "Invalid volume: Instance 186 and volume h are not in the same availability_zone. Instance is in AZ1. Volume is in AZ3"}}`),
		want: explain.VolumeInOtherZone, says: []string{"zone"},
	},
	"too many volumes": {
		source: "hetznercloud/csi-driver 53ead0b internal/driver/controller.go:271, internal/volumes/service.go:16",
		make:   attaches("csi.hetzner.cloud", "ResourceExhausted", "failed to publish volume: max number of attachments per server reached"),
		want:   explain.AttachLimitReached, says: []string{"node b"},
	},
	"credentials": {
		source: "scaleway/scaleway-csi e2edd7a pkg/driver/controller.go:190, scaleway-sdk-go v1.0.0-beta.36 scw/errors.go",
		make:   attaches("csi.scaleway.com", "Internal", "unable to get volume to publish: scaleway-sdk-go: insufficient permissions: read block_volume"),
		want:   explain.DriverNotAuthorized, says: []string{"insufficient permissions"},
	},
	"busy": {
		source: "vultr/vultr-csi 4f2281b driver/controller.go:302",
		make:   attaches("block.csi.vultr.com", "Aborted", `cannot attach volume to node: {"error":"Server is currently locked","status":400}`),
		want:   explain.OperationPending, says: []string{"locked"},
	},
	"fsck": {
		source: "hpe-storage/csi-driver 94c8cd1 pkg/driver/node_server.go:486",
		make:   mountsBy("Internal", "Filesystem issues have been detected and will not be repaired for the volume h as the fsRepair parameter is not set in the StorageClass"),
		want:   explain.FileSystemDamaged, says: []string{"fsRepair"},
	},
	"wrong file system": {
		source: "exoscale/exoscale-csi-driver 6206a6f driver/node.go:107, k8s.io/mount-utils v0.36.3 mount_linux.go:272, util-linux 2.41 libmount",
		make: mountsBy("Internal", `format and mount device from ("/dev/disk/by-id/virtio-9f") to ("/var/lib/kubelet/plugins/kubernetes.io/csi/csi.exoscale.com/1f/globalmount") `+
			`with fstype ("ext4") and options (["defaults"]): mount failed: exit status 32`+"\nMounting command: mount\nMounting arguments: -t ext4 -o defaults /dev/vdc /mnt\n"+
			"Output: mount: /mnt: wrong fs type, bad option, bad superblock on /dev/vdc, missing codepage or helper program, or other error.\n"),
		want: explain.FileSystemMismatch, says: []string{"wrong fs type"},
	},
	"a target that does not answer": {
		source: "SynologyOpenSource/synology-csi 2807900 pkg/driver/nodeserver.go:207",
		make: mountsBy("Internal", "Failed to login with target iqn [iqn.2000-01.com.synology:k8s-csi-pvc-1], err: iscsiadm: Could not login to [iface: default, "+
			"target: iqn.2000-01.com.synology:k8s-csi-pvc-1, portal: 10.0.0.9,3260].\niscsiadm: initiator reported error (8 - connection timed out)\n (exit status 8)"),
		want: explain.StorageServerFailing, says: []string{"connection timed out"},
	},
	"a detach from a machine that is busy": {
		source: "hetznercloud/csi-driver 53ead0b internal/driver/controller.go:323, internal/volumes/service.go:17",
		make:   detachesBy("csi.hetzner.cloud", "Unavailable", "failed to unpublish volume: server is locked"),
		want:   explain.OperationPending, says: []string{"server is locked"},
	},
	"a detach without rights": {
		source: "scaleway/scaleway-csi e2edd7a pkg/driver/controller.go:271",
		make:   detachesBy("csi.scaleway.com", "Internal", "failed to detach volume: scaleway-sdk-go: insufficient permissions: write instance_server"),
		want:   explain.DriverNotAuthorized, says: []string{"insufficient permissions"},
	},
}

// otherSpeakers are words of one component in the mouth of another.
var otherSpeakers = map[string]readText{
	"a driver's own ConfigMap": {
		source: "of a driver",
		make: func(s *scene) {
			s.mounts()
			s.says("", "Pod", "FailedMount", setUpPV(`rpc error: code = Internal desc = failed to read cluster: configmap "ceph-csi-config" not found`), time.Second)
		},
		want: explain.MountFailing, not: []decision.Reason{explain.VolumeSourceMissing},
	},
	"an event of an application": {
		source: "of a tenant",
		make: func(s *scene) {
			s.kubelet(configMap("app"), "FailedMount", setUp(`configmap "app" not found`))
			s.Events[len(s.Events)-1].Source.Component = "my-app"
		},
		want: explain.Mounting, says: []string{"node b is starting pod waiter"}, not: []decision.Reason{explain.VolumeSourceMissing, explain.MountFailing},
	},
	"a taint with a name that sounds like a volume's": {
		source: "1.36.3 pkg/scheduler/framework/plugins/nodeports/node_ports.go, tainttoleration/taint_toleration.go",
		make: unscheduled("0/2 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 1 node(s) had untolerated taint {volume-node-affinity-conflict: exceed-max-volume-count}. " +
			"preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."),
		want: explain.PodUnschedulable, not: []decision.Reason{explain.VolumeTopologyConflict, explain.AttachLimitReached},
	},
	"a resource claim that ends": {
		source: "1.36.3 pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go:415",
		make:   unscheduled(`0/2 nodes are available: resourceclaim "claim" is being deleted. not found`),
		want:   explain.PodUnschedulable, not: []decision.Reason{explain.ClaimTerminating},
	},
	"a driver that counts": {
		source: "of a driver", about: theClaim,
		make: unprovisioned(oneDriver+"_csi-0_1f", "Warning", "ProvisioningFailed", `failed to provision volume with StorageClass "fast": `+
			`rpc error: code = ResourceExhausted desc = pool ssd: node(s) exceed max volume count`),
		want: explain.ProvisioningFailed, not: []decision.Reason{explain.AttachLimitReached},
	},
	"a machine that is not found": {
		source: "kubevirt/csi-driver 27b52aa pkg/service/controller.go:409",
		make:   attaches("csi.kubevirt.io", "NotFound", "vm worker-2 not found"),
		not:    []decision.Reason{explain.HandleNotFound},
	},
	"a deadline of the cloud": {
		source: "of a driver",
		make:   attaches("csi.example.com", "Internal", `Post "https://api.example.com/v1/attach": context deadline exceeded`),
		want:   attachment.AttachFailed, not: []decision.Reason{explain.DriverUnavailable, attachment.AttachUnanswered},
	},
	"a driver's own secret": {
		source: "of a driver",
		make:   attaches("csi.example.com", "Internal", `failed to get credentials: secrets "api-token" not found`),
		not:    []decision.Reason{explain.SecretMissing, explain.HandleNotFound},
	},
	"the ConfigMap of an environment variable": {
		source: "1.36.3 pkg/kubelet/kubelet_pods.go makeEnvironmentVariables",
		make: func(s *scene) {
			source := configMap("files")
			container(&source, "CreateContainerConfigError", `configmap "app" not found`)(s)
		},
		want: explain.NotVolume, not: []decision.Reason{explain.VolumeSourceMissing},
	},
	"a quota of the registry": {
		source: "containerd v2.1.0 core/remotes/docker",
		make: container(nil, "ErrImagePull", `failed to pull and unpack image "registry.example.com/app:2": failed to extract layer sha256:1f: write /var/lib/containerd/tmpmounts/m1/a: disk quota exceeded: `+
			`no space left on device`),
		want: explain.NotVolume, not: []decision.Reason{explain.StorageQuotaReached, explain.NotEnoughStorage},
	},
	"an event of a claim by another operator": {
		source: "of a tenant", about: theClaim,
		make: unprovisioned("backup-operator", "Warning", "ProvisioningFailed", `rpc error: code = ResourceExhausted desc = quota exceeded`),
		not:  []decision.Reason{explain.ProvisioningFailed, explain.StorageQuotaReached},
	},
	"a pod of the node that mounts in a pod": {
		source: "of a tenant",
		make: func(s *scene) {
			s.mounts()
			s.says("", "Pod", "BackOff", `Back-off restarting failed container app: MountVolume.SetUp failed for volume "pv" : mount failed: wrong fs type`, time.Second)
		},
		not: []decision.Reason{explain.FileSystemMismatch, explain.MountFailing},
	},
}
