package scenario

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"belay.dev/belay/lab/nodes"
)

// Names of the writer's objects.
const (
	Namespace  = "default"
	WriterSet  = "writer"
	WriterPod  = "writer-0"
	ClaimKey   = Namespace + "/data-writer-0" // as the recorder spells it
	claimName  = "data-writer-0"
	volumeName = "data"
	ledgerFile = "/data/ledger"
)

// StorageClass is the class of the disk driver, as the lab makes it.
const StorageClass = "labdisk"

// graceSeconds: the writer ends at once on SIGTERM; the rest is for a slow machine.
const graceSeconds = 5

// writer is the StatefulSet with one replica that appends records to its claim.
func writer(class string) *appsv1.StatefulSet {
	match := map[string]string{"app": WriterSet}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: WriterSet},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)), ServiceName: WriterSet,
			Selector: &metav1.LabelSelector{MatchLabels: match},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: match},
				Spec:       podSpec("append", "--file", ledgerFile),
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: volumeName},
				Spec:       claimSpec(class),
			}},
		},
	}
}

func claimSpec(class string) corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
		},
	}
}

// podSpec runs the lab's ledger program. The lab has no pod network (hostNetwork)
// and its pods need nothing of the API (no token).
func podSpec(args ...string) corev1.PodSpec {
	return corev1.PodSpec{
		HostNetwork:                   true,
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: new(int64(graceSeconds)),
		Containers: []corev1.Container{{
			Name: "ledger", Image: nodes.Image, ImagePullPolicy: corev1.PullIfNotPresent,
			Command:      append([]string{"/ledger"}, args...),
			Env:          []corev1.EnvVar{fieldEnv("NODE_NAME", "spec.nodeName"), fieldEnv("POD_NAME", "metadata.name")},
			VolumeMounts: []corev1.VolumeMount{{Name: volumeName, MountPath: "/data"}},
		}},
	}
}

// fieldEnv: the writer puts both names into its records.
func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// pod is a single pod that uses a claim; node pins it there if it is not empty.
func pod(name, claim, node string, spec corev1.PodSpec) *corev1.Pod {
	spec.Volumes = []corev1.Volume{{Name: volumeName, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	if node != "" {
		spec.Affinity = &corev1.Affinity{NodeAffinity: pinned(node)}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}, Spec: spec}
}

// pinned lets the scheduler bind a pod to one node only.
func pinned(node string) *corev1.NodeAffinity {
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
		}}}},
	}}
}

// verifier reads every record back and ends well only if at least n are in place.
// node pins it; it may share the volume with the writer there, for a record that is
// being written reads as a torn tail.
func verifier(name, node string, n int64) *corev1.Pod {
	spec := podSpec("verify", "--file", ledgerFile, "-o", "json", "--at-least", strconv.FormatInt(n, 10))
	spec.RestartPolicy = corev1.RestartPolicyNever
	return pod(name, claimName, node, spec)
}
