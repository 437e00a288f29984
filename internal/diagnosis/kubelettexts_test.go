package diagnosis

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/internal/decision"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
)

// kubeletText is one text of an event or of a container's status about the volume "v" of the pod "app-0" on node "n1", and what it means.
type kubeletText struct {
	source          string // the version of Kubernetes, file and line that writes it, or the program that kubelet runs
	volume          corev1.VolumeSource
	pv              *corev1.PersistentVolumeSource // what the claim "claim" is bound to, as "pv"
	reason, message string                         // of the event; of a container's state if container is set
	from            string                         // kubelet if empty
	container       bool
	also            func(*Snapshot, *corev1.Pod) // what else is so
	want            decision.Reason
	says            []string // parts of the summary
	next            string   // part of the first step
}

func configMap(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

func secret(name string) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}
}

func hostPath(path string) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
}

func projected(configMap, secret string) corev1.VolumeSource {
	v := &corev1.ProjectedVolumeSource{}
	v.Sources = append(v.Sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}})
	v.Sources = append(v.Sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: secret}}})
	return corev1.VolumeSource{Projected: v}
}

func inlineCSI(driver string) corev1.VolumeSource {
	return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}
}

var ofClaim = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}

func onLocal(path string) *corev1.PersistentVolumeSource {
	return &corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}}
}

func onNFS() *corev1.PersistentVolumeSource {
	return &corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nas", Path: "/a"}}
}

func onCSI() *corev1.PersistentVolumeSource {
	return &corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: oneDriver, VolumeHandle: "h"}}
}

func onISCSI() *corev1.PersistentVolumeSource {
	return &corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.1.1.1:3260", IQN: "iqn.2026-01.com.example:disk", Lun: 1}}
}

func onFC() *corev1.PersistentVolumeSource {
	return &corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd1"}, Lun: new(int32(0))}}
}

// snapshot is a cluster in which the pod has waited for ten minutes, the volume is attached, and its text is an event of one minute ago.
func (c *kubeletText) snapshot() (*Snapshot, *corev1.Pod) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(now.Add(-ago)) }
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "app-0", UID: "app-0", CreationTimestamp: at(10 * time.Minute)},
		Spec:       corev1.PodSpec{NodeName: "n1", Volumes: []corev1.Volume{{Name: "v", VolumeSource: c.volume}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
		}}},
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", CreationTimestamp: at(time.Hour), Annotations: map[string]string{kube.ManagedAttachAnnotation: "true"}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: at(time.Hour)}}
	s := &Snapshot{
		Now: now, AllNamespaces: true, Whole: []Resource{Pods, Claims, Volumes, Attachments, Nodes, Drivers, CSINodes, Leases}, Pods: []*corev1.Pod{pod}, Nodes: []*corev1.Node{node},
		CSINodes: []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: oneDriver}}}}},
	}
	if c.pv != nil {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
		pv.Spec.PersistentVolumeSource, pv.Spec.AccessModes = *c.pv, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim"}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
		s.Volumes, s.Claims = []*corev1.PersistentVolume{pv}, []*corev1.PersistentVolumeClaim{claim}
		if key, ok := kube.KeyOfVolume(pv); ok {
			unique := corev1.UniqueVolumeName(kube.UniqueVolumeName(key.Driver, key.Handle))
			node.Status.VolumesAttached, node.Status.VolumesInUse = []corev1.AttachedVolume{{Name: unique}}, []corev1.UniqueVolumeName{unique}
			if !kube.NoAttacher(key.Driver) {
				va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(key.Handle, key.Driver, "n1"), CreationTimestamp: at(9 * time.Minute)}}
				va.Spec = storagev1.VolumeAttachmentSpec{Attacher: key.Driver, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv")}}
				va.Status.Attached = true
				s.Attachments = append(s.Attachments, va)
			}
		}
	}
	if c.container {
		pod.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: c.reason, Message: c.message}
	} else if c.reason != "" {
		s.Events = append(s.Events, eventOf(pod, c.from, c.reason, c.message, at(time.Minute)))
	}
	if c.also != nil {
		c.also(s, pod)
	}
	return s, pod
}

func eventOf(pod *corev1.Pod, from, reason, message string, at metav1.Time) *corev1.Event {
	e := &corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, Type: corev1.EventTypeWarning, LastTimestamp: at}
	if e.Reason, e.Message, e.Source.Component = reason, message, "kubelet"; from != "" {
		e.Source.Component = from
	}
	return e
}

// check compares what is explained of the pod with what the text means.
func (c *kubeletText) check(t *testing.T) {
	t.Helper()
	s, _ := c.snapshot()
	c.compare(t, s)
}

// checkFew is check, and again with the rights to get and list pods, claims and events of one namespace only.
func (c *kubeletText) checkFew(t *testing.T) {
	t.Helper()
	c.check(t)
	s, _ := c.snapshot()
	withFewRights(s)
	c.compare(t, s)
}

func withFewRights(s *Snapshot) {
	s.AllNamespaces, s.Namespaces, s.Whole = false, []string{"ns"}, nil
	s.Nodes, s.Volumes, s.Attachments, s.CSINodes, s.Drivers, s.Leases = nil, nil, nil, nil, nil, nil
	s.Absent = []Ref{PodsIn("ns"), ClaimsIn("ns")}
	for _, r := range []Resource{Nodes, Volumes, Attachments, CSINodes, Drivers, Leases} {
		s.Unread = append(s.Unread, Unread{Ref: Ref{Resource: r}, Verb: "list", Forbidden: true, Message: "forbidden"})
	}
}

func (c *kubeletText) compare(t *testing.T, s *Snapshot) {
	t.Helper()
	e, err := Explain(s, Ref{Pods, "ns", "app-0"})
	if err != nil {
		t.Fatal(err)
	}
	if e.Reason != c.want {
		t.Fatalf("%s: %s, want %s", e.Reason, e.Summary, c.want)
	}
	for _, part := range c.says {
		if !strings.Contains(e.Summary, part) {
			t.Errorf("%q does not say %q", e.Summary, part)
		}
	}
	if c.next == "" {
		return
	}
	if next := e.Findings[0].Next; len(next) == 0 || !strings.Contains(next[0].Text+" "+next[0].Command, c.next) {
		t.Errorf("the first step of %+v is not %q", next, c.next)
	}
}

func setUp(cause string) string { return `MountVolume.SetUp failed for volume "v" : ` + cause }

func setUpPV(cause string) string { return `MountVolume.SetUp failed for volume "pv" : ` + cause }

func waitForAttach(cause string) string {
	return `MountVolume.WaitForAttach failed for volume "pv" : ` + cause
}

func notProcessed(cause string) string {
	return "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: " + cause
}

// TestTextsOfPlainVolumes: no volume is invisible. Each text is kubelet's of one of the supported versions, or of a program that it runs.
func TestTextsOfPlainVolumes(t *testing.T) {
	for name, c := range map[string]kubeletText{
		"a key of a ConfigMap": {
			source: "1.34.2 pkg/volume/configmap/configmap.go:292", volume: configMap("app"), reason: "FailedMount", message: setUp("configmap references non-existent config key: app.yaml"),
			want: explain.VolumeSourceMissing, says: []string{"volume v", "ConfigMap app", "node n1", "key app.yaml"}, next: "kubectl describe configmap app -n ns",
		},
		"a key of a Secret": {
			source: "1.31.4 pkg/volume/secret/secret.go:278", volume: secret("tls"), reason: "FailedMount", message: setUp("references non-existent secret key: tls.crt"),
			want: explain.VolumeSourceMissing, says: []string{"volume v", "Secret tls", "key tls.crt"}, next: "kubectl describe secret tls -n ns",
		},
		"two objects of a projected volume": {
			source: "1.31.4 pkg/volume/projected/projected.go:390", volume: projected("one", "two"), reason: "FailedMount", message: setUp(`[configmap "one" not found, secret "two" not found]`),
			want: explain.VolumeSourceMissing, says: []string{"volume v", "ConfigMap one", "namespace ns"}, next: "kubectl get configmaps -n ns",
		},
		"a ServiceAccount": {
			source: "1.34.2 pkg/kubelet/token/token_manager.go:119", volume: projected("kube-root-ca.crt", "x"), reason: "FailedMount", message: setUp(`failed to fetch token: serviceaccounts "builder" not found`),
			want: explain.VolumeSourceMissing, says: []string{"ServiceAccount builder"}, next: "kubectl get serviceaccounts -n ns",
		},
		"a ClusterTrustBundle": {
			source: "1.34.2 pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go:269", volume: projected("a", "b"), reason: "FailedMount",
			message: setUp("combination of signerName and labelSelector matched zero ClusterTrustBundles"),
			want:    explain.VolumeSourceMissing, says: []string{"ClusterTrustBundle"}, next: "kubectl get clustertrustbundles",
		},
		"no socket": {
			source: "1.32.3 pkg/volume/hostpath/host_path.go:484", volume: hostPath("/run/app.sock"), reason: "FailedMount", message: setUp("hostPath type check failed: /run/app.sock is not a socket file"),
			want: explain.NodePathUnusable, says: []string{"volume v", "/run/app.sock", "socket file", "n1"}, next: "Start the program",
		},
		"no file": {
			source: "1.33.2 pkg/volume/hostpath/host_path.go:480", volume: hostPath("/etc/app.conf"), reason: "FailedMount", message: setUp("hostPath type check failed: /etc/app.conf is not a file"),
			want: explain.NodePathUnusable, says: []string{"/etc/app.conf", "not a file"}, next: "kubectl debug node/n1 -it --image=busybox -- ls -ld /host/etc/app.conf",
		},
		"a directory that does not exist, of 1.37": {
			source: "1.37.2 pkg/volume/hostpath/host_path.go:472, pkg/volume/util/hostutil/hostutil.go:84", volume: hostPath("/data"), reason: "FailedMount",
			message: setUp(`hostPath type check failed, /data is not a directory, unable to determine its type: path "/data" does not exist`),
			want:    explain.NodePathUnusable, says: []string{"volume v", "/data does not exist on the node"}, next: "Create the directory /data on node n1",
		},
		"a file in place of a directory, of 1.37": {
			source: "1.37.2 pkg/volume/hostpath/host_path.go:474", volume: hostPath("/data"), reason: "FailedMount",
			message: setUp("hostPath type check failed: /data is not a directory, it's a File"),
			want:    explain.NodePathUnusable, says: []string{"/data on the node is of type File, and the pod wants a directory"}, next: "set its type to File",
		},
		"no socket, of 1.37": {
			source: "1.37.2 pkg/volume/hostpath/host_path.go:472", volume: hostPath("/run/app.sock"), reason: "FailedMount",
			message: setUp(`hostPath type check failed, /run/app.sock is not a socket file, unable to determine its type: path "/run/app.sock" does not exist`),
			want:    explain.NodePathUnusable, says: []string{"/run/app.sock does not exist on the node"}, next: "Start the program",
		},
		"a directory in place of a device, of 1.37": {
			source: "1.37.2 pkg/volume/hostpath/host_path.go:474", volume: hostPath("/dev/kvm"), reason: "FailedMount",
			message: setUp("hostPath type check failed: /dev/kvm is not a character device, it's a Directory"),
			want:    explain.NodePathUnusable, says: []string{"is of type Directory, and the pod wants a character device"}, next: "set its type to Directory",
		},
		"a pipe, of 1.37": {
			source: "1.37.2 pkg/volume/hostpath/host_path.go:472, pkg/volume/util/hostutil/hostutil.go:43", volume: hostPath("/run/pipe"), reason: "FailedMount",
			message: setUp("hostPath type check failed, /run/pipe is not a file, unable to determine its type: only recognise file, directory, socket, block device and character device"),
			want:    explain.NodePathUnusable, says: []string{"kubelet cannot read the type of /run/pipe on the node", "only recognise file"}, next: "Look at /run/pipe on node n1",
		},
		"a local disk that is not mounted": {
			source: "1.35.0 pkg/volume/util/hostutil/hostutil.go:84", volume: ofClaim, pv: onLocal("/mnt/disks/ssd1"), reason: "FailedMount",
			message: `MountVolume.NewMounter initialization failed for volume "pv" : path "/mnt/disks/ssd1" does not exist`,
			want:    explain.NodePathUnusable, says: []string{"volume v (claim claim)", "/mnt/disks/ssd1 does not exist"}, next: "mount the disk",
		},
		"a local device": {
			source: "1.36.3 pkg/volume/local/local.go:359", volume: ofClaim, pv: onLocal("/dev/sdb"), reason: "FailedMount",
			message: `MountVolume.MountDevice failed for volume "pv" : local: failed to mount device /dev/sdb at /var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts/pv (fstype: ext4), error mount failed: exit status 32`,
			want:    explain.NodePathUnusable, says: []string{"/dev/sdb", "ext4"}, next: "Do not format it",
		},
		"a permission": {
			source: "1.36.3 pkg/volume/hostpath/host_path.go: MakeDir, os.MkdirAll", volume: hostPath("/srv/a"), reason: "FailedMount", message: setUp("mkdir /srv/a: permission denied"),
			want: explain.NodePathUnusable, says: []string{"/srv/a", "permission denied"}, next: "/host/srv/a",
		},
		"modes of a CSI driver": {
			source: "1.33.2 pkg/volume/csi/csi_mounter.go:548", volume: inlineCSI("disk.x"), reason: "FailedMount",
			message: setUp(`kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode "Ephemeral" not supported by driver disk.x (only supports ["Persistent"])`),
			want:    explain.VolumeUnsupported, says: []string{"disk.x", `"Persistent"`, "Ephemeral"}, next: "kubectl get csidriver disk.x",
		},
		"an inline driver that is not on the node": {
			source: "1.36.3 pkg/volume/csi/csi_client.go:160", volume: inlineCSI("secrets-store.csi.k8s.io"), reason: "FailedMount",
			message: setUp("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name secrets-store.csi.k8s.io not found in the list of registered CSI drivers"),
			want:    explain.DriverNotOnNode, says: []string{"secrets-store.csi.k8s.io", "n1"},
		},
		"a gitRepo volume": {
			source: "1.36.3 pkg/volume/git_repo/git_repo.go:175", volume: corev1.VolumeSource{GitRepo: &corev1.GitRepoVolumeSource{}}, reason: "FailedMount",
			message: setUp("git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`"),
			want:    explain.VolumeUnsupported, says: []string{"gitRepo"}, next: "init container",
		},
		"huge pages": {
			source: "1.34.2 pkg/volume/emptydir/empty_dir.go:447", volume: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, reason: "FailedMount",
			message: setUp("medium HugePages: hugePages storage requested, but there is no resource request for huge pages"),
			want:    explain.VolumeUnsupported, says: []string{"huge pages"}, next: "medium",
		},
		"an event of many": {
			source: "client-go v0.36.3 tools/record/events_cache.go: combined from similar events", volume: configMap("app"), reason: "FailedMount",
			message: "(combined from similar events): " + setUp(`configmap "app" not found`), want: explain.VolumeSourceMissing, says: []string{"ConfigMap app"},
		},
		"several volumes that cannot be processed": {
			source: "1.36.3 pkg/kubelet/volumemanager/volume_manager.go:558", volume: ofClaim, pv: onCSI(), reason: "FailedMount",
			message: `Unable to attach or mount volumes: unmounted volumes=[v w], unattached volumes=[], failed to process volumes=[v w]: failed to get Plugin from volumeSpec for volume "w" err=no volume plugin matched; volume v has volumeMode Block, but is specified in volumeMounts`,
			want:    explain.VolumeUnsupported, says: []string{"volume v (claim claim)", "volumeMode Block"}, next: "volumeDevices",
		},
		"a plugin that was removed": {
			source: "1.35.0 pkg/volume/plugins.go:72", volume: ofClaim, pv: &corev1.PersistentVolumeSource{Glusterfs: &corev1.GlusterfsPersistentVolumeSource{}}, reason: "FailedMount",
			message: notProcessed(`failed to get Plugin from volumeSpec for volume "pv" err=no volume plugin matched`),
			want:    explain.VolumeUnsupported, says: []string{"volume v (claim claim)", "n1"}, next: "kubectl get csidrivers",
		},
		"the Secret of a FlexVolume": {
			source: "1.31.4 pkg/volume/flexvolume/util.go:48", volume: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "x/cifs"}}, reason: "FailedMount",
			message: setUp(`couldn't get secret ns/login err: secrets "login" not found`),
			want:    explain.VolumeSourceMissing, says: []string{"Secret login"}, next: "kubectl get secrets -n ns",
		},
		"a cache": {
			source: "1.32.3 pkg/kubelet/util/manager/watch_based_manager.go:323", volume: configMap("app"), reason: "FailedMount", message: setUp("failed to sync configmap cache: timed out waiting for the condition"),
			want: explain.MountFailing, says: []string{"volume v", "API server"}, next: "in its log on node n1",
		},
		"an export": {
			source: "nfs-utils 2.8.2 utils/mount/error.c mount_error, run by 1.36.3 pkg/volume/nfs/nfs.go:244", volume: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nas", Path: "/a"}}, reason: "FailedMount",
			message: setUp("mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs nas:/a /x\nOutput: mount.nfs: access denied by server while mounting nas:/a\n"),
			want:    explain.StorageServerFailing, says: []string{"volume v", "nas:/a", "denies node n1"}, next: "exportfs", //nolint:misspell // the program of nfs-utils
		},
		"a server that does not answer": {
			source: "nfs-utils 2.8.2 utils/mount/error.c, run by 1.31.4 pkg/volume/nfs/nfs.go", volume: ofClaim, pv: onNFS(), reason: "FailedMount",
			message: setUpPV("mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs nas:/a /x\nOutput: mount.nfs: No route to host\n"),
			want:    explain.StorageServerFailing, says: []string{"volume v (claim claim)", "No route to host"}, next: "firewall",
		},
		"a node that the volume excludes": {
			source: "k8s.io/component-helpers v0.36.3 storage/volume/helpers.go:79, 1.36.3 pkg/volume/util/operationexecutor/operation_generator.go:458", volume: ofClaim, pv: onCSI(), reason: "FailedMount",
			message: `MountVolume.NodeAffinity check failed for volume "pv" : no matching NodeSelectorTerms`,
			also: func(s *Snapshot, _ *corev1.Pod) {
				s.Attachments[0].Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "rpc error: code = Internal desc = another zone"}}
			},
			want: explain.VolumeUnsupported, says: []string{"volume v (claim claim)", "node affinity", "node n1"}, next: "remove nodeName",
		},
		"nothing at all": {
			source: "none: kubelet writes no event for a volume that only waits (1.36.3 pkg/kubelet/kubelet.go:2203)", volume: configMap("app"),
			want: explain.MountFailing, says: []string{"pod app-0", "n1", "nor reported an error"},
		},
	} {
		t.Run(name, c.checkFew)
	}
}

// TestKubeletTextsOfOthers: the same words of another speaker, or about another object, do not mean the same.
func TestKubeletTextsOfOthers(t *testing.T) {
	rpc := "rpc error: code = Internal desc = "
	unreported := []string{"nor reported an error"}
	for name, c := range map[string]kubeletText{
		"a driver that misses a ConfigMap of its own": {
			volume: inlineCSI("x"), reason: "FailedMount", message: setUp(rpc + `configmap "app" not found`), want: explain.MountFailing, says: []string{"volume v", `configmap "app" not found`},
		},
		"a driver that misses a Secret of its own": {
			volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: setUpPV(rpc + `secret "app-tls" not found`), want: explain.MountFailing, says: []string{`"app-tls"`},
		},
		"a driver that uses a path": {
			volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: setUpPV(rpc + "mkdir /data: read-only file system"), want: explain.MountFailing,
		},
		"a driver that is denied an export": { // the words are mount.nfs's, in kubelet's and in a driver's mouth
			volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: setUpPV(rpc + "access denied by server while mounting nas:/a"), want: explain.MountFailing,
		},
		"a driver without a program": {
			volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: setUpPV(rpc + `exec: "mkfs.xfs": executable file not found in $PATH`), want: explain.MountFailing,
		},
		"a driver about another driver": {
			volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: setUpPV(rpc + "driver name other not found in the list of registered CSI drivers"), want: explain.MountFailing,
		},
		"an object that the volume does not refer to": {
			volume: configMap("app"), reason: "FailedMount", message: setUp(`configmap "other" not found`), want: explain.MountFailing, says: []string{`configmap "other" not found`},
		},
		"an operator": {
			volume: configMap("app"), from: "app-operator", reason: "FailedMount", message: setUp(`configmap "app" not found`), want: explain.MountFailing, says: unreported,
		},
		"the attach/detach controller": {
			volume: secret("app"), from: "attachdetach-controller", reason: "FailedAttachVolume", message: `AttachVolume.Attach failed for volume "v" : secret "app" not found`,
			want: explain.MountFailing, says: unreported,
		},
		"the scheduler": {
			volume: configMap("app"), from: "default-scheduler", reason: "FailedScheduling", message: `configmap "app" not found`, want: explain.MountFailing, says: unreported,
		},
		"kubelet about another volume": {
			volume: hostPath("/a"), reason: "FailedMount", message: `MountVolume.SetUp failed for volume "w" : hostPath type check failed: /a is not a directory`,
			also: func(_ *Snapshot, pod *corev1.Pod) {
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "w", VolumeSource: hostPath("/a")})
			},
			want: explain.NodePathUnusable, says: []string{"volume w"},
		},
		"an iSCSI text about NFS": {
			volume: ofClaim, pv: onNFS(), reason: "FailedMount", message: setUpPV("iscsi: failed to sendtargets to portal 1.1.1.1:3260 output: refused, err exit status 4"), want: explain.MountFailing,
		},
		"no plugin, for a driver's text": {
			volume: inlineCSI("x"), reason: "FailedMount", message: setUp(rpc + "no volume plugin matched"), want: explain.MountFailing,
		},
	} {
		t.Run(name, c.check)
	}
}

// TestTextsOfISCSIAndFibreChannel: kubelet's own plugins attach at the node. No controller creates a VolumeAttachment, and none is missing.
func TestTextsOfISCSIAndFibreChannel(t *testing.T) {
	none := "failed to get any path for iscsi disk, last err seen:\n"
	for name, c := range map[string]kubeletText{
		"a portal without a route": {
			source: "1.34.2 pkg/volume/iscsi/iscsi_util.go:352, open-iscsi", volume: ofClaim, pv: onISCSI(),
			message: none + "iscsi: failed to sendtargets to portal 10.1.1.1:3260 output: iscsiadm: cannot make connection to 10.1.1.1: No route to host\niscsiadm: connection login retries (reopen_max) 5 exceeded\n, err exit status 4",
			want:    explain.StorageServerFailing, says: []string{"volume v (claim claim)", "10.1.1.1:3260", "No route to host", "n1"}, next: "kubectl describe pv pv",
		},
		"a login": {
			source: "1.31.4 pkg/volume/iscsi/iscsi_util.go:368, open-iscsi", volume: ofClaim, pv: onISCSI(),
			message: none + "iscsi: failed to attach disk: Error: Logging in to [iface: default, target: iqn.2026-01.com.example:disk, portal: 10.1.1.1,3260]\niscsiadm: Could not login to [iface: default, target: iqn.2026-01.com.example:disk, portal: 10.1.1.1,3260].\niscsiadm: initiator reported error (24 - iSCSI login failed due to authorization failure)\n (exit status 24)",
			want:    explain.StorageServerFailing, says: []string{"refuses the login", "authorization failure"}, next: "initiator name",
		},
		"a LUN": {
			source: "1.34.2 pkg/volume/iscsi/iscsi_util.go:422", volume: ofClaim, pv: onISCSI(),
			message: none + "Timed out waiting for device at path /dev/disk/by-path/ip-10.1.1.1:3260-iscsi-iqn.2026-01.com.example:disk-lun-1 after 30s",
			want:    explain.StorageServerFailing, says: []string{"no disk at /dev/disk/by-path/"}, next: "LUN",
		},
		"CHAP of the discovery": {
			source: "1.31.4 pkg/volume/iscsi/iscsi_util.go:93", volume: ofClaim, pv: onISCSI(),
			message: none + "iscsi: failed to update discoverydb to portal 10.1.1.1:3260 error: iscsi: failed to update discoverydb with CHAP, output: iscsiadm: Could not set auth",
			want:    explain.StorageServerFailing, says: []string{"Could not set auth"}, next: "CHAP",
		},
		"CHAP of the session": {
			source: "1.33.2 pkg/volume/iscsi/iscsi_util.go:123", volume: ofClaim, pv: onISCSI(),
			message: none + "iscsi: failed to update iscsi node to portal 10.1.1.1:3260 error: iscsi: failed to update node with CHAP, output: iscsiadm: no records found",
			want:    explain.StorageServerFailing, says: []string{"no records found"}, next: "CHAP",
		},
		"a Secret": {
			source: "1.32.3 pkg/volume/iscsi/iscsi.go:641", volume: ofClaim, pv: onISCSI(), message: `couldn't get secret storage/chap error: secrets "chap" not found`,
			want: explain.VolumeSourceMissing, says: []string{"Secret chap", "namespace storage"}, next: "kubectl get secrets -n storage",
		},
		"no iscsiadm": {
			source: "1.36.3 pkg/volume/iscsi/iscsi_util.go:295, k8s.io/utils exec/exec.go", volume: ofClaim, pv: onISCSI(), message: "executable file not found in $PATH",
			want: explain.NodeProgramMissing, says: []string{"iscsiadm", "node n1"}, next: "open-iscsi",
		},
		"an interface": {
			source: "1.31.4 pkg/volume/iscsi/iscsi_util.go:407", volume: ofClaim, pv: onISCSI(), message: "could not parse iface file for default",
			want: explain.MountFailing, says: []string{"volume v", "could not parse iface file for default"}, next: "kubelet's log",
		},
		"no Fibre Channel disk": {
			source: "1.35.0 pkg/volume/fc/fc_util.go:241", volume: ofClaim, pv: onFC(), message: "no fc disk found",
			want: explain.StorageServerFailing, says: []string{"volume v (claim claim)", "node n1", "Fibre Channel"}, next: "host bus adapters",
		},
		"no Fibre Channel disk of the pod's own": {
			source: "1.35.0 pkg/volume/fc/fc_util.go:241", volume: corev1.VolumeSource{FC: onFC().FC}, message: `MountVolume.WaitForAttach failed for volume "v" : no fc disk found`,
			also: func(s *Snapshot, pod *corev1.Pod) {
				key := kube.InlineVolumes(pod)[0].Key
				s.Nodes[0].Status.VolumesAttached = []corev1.AttachedVolume{{Name: corev1.UniqueVolumeName(kube.UniqueVolumeName(key.Driver, key.Handle))}}
			},
			want: explain.StorageServerFailing, says: []string{"volume v", "Fibre Channel"},
		},
		"a file system": {
			source: "k8s.io/mount-utils v0.36.3 mount_linux.go:542", volume: ofClaim, pv: onISCSI(), message: "'fsck' found errors on device /dev/sdb but could not correct them: x",
			want: explain.MountFailing, says: []string{"volume v", "fsck"},
		},
	} {
		if c.reason = "FailedMount"; !strings.Contains(c.message, " failed for volume ") {
			c.message = waitForAttach(c.message)
		}
		t.Run(name, c.checkFew)
	}
}

// TestAttachAtTheNode: what a node may connect by itself still needs a controller to say so, and keeps from others what they have.
func TestAttachAtTheNode(t *testing.T) {
	refused := waitForAttach("failed to get any path for iscsi disk, last err seen:\niscsi: failed to sendtargets to portal 10.1.1.1:3260 output: refused, err exit status 4")
	rpc := "rpc error: code = Internal desc = "
	unlisted := func(s *Snapshot, _ *corev1.Pod) {
		s.Nodes[0].Status.VolumesAttached, s.Nodes[0].Status.VolumesInUse = nil, nil
	}
	for name, c := range map[string]kubeletText{
		"not listed by a controller": {volume: ofClaim, pv: onISCSI(), also: unlisted, want: explain.NoAttachController},
		"Fibre Channel, not listed":  {volume: ofClaim, pv: onFC(), also: unlisted, want: explain.NoAttachController},
		"a CSI volume without a VolumeAttachment": {
			volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: refused, also: func(s *Snapshot, pod *corev1.Pod) { unlisted(s, pod); s.Attachments = nil }, want: explain.NoAttachController,
		},
		"a node that has it": {
			volume: ofClaim, pv: onISCSI(), also: func(s *Snapshot, pod *corev1.Pod) {
				other := s.Nodes[0].DeepCopy()
				other.Name = "n2"
				s.Nodes = append(s.Nodes, other)
				unlisted(s, pod)
			}, want: explain.UsedWithoutAttachment,
		},
		"a node that is not Ready": {
			volume: ofClaim, pv: onISCSI(), reason: "FailedMount", message: refused, want: explain.PodNodeNotReady,
			also: func(s *Snapshot, _ *corev1.Pod) { s.Nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse },
		},
		"a driver's portal": {volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: setUpPV(rpc + "iscsi: failed to sendtargets to portal 1.1.1.1:3260 output: refused, err 4"), want: explain.MountFailing},
		"a driver's disk":   {volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: setUpPV(rpc + "no fc disk found"), want: explain.MountFailing},
		"a driver's login":  {volume: ofClaim, pv: onCSI(), reason: "FailedMount", message: setUpPV(rpc + "iscsi: failed to attach disk: Error: x"), want: explain.MountFailing},
		"another speaker":   {volume: ofClaim, pv: onISCSI(), from: "iscsi-operator", reason: "FailedMount", message: refused, want: explain.MountFailing, says: []string{"nor reported an error"}},
		"an iSCSI text for Fibre Channel": {
			volume: ofClaim, pv: onFC(), reason: "FailedMount", message: refused, want: explain.MountFailing, says: []string{"sendtargets"},
		},
		"an older failure": {
			volume: ofClaim, pv: onISCSI(), reason: "FailedMount", message: "Unable to attach or mount volumes: unmounted volumes=[w], unattached volumes=[], failed to process volumes=[]: timed out waiting for the condition",
			also: func(s *Snapshot, pod *corev1.Pod) {
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "w", VolumeSource: configMap("w")})
				s.Events = append(s.Events, eventOf(pod, "", "FailedMount", refused, metav1.NewTime(s.Now.Add(-5*time.Minute))))
			},
			want: explain.MountFailing, says: []string{"pod app-0", "nor reported"},
		},
	} {
		t.Run(name, c.check)
	}
}
