package kube

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestBytesPerObject measures what one object of each kind costs in the caches: as the
// API server sends it, and as it is kept. At 20,000 volumes the caches are the
// process, so the bounds are what keeps it at half of upstream's memory.
func TestBytesPerObject(t *testing.T) {
	const objects = 2000
	for name, tt := range map[string]struct {
		make  func(i int) client.Object
		strip func(client.Object) client.Object
		bound int64 // bytes, up to a tenth above what is measured
	}{
		"Pod":                   {fullPod, func(o client.Object) client.Object { return StripPod(o.(*corev1.Pod)) }, 1950},
		"Node with 20 volumes":  {fullNode, func(o client.Object) client.Object { return StripNode(o.(*corev1.Node)) }, 4800},
		"PersistentVolumeClaim": {fullClaim, func(o client.Object) client.Object { return stripClaim(o.(*corev1.PersistentVolumeClaim)) }, 900},
		"PersistentVolume":      {fullVolume, func(o client.Object) client.Object { return StripVolume(o.(*corev1.PersistentVolume)) }, 1110},
		"in-tree PersistentVolume": {
			inTreeVolume, func(o client.Object) client.Object { return StripVolume(o.(*corev1.PersistentVolume)) }, 1125,
		},
		"VolumeAttachment": {
			fullAttachment, func(o client.Object) client.Object { return StripAttachment(o.(*storagev1.VolumeAttachment)) }, 1300,
		},
		"VolumeAttachment of kube-controller-manager": {
			upstreamAttachment, func(o client.Object) client.Object { return StripAttachment(o.(*storagev1.VolumeAttachment)) }, 660,
		},
	} {
		t.Run(name, func(t *testing.T) {
			whole := retained(objects, tt.make)
			kept := retained(objects, func(i int) client.Object { return tt.strip(tt.make(i)) })
			t.Logf("%d bytes as sent, %d bytes kept", whole, kept)
			if kept > tt.bound {
				t.Errorf("keeps %d bytes, want at most %d", kept, tt.bound)
			}
			if kept >= whole {
				t.Errorf("keeps %d bytes of %d: nothing is dropped", kept, whole)
			}
		})
	}
}

// retained is how many bytes of heap each of n objects holds on to, decoded from the
// wire as a watch does.
func retained(n int, object func(i int) client.Object) int64 {
	held := make([]client.Object, n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range held {
		held[i] = object(i)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(held)
	return (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(n)
}

type wire interface {
	client.Object
	Marshal() ([]byte, error)
	Unmarshal(data []byte) error
}

// decoded gives the object as a watch does: every string of its own.
func decoded(obj, into wire) client.Object {
	data, err := obj.Marshal()
	if err != nil {
		panic(err)
	}
	if err := into.Unmarshal(data); err != nil {
		panic(err)
	}
	return into
}

func fullMeta(namespace, name string, i int) metav1.ObjectMeta {
	now := metav1.NewTime(time.Unix(1767225600, 0))
	fields := metav1.NewFieldsV1(strings.Repeat(`{"f:spec":{"f:x":{}}}`, 60))
	return metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprintf("%s-%06d", name, i), UID: types.UID(fmt.Sprintf("0f5b4a1e-0000-4000-8000-%012d", i)),
		ResourceVersion: fmt.Sprint(1000000 + i), CreationTimestamp: now,
		Labels: map[string]string{"app.kubernetes.io/name": "db", "app.kubernetes.io/instance": name, "pod-template-hash": "5d9c8b7f6"},
		Annotations: map[string]string{
			"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 1500), "pv.kubernetes.io/provisioned-by": "ebs.csi.aws.com",
		},
		ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "kubectl", Operation: "Apply", FieldsType: "FieldsV1", FieldsV1: fields, Time: &now},
			{Manager: "kubelet", Operation: "Update", FieldsType: "FieldsV1", FieldsV1: fields, Time: &now},
		},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name, UID: "0f5b4a1e-1111-4000-8000-000000000000", Controller: new(true)},
		},
		Finalizers: []string{"kubernetes.io/pv-protection", "external-attacher/ebs-csi-aws-com"},
	}
}

func plainPod(i int) client.Object {
	pod := fullPod(i).(*corev1.Pod)
	pod.Spec.Volumes = pod.Spec.Volumes[1:]
	return pod
}

func fullPod(i int) client.Object {
	container := func(name string) corev1.Container {
		return corev1.Container{
			Name: name, Image: "registry.example.com/team/" + name + ":v1.2.3", Args: []string{"--a=b", "--c=d"},
			Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}, {Name: "C", Value: "3"}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("1Gi"),
			}},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "token", MountPath: "/var/run/secrets"}},
		}
	}
	state := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: name, Ready: true, Image: "registry.example.com/team/" + name + ":v1.2.3", ImageID: "sha256:" + strings.Repeat("a", 64),
			ContainerID: "containerd://" + strings.Repeat("b", 64), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: fullMeta("team-a", "db", i),
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("node-%04d.example.com", i%1000), ServiceAccountName: "db",
			InitContainers: []corev1.Container{container("init")}, Containers: []corev1.Container{container("db"), container("metrics")},
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: fmt.Sprintf("data-db-%06d", i),
				}}},
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "config"},
				}}},
				{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
					Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
				}}},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, HostIP: "10.0.0.1", PodIP: "10.1.0.1",
			Conditions:            []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}, {Type: corev1.PodScheduled, Status: "True"}},
			InitContainerStatuses: []corev1.ContainerStatus{state("init")}, ContainerStatuses: []corev1.ContainerStatus{state("db"), state("metrics")},
		},
	}
	return decoded(pod, &corev1.Pod{})
}

func fullNode(i int) client.Object {
	node := &corev1.Node{ObjectMeta: fullMeta("", "node", i)}
	node.Annotations[ManagedAttachAnnotation] = "true"
	for n := range 20 {
		unique := corev1.UniqueVolumeName(fmt.Sprintf("kubernetes.io/csi/ebs.csi.aws.com^vol-%017d", i*20+n))
		node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: unique})
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, unique)
	}
	for n := range 50 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("registry.example.com/image-%d@sha256:%s", n, strings.Repeat("c", 64))}, SizeBytes: 1 << 30,
		})
	}
	for _, condition := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: condition, Status: "True", Message: "kubelet says so"})
	}
	node.Status.NodeInfo = corev1.NodeSystemInfo{
		BootID: "3c4bd6b5-0000-4000-8000-000000000000", SystemUUID: "ec2bd6b5-0000-4000-8000-000000000000", KernelVersion: "6.1", OSImage: "Linux",
	}
	return decoded(node, &corev1.Node{})
}

func fullClaim(i int) client.Object {
	return decoded(&corev1.PersistentVolumeClaim{
		ObjectMeta: fullMeta("team-a", "data-db", i),
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: fmt.Sprintf("pvc-0f5b4a1e-0000-4000-8000-%012d", i), StorageClassName: new("fast"), AccessModes: once,
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: once},
	}, &corev1.PersistentVolumeClaim{})
}

func aVolume(i int, source corev1.PersistentVolumeSource) client.Object {
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"eu-west-1a"}},
	}}
	return decoded(&corev1.PersistentVolume{
		ObjectMeta: fullMeta("", "pvc-0f5b4a1e-0000-4000-8000", i),
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: once, StorageClassName: "fast", PersistentVolumeSource: source,
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "team-a", Name: fmt.Sprintf("data-db-%06d", i),
				UID: types.UID(fmt.Sprintf("0f5b4a1e-2222-4000-8000-%012d", i)), ResourceVersion: "123",
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}, &corev1.PersistentVolume{})
}

func fullVolume(i int) client.Object {
	return aVolume(i, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: "ebs.csi.aws.com", VolumeHandle: fmt.Sprintf("vol-%017d", i), FSType: "ext4",
		VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1767225600-8081-ebs.csi.aws.com"},
	}})
}

func inTreeVolume(i int) client.Object {
	return aVolume(i, corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{
		VolumeID: fmt.Sprintf("aws://eu-west-1a/vol-%017d", i), FSType: "ext4",
	}})
}

func fullAttachment(i int) client.Object {
	va := &storagev1.VolumeAttachment{
		ObjectMeta: fullMeta("", "csi-"+strings.Repeat("d", 57), i),
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "ebs.csi.aws.com", NodeName: fmt.Sprintf("node-%04d.example.com", i%1000),
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(fmt.Sprintf("pvc-0f5b4a1e-0000-4000-8000-%012d", i))},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"devicePath": "/dev/xvdba"}},
	}
	va.Annotations = map[string]string{
		NodeIDAnnotation: fmt.Sprintf("i-%017d", i), VolumeHandleAnnotation: fmt.Sprintf("vol-%017d", i),
		NodeUIDAnnotation: "0f5b4a1e-3333-4000-8000-000000000000", BootIDAnnotation: "3c4bd6b5-0000-4000-8000-000000000000",
		SystemUUIDAnnotation: "ec2bd6b5-0000-4000-8000-000000000000",
	}
	return decoded(va, &storagev1.VolumeAttachment{})
}

// upstreamAttachment has no annotation but that of its attacher. There are 20 to a node.
func upstreamAttachment(i int) client.Object {
	va := fullAttachment(i).(*storagev1.VolumeAttachment)
	va.Spec.NodeName = fmt.Sprintf("node-%04d.example.com", i/20)
	va.Annotations = map[string]string{NodeIDAnnotation: fmt.Sprintf("i-%017d", i/20)}
	return decoded(va, &storagev1.VolumeAttachment{})
}
