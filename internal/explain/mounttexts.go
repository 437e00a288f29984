package explain

import "regexp"

// The texts of kubelet about volumes, each with its place in k8s.io/kubernetes v1.36.3; those of 1.31 to 1.35 have the same words, and those of
// 1.37.2 but for hostPathTexts. What other programs write that kubelet runs is cited with its own source.

// The plugins of kubelet that these texts are of, by the field of the volume's source.
var (
	withObjects = []string{"configMap", "secret", "projected"}
	ofNode      = []string{"hostPath", "local"}
	nfs         = []string{"nfs"}
	iscsi       = []string{"iscsi"}
	csi         = []string{"csi"}
)

// lookAt shows what a node has at a path, and debugs says what the command leaves behind (kubernetes.io/docs/tasks/debug/debug-cluster/kubectl-node-debug).
const (
	lookAt = "kubectl debug node/{node} -it --image=busybox -- ls -ld /host{1}"
	debugs = "The command starts a pod on the node, with the node's files under /host: delete it after that."
)

var mountTexts = []kubeletText{
	// pkg/kubelet/util/manager/watch_based_manager.go:336 NewNotFound; k8s.io/apimachinery v0.36.3 pkg/api/errors/errors.go NewNotFound; several
	// are a list in brackets (pkg/volume/projected/projected.go:430).
	{
		kinds: withObjects, pattern: regexp.MustCompile(`\b(configmap)s? "(kube-root-ca\.crt)" not found`), names: true, reason: VolumeSourceMissing,
		why: "kube-controller-manager has not created the ConfigMap kube-root-ca.crt in namespace {namespace}",
		steps: []Step{
			{
				Text: "See whether --controllers of kube-controller-manager turns off root-ca-certificate-publisher-controller. {upstream} " +
					"The command prints nothing where it does not run as a pod, as in a managed control plane: ask who runs that.",
				Command: "kubectl get pods -n kube-system -l component=kube-controller-manager -o jsonpath='{.items[*].spec.containers[*].command}{\"\\n\"}'",
			},
			{Text: "Then look for that name in its log. A pod whose ConfigMap appears starts by itself."},
		},
	},
	{
		kinds: withObjects, pattern: regexp.MustCompile(`\b(configmap)s? "([^"]+)" not found`), names: true, reason: VolumeSourceMissing,
		why: "the ConfigMap {2} does not exist in namespace {namespace}",
		steps: []Step{
			{Text: "Create the ConfigMap {2}, or correct its name in the pod's template. kubelet then starts the pod by itself. The command lists those that exist.", Command: "kubectl get configmaps -n {namespace}"},
		},
	},
	{
		kinds: withObjects, pattern: regexp.MustCompile(`\b(secret)s? "([^"]+)" not found`), names: true, reason: VolumeSourceMissing,
		why: "the Secret {2} does not exist in namespace {namespace}",
		steps: []Step{
			{
				Text: "Find out what should create the Secret {2}, create it, or correct its name in the pod's template. " +
					"kubelet then starts the pod by itself. The command lists the Secrets that exist. If another controller creates it, such as cert-manager for a Certificate, read what that reports.",
				Command: "kubectl get secrets -n {namespace}",
			},
		},
	},
	{ // pkg/volume/configmap/configmap.go:292
		kinds: withObjects, pattern: regexp.MustCompile(`configmap references non-existent config key: (\S+)`), reason: VolumeSourceMissing,
		why:   "the pod wants the key {1}, which the ConfigMap does not have",
		steps: []Step{{Text: "Add the key {1} to the ConfigMap, or correct items in the pod's template.", Command: "kubectl describe configmap {object} -n {namespace}"}},
	},
	{ // pkg/volume/secret/secret.go:280
		kinds: withObjects, pattern: regexp.MustCompile(`references non-existent secret key: (\S+)`), reason: VolumeSourceMissing,
		why:   "the pod wants the key {1}, which the Secret does not have",
		steps: []Step{{Text: "Add the key {1} to the Secret, or correct items in the pod's template. The command lists its keys, without values.", Command: "kubectl describe secret {object} -n {namespace}"}},
	},
	{ // pkg/kubelet/token/token_manager.go:119
		kinds: []string{"projected"}, pattern: regexp.MustCompile(`failed to fetch token: serviceaccounts "([^"]+)" not found`), reason: VolumeSourceMissing,
		why:   "the ServiceAccount {1} of the pod does not exist in namespace {namespace}",
		steps: []Step{{Text: "Create the ServiceAccount {1}, or correct serviceAccountName in the pod's template.", Command: "kubectl get serviceaccounts -n {namespace}"}},
	},
	{ // pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go:216; the name as client-go's lister has it
		kinds: []string{"projected"}, pattern: regexp.MustCompile(`while getting ClusterTrustBundle: \S+ "([^"]+)" not found`), reason: VolumeSourceMissing,
		why:   "the ClusterTrustBundle {1} does not exist",
		steps: []Step{{Text: "Create the ClusterTrustBundle {1}, or correct its name in the pod's template. The command lists those that exist.", Command: "kubectl get clustertrustbundles"}},
	},
	{ // pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go:269
		kinds: []string{"projected"}, pattern: regexp.MustCompile(`combination of signerName and labelSelector matched zero ClusterTrustBundles`), reason: VolumeSourceMissing,
		why:   "no ClusterTrustBundle has the signer and the labels that the pod wants",
		steps: []Step{{Text: "Create such a ClusterTrustBundle, or correct the pod's template. The command lists those that exist.", Command: "kubectl get clustertrustbundles --show-labels"}},
	},
	{ // pkg/volume/iscsi/iscsi.go:641, pkg/volume/flexvolume/util.go:48
		kinds: []string{"iscsi", "flexVolume"}, pattern: regexp.MustCompile(`couldn't get secret ([^/\s]+)/(\S+) err(?:or)?: secrets? "[^"]+" not found`), reason: VolumeSourceMissing,
		why:   "the Secret {2} with the credentials of the volume does not exist in namespace {1}",
		steps: []Step{{Text: "Create the Secret {2} in namespace {1}. The command lists those that exist.", Command: "kubectl get secrets -n {1}"}},
	},
	{ // pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go:546
		pattern: regexp.MustCompile(`error processing PVC \S+/(\S+): PVC is being deleted`), reason: VolumeSourceMissing,
		why: "the claim {1} is being deleted",
		steps: []Step{
			{Text: "See whether the claim is meant to go: the pod cannot start with it, and keeps it.", Command: "kubectl describe pvc {1} -n {namespace}"},
			{Text: "Delete the pod. The claim has to be created again too.", Command: "kubectl delete pod {pod} -n {namespace}", Danger: "{deletes}"},
		},
	},
	// pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go:528, 550, 569
	{pattern: regexp.MustCompile(`failed to fetch PVC from API server: persistentvolumeclaims? "([^"]+)" not found`), reason: ClaimMissing},
	{pattern: regexp.MustCompile(`error processing PVC \S+: PVC (?:is not bound|has empty pvc\.Spec\.VolumeName)`), reason: ClaimNotBound},
	{pattern: regexp.MustCompile(`failed to fetch PV (\S+) from API server: persistentvolumes? "[^"]+" not found`), reason: PersistentVolumeMissing},
	{ // pkg/kubelet/util/manager/watch_based_manager.go:318
		kinds: withObjects, pattern: regexp.MustCompile(`object "[^"]*"/"([^"]+)" not registered`), reason: MountFailing,
		why:   "kubelet has not begun to watch {1}, which it does once it runs the pod",
		steps: []Step{{Text: "This ends by itself when kubelet has started, or when a pod that is being deleted has ended. If it lasts, restart kubelet on node {node}.", Command: "kubectl get pod {pod} -n {namespace} -o wide"}},
	},
	{ // pkg/kubelet/util/manager/watch_based_manager.go:329
		kinds: withObjects, pattern: regexp.MustCompile(`failed to sync (configmap|secret) cache: `), reason: MountFailing,
		why:   "kubelet did not get the {1} from the API server in time",
		steps: []Step{{Text: "Find out why kubelet cannot read {1}s, in its log on node {node}: it has lost the API server, or node {node} may not read the object.", Command: "kubectl describe node {node}"}},
	},

	{ // pkg/volume/hostpath/host_path.go:471, 480
		kinds: ofNode, pattern: regexp.MustCompile(`hostPath type check failed: (.+) is not a (directory|file)$`), reason: NodePathUnusable,
		why: "{1} on the node is not a {2}, or does not exist",
		steps: []Step{
			{Text: "See what node {node} has at {1}; create the {2}, or correct the path in the pod's template. " + debugs, Command: lookAt},
			{Text: "To have kubelet create it, set the type in the pod's template to DirectoryOrCreate (FileOrCreate for a file). The command describes the types.", Command: "kubectl explain pod.spec.volumes.hostPath.type"},
		},
	},
	{ // pkg/volume/hostpath/host_path.go:484, 488, 492
		kinds: ofNode, pattern: regexp.MustCompile(`hostPath type check failed: (.+) is not a (socket file|character device|block device)$`), reason: NodePathUnusable,
		why:   "{1} on the node is not a {2}, or does not exist",
		steps: []Step{{Text: "Start the program, or load the driver, on node {node} that creates {1}, or let the pod run on a node that has it. " + debugs, Command: lookAt}},
	},
	{ // pkg/volume/hostpath/host_path.go:428 MakeDir, 432 MakeFile: errors of os.MkdirAll and os.OpenFile
		kinds: ofNode, pattern: regexp.MustCompile(`^(?:mkdir|open) (/.*): read-only file system$`), reason: NodePathUnusable,
		why: "kubelet cannot create {1} on the node, whose file system is read-only there",
		steps: []Step{{Text: "See what node {node} has mounted there; mount a writable file system, or use another path. On an immutable operating system, few directories are writable. If this file system used to be writable, dmesg on the node says why it became read-only. " + debugs, Command: "kubectl debug node/{node} -it --image=busybox -- grep /host /proc/mounts"}, {
			Text:    "A PersistentVolume keeps its path: to use another one, {makes}, then delete the claim and create it again. The command shows the path and the reclaim policy.",
			Command: "kubectl describe pv {pv}",
			Danger:  "{deletes}",
		}},
	},
	{
		kinds: ofNode, pattern: regexp.MustCompile(`^(?:mkdir|open|stat|lstat|chmod|chown) (/.*): ([^:]+)$`), reason: NodePathUnusable,
		why:   "kubelet cannot use {1} on the node: {2}",
		steps: []Step{{Text: "See what {1} is on node {node}, and repair it: kubelet tries again by itself. " + debugs, Command: lookAt}},
	},
	{ // pkg/volume/util/hostutil/hostutil.go:84
		kinds: ofNode, pattern: regexp.MustCompile(`path "([^"]+)" does not exist`), reason: NodePathUnusable,
		why: "{1} does not exist on the node",
		steps: []Step{
			{Text: "See what node {node} has at {1}; mount the disk there, or create the directory if it never had data. An empty one hides that the disk is missing. " + debugs, Command: lookAt},
			{Text: "Compare the path and the node of the PersistentVolume.", Command: "kubectl describe pv {pv}"},
		},
	},
	{ // pkg/volume/local/local.go:290, 382, 424, 539; pkg/volume/hostpath/host_path.go:244
		kinds: ofNode, pattern: regexp.MustCompile(`(only directory and block device are supported|invalid path: .*|invalid HostPath .*)`), reason: NodePathUnusable,
		why:   "its path on the node cannot be used: {1}",
		steps: []Step{{Text: "Correct the path: it must be a directory or a block device of node {node}, without \"..\".", Command: "kubectl describe pod {pod} -n {namespace}"}},
	},
	{ // pkg/volume/local/local.go:565, pkg/volume/local/local.go:359
		kinds: []string{"local"}, pattern: regexp.MustCompile(`local: failed to mount device (\S+) at \S+ \(fstype: (\S*)\), error (.*)`), reason: NodePathUnusable,
		why:   "the node cannot mount the device {1} ({2}): {3}",
		steps: []Step{{Text: "Look at the device {1} on node {node}, and in its kernel log. Do not format it: it may have data.", Command: "kubectl describe pv {pv}"}},
	},

	{ // util-linux v2.40 libmount/src/context_mount.c mnt_context_get_mount_excode
		kinds: nfs, pattern: regexp.MustCompile(`you might need a /sbin/mount\.<type> helper program|mount: unknown filesystem type|missing codepage or helper program`), reason: NodeProgramMissing,
		why:   "the program mount.nfs is not installed on node {node}",
		steps: []Step{{Text: "Install the NFS client (nfs-common or nfs-utils) on node {node}, and on each that may run the pod. The package is nfs-common on Debian and Ubuntu, nfs-utils on Fedora and RHEL, nfs-client on SUSE. kubelet tries again by itself.", Command: "kubectl get node {node} -o wide"}},
	},
	{ // util-linux, as above
		kinds: []string{"cephfs", "glusterfs", "iscsi", "fc", "local", "flexVolume"}, pattern: regexp.MustCompile(`(?s)Mounting arguments:.* -t (\S+).*(?:you might need a /sbin/mount\.<type> helper program|unknown filesystem type)`), reason: NodeProgramMissing,
		why:   "node {node} cannot mount file systems of type {1}: a kernel module or the program mount.{1} is missing",
		steps: []Step{{Text: "Install on node {node}, and on each node that may run the pod, what mounts {1}. kubelet tries again by itself.", Command: "kubectl get node {node} -o wide"}},
	},
	{ // pkg/volume/iscsi/iscsi_util.go:299 runs iscsiadm; k8s.io/utils exec/exec.go ErrExecutableNotFound
		kinds: iscsi, pattern: regexp.MustCompile(`executable file not found in \$PATH`), reason: NodeProgramMissing,
		why:   "the program iscsiadm is not installed on node {node}",
		steps: []Step{{Text: "Install the iSCSI initiator (open-iscsi) on node {node}, and on each that may run the pod. On Fedora and RHEL the package is iscsi-initiator-utils. kubelet tries again by itself.", Command: "kubectl get node {node} -o wide"}},
	},
	{
		pattern: regexp.MustCompile(`(?:exec: |fork/exec )"?([^":]+)"?: (?:executable file not found in \$PATH|no such file or directory)`), reason: NodeProgramMissing,
		why:   "the program {1} is not installed on node {node}",
		steps: []Step{{Text: "Install {1} on node {node}, and on each node that may run the pod. kubelet tries again by itself.", Command: "kubectl get node {node} -o wide"}},
	},
	{ // pkg/volume/plugins.go:72
		kinds: []string{"flexVolume"}, pattern: regexp.MustCompile(`no volume plugin matched`), reason: NodeProgramMissing,
		why: "kubelet on node {node} has no FlexVolume driver of that name",
		steps: []Step{
			{
				Text: "Install the driver on node {node}, in kubelet's FlexVolume directory, as {plugin}. The command shows which drivers it has. The directory is another one if kubelet has --volume-plugin-dir. " +
					"If a DaemonSet installs the driver, check that it has a pod on the node and writes to this directory. " + debugs,
				Command: "kubectl debug node/{node} -it --image=busybox -- ls /host/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
			},
			{Text: "FlexVolume is deprecated: a CSI driver replaces it."},
		},
	},
}
