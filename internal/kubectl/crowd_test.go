package kubectl

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/diagnosis"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/testing/apiserver"
	"belay.dev/belay/internal/testing/fixture"
)

// The size of the large cluster. The first pods have a volume each, which is attached to their node.
const (
	manyNodes   = 5000
	manyVolumes = 20000
	manyPods    = 50000
	manyEvents  = 2000
	// The first volumes have something wrong with them: these have no pod, and these are being deleted with an error while a pod waits.
	orphaned, failing = 20, 50
	slotsOfNode       = 5
)

// crowd makes the objects of a large cluster, as large as they are in a real one.
type crowd struct{ namespaces int }

func processors() float64 { return float64(runtime.NumCPU()) }

func (c crowd) namespace(i int) string { return fmt.Sprintf("team-%02d", i%c.namespaces) }
func nodeName(i int) string            { return fmt.Sprintf("node-%04d", i%manyNodes) }
func volumeNumber(i int) string        { return fmt.Sprintf("pvc-00000000-0000-0000-0000-%012d", i) }

// subjects are what is explained: a pod that waits, and what it waits for.
func (c crowd) subjects() [][]string {
	i := orphaned // the first that fails
	return [][]string{
		{"pod/" + podName(i), "-n", c.namespace(i)},
		{"pvc/data-" + podName(i), "-n", c.namespace(i)},
		{"pv/" + volumeNumber(i)},
		{"node/" + nodeName(i)},
	}
}

func podName(i int) string { return fmt.Sprintf("pod-%05d", i) }

var started = time.Now().Add(-time.Hour).Truncate(time.Second)

// finish adds what an object has in a real cluster.
func finish[T client.Object](o T) T {
	o.SetUID(types.UID(fmt.Sprintf("%T-%s", o, o.GetName())))
	o.SetCreationTimestamp(metav1.NewTime(started))
	fields := `{"f:metadata":{"f:annotations":{".":{}},"f:labels":{".":{}}},"f:spec":{` + strings.Repeat(`"f:something-with-a-name":{".":{},"f:value":{}},`, 20) + `"f:last":{}}}`
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}})
	return o
}

func (c crowd) produce(store func(client.Object)) {
	for i := range c.namespaces {
		store(finish(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace(i)}}))
	}
	store(finish(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)}}))
	// The nodes live for as long as the test: a node that does not renew its lease is silent, and so is each of its pods.
	lease := func(namespace, name string) *coordinationv1.Lease {
		l := finish(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = new(name), new(int32(3600)), new(metav1.NewMicroTime(time.Now().Add(time.Hour)))
		return l
	}
	store(lease("kube-system", "kube-controller-manager"))
	store(lease("kube-system", "external-attacher-leader-disk-example-com"))
	for i := range manyNodes {
		store(c.node(i))
		store(lease(corev1.NamespaceNodeLease, nodeName(i)))
		n := finish(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}})
		n.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver, NodeID: nodeName(i), Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(slotsOfNode))}}}
		store(n)
	}
	for i := range manyVolumes {
		c.volume(i, store)
	}
	for i := range manyPods {
		if i >= orphaned {
			store(c.pod(i))
		}
	}
	for i := range manyEvents {
		e := finish(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(i), Name: fmt.Sprintf("event-%d", i)}, Type: corev1.EventTypeWarning, Reason: "Unhealthy"})
		e.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Namespace: c.namespace(i), Name: podName(manyVolumes + i)}
		e.Message = strings.Repeat("the probe failed ", 10)
		store(e)
	}
}

func (c crowd) node(i int) *corev1.Node {
	n := finish(node(nodeName(i)))
	n.Labels = map[string]string{"kubernetes.io/hostname": nodeName(i), "topology.kubernetes.io/zone": "zone-a", "node.kubernetes.io/instance-type": "large"}
	for j := i; j < manyVolumes; j += manyNodes {
		unique := corev1.UniqueVolumeName(kube.UniqueVolumeName(driver, volumeNumber(j)))
		if j >= orphaned {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, unique)
		}
		n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: unique})
	}
	for j := range 40 {
		image := fmt.Sprintf("registry.example.com/project/image-%d", j)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{image + "@sha256:" + strings.Repeat("0", 64), image + ":v1"}, SizeBytes: 1 << 25})
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficient", Message: "kubelet has enough of it"})
	}
	return n
}

// volume is a PersistentVolume with its claim and its VolumeAttachment.
func (c crowd) volume(i int, store func(client.Object)) {
	pv := fixture.PersistentVolume(volumeNumber(i), driver, volumeNumber(i))
	claim := finish(fixture.Claim(c.namespace(i), "data-"+podName(i), pv))
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes", "volume.kubernetes.io/storage-provisioner": driver}
	claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
	finish(fixture.Bind(pv, claim))
	pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": driver, "volume.kubernetes.io/provisioner-deletion-secret-name": ""}
	pv.Spec.CSI.VolumeAttributes = map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-8081-" + driver, "type": "fast"}
	pv.Finalizers = []string{"kubernetes.io/pv-protection", "external-attacher/" + driver}
	pv.Status.Phase = corev1.VolumeBound
	va := finish(fixture.Attachment(kube.AttachmentName(volumeNumber(i), driver, nodeName(i)), driver, nodeName(i), pv.Name))
	va.Finalizers = []string{kube.AttacherFinalizer(driver)}
	va.Status.Attached = true
	va.Status.AttachmentMetadata = map[string]string{"devicePath": "/dev/disk/by-id/" + pv.Name}
	if fails(i) {
		va.DeletionTimestamp, va.DeletionGracePeriodSeconds = new(metav1.NewTime(started.Add(10*time.Minute))), new(int64(0))
		va.Status.DetachError = &storagev1.VolumeError{Time: metav1.NewTime(started.Add(11 * time.Minute)), Message: "rpc error: code = Internal desc = the backend refuses"}
	}
	store(pv)
	store(claim)
	store(va)
}

// fails reports whether the volume does not leave its node while its pod waits on the next.
func fails(i int) bool { return i >= orphaned && i < orphaned+failing }

func (c crowd) pod(i int) *corev1.Pod {
	var claims []string
	if i < manyVolumes {
		claims = []string{"data-" + podName(i)}
	}
	pod := finish(fixture.Pod(c.namespace(i), podName(i), nodeName(i), claims...))
	pod.Labels = map[string]string{"app": "something", "team": c.namespace(i), "statefulset.kubernetes.io/pod-name": pod.Name, "apps.kubernetes.io/pod-index": "0"}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "something", UID: "something", Controller: new(true)}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
	}}}})
	container := &pod.Spec.Containers[0]
	for j := range 10 {
		container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", j), Value: "a value of some length"})
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))})
	}
	pod.Status.Phase = corev1.PodRunning
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(started)})
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", Ready: true, Image: "none", ImageID: "registry.example.com/none@sha256:" + strings.Repeat("0", 64), ContainerID: "containerd://" + strings.Repeat("0", 64),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)}},
	}}
	if fails(i) {
		pod.Spec.NodeName, pod.Status.Phase, pod.Status.ContainerStatuses = nodeName(i+1), corev1.PodPending, nil
	}
	return pod
}

// wait waits until the API server has read what was stored past it: the last pod and the last event.
func (c crowd) wait(t *testing.T, s *apiserver.Server) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		var pods corev1.PodList
		err := s.Client.List(t.Context(), &pods, client.InNamespace(c.namespace(manyPods-1)), client.Limit(1))
		var attachments storagev1.VolumeAttachmentList
		if err == nil {
			err = s.Client.List(t.Context(), &attachments)
		}
		if err == nil && len(pods.Items) == 1 && len(attachments.Items) == manyVolumes && (idle() || time.Now().After(deadline)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the API server shows %d VolumeAttachments: %v", len(attachments.Items), err)
		}
		time.Sleep(time.Second)
	}
}

// idle takes a second, and reports whether the machine had nothing to do in half of it: the API server and etcd still work on
// the objects for some time after they answered.
func idle() bool {
	before, beforeAll := processorTimes()
	time.Sleep(time.Second)
	after, afterAll := processorTimes()
	return 2*(after-before) >= afterAll-beforeAll
}

// processorTimes are the ticks in which the processors were idle, and all ticks.
func processorTimes() (idle, all int) {
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line) {
		ticks, _ := strconv.Atoi(field)
		if all += ticks; i == 4 { // proc_stat(5)
			idle = ticks
		}
	}
	return idle, all
}

// checkAnswer checks that the large answers are right too.
func (c crowd) checkAnswer(t *testing.T, args []string, out string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	switch {
	case args[0] == "stuck" && len(lines) != 1+orphaned+failing, args[0] == "orphans" && len(lines) < 1+orphaned+failing, args[0] == "map" && len(args) == 1 && len(lines) != 1+manyNodes:
		t.Errorf("%v: %d lines:\n%s", args, len(lines), strings.Join(lines[:min(5, len(lines))], "\n"))
	case args[0] == "map" && len(args) > 1:
		var m diagnosis.NodeMap
		if err := json.Unmarshal([]byte(out), &m); err != nil {
			t.Fatal(err)
		}
		volumes, used := 0, 0
		for i := range m.Items {
			volumes += len(m.Items[i].Volumes)
			for _, d := range m.Items[i].Drivers {
				used += d.Used
			}
		}
		if volumes != manyVolumes+failing || used != manyVolumes+failing { // those that fail are wanted on a second node
			t.Errorf("the map has %d volumes and %d slots taken, want %d", volumes, used, manyVolumes+failing)
		}
	}
}
