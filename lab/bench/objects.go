package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"belay.dev/belay/internal/kube"
)

const (
	// namespace of the bench's pods and claims.
	namespace = "bench"
	// writers is how many requests the bench itself has in flight when it makes many objects.
	writers = 16
)

func nodeName(i int) string   { return fmt.Sprintf("hollow-%04d", i) }
func volumeName(i int) string { return fmt.Sprintf("vol-%05d", i) }

// sharedVolume is the volume that many nodes use at once. All others are exclusive.
const sharedVolume = "shared"

// isShared reports whether many nodes may use a volume at once: sharedVolume, and those of shared lanes, whose names begin with it.
func isShared(volume string) bool { return strings.HasPrefix(volume, sharedVolume) }

// unique is the volume's name in the lists of a Node. The volume, its PersistentVolume, its claim
// and its handle have one name.
func unique(volume string) string { return kube.UniqueVolumeName(driverName, volume) }

func plain(unique string) string {
	_, handle, _ := kube.ParseUniqueVolumeName(unique)
	return handle
}

func reported(node *corev1.Node) []string {
	names := make([]string, 0, len(node.Status.VolumesAttached))
	for _, v := range node.Status.VolumesAttached {
		names = append(names, plain(string(v.Name)))
	}
	return names
}

func inUse(node *corev1.Node) []string {
	names := make([]string, 0, len(node.Status.VolumesInUse))
	for _, v := range node.Status.VolumesInUse {
		names = append(names, plain(string(v)))
	}
	return names
}

func sourceOf(va *storagev1.VolumeAttachment) string {
	if name := va.Spec.Source.PersistentVolumeName; name != nil {
		return *name
	}
	return ""
}

// each calls do for 0 to n-1, writers of them at a time, until one fails.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		if groupCtx.Err() != nil {
			break
		}
		group.Go(func() error { return do(groupCtx, i) })
	}
	return errors.Join(group.Wait(), context.Cause(ctx))
}

// objects makes what the bench needs in the API server.
type objects struct {
	client kubernetes.Interface
	// labels are put on nodes, pods and attachments.
	labels map[string]string
}

// create makes an object by the method of a client.
func create[T metav1.Object](ctx context.Context, method func(context.Context, T, metav1.CreateOptions) (T, error), object T) (T, error) {
	created, err := method(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return created, fmt.Errorf("making %T %s: %w", object, object.GetName(), err)
	}
	return created, nil
}

// base makes the namespace and the driver.
func (o objects) base(ctx context.Context) error {
	if _, err := create(ctx, o.client.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	// No controller makes it here.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := create(ctx, o.client.CoreV1().ServiceAccounts(namespace).Create, account); err != nil {
		return err
	}
	csiDriver := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)},
	}
	_, err := create(ctx, o.client.StorageV1().CSIDrivers().Create, csiDriver)
	return err
}

// readyNode is a Node that is Ready.
func readyNode(name string) *corev1.Node {
	now := metav1.Now()
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}}},
	}
}

// identify gives the node a machine of its own.
func identify(node *corev1.Node) {
	node.Status.NodeInfo = corev1.NodeSystemInfo{BootID: "boot-of-" + node.Name, SystemUUID: "system-of-" + node.Name, MachineID: "machine-of-" + node.Name}
}

// listNode has the node list the volumes as reported and in use.
func listNode(node *corev1.Node, volumes []string) {
	node.Status.VolumesAttached, node.Status.VolumesInUse = nil, nil
	for _, volume := range volumes {
		node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(unique(volume))})
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName(unique(volume)))
	}
}

// node makes a Node that is Ready, whose volumes the controller manages, and which lists the
// volumes as reported and in use, as a kubelet lists them when it registers again.
func (o objects) node(ctx context.Context, name string, volumes ...string) error {
	node := readyNode(name)
	maps.Copy(node.Labels, o.labels)
	node.Annotations = map[string]string{kube.ManagedAttachAnnotation: "true"}
	node.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("250"),
	}
	node.Status.Allocatable = node.Status.Capacity
	identify(node)
	listNode(node, volumes)
	if _, err := create(ctx, o.client.CoreV1().Nodes().Create, node); err != nil {
		return err
	}
	_, err := create(ctx, o.client.StorageV1().CSINodes().Create, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: name}}},
	})
	return err
}

// volume makes a claim and a PersistentVolume that are bound to each other.
func (o objects) volume(ctx context.Context, name string, finalizers ...string) error {
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if isShared(name) {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claims := o.client.CoreV1().PersistentVolumeClaims(namespace)
	claim, err := create(ctx, claims.Create, &corev1.PersistentVolumeClaim{
		// The scheduler waits for this mark of the binding.
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: map[string]string{storagehelpers.AnnBindCompleted: "yes"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: name, StorageClassName: new(""), Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	})
	if err != nil {
		return err
	}
	_, err = create(ctx, o.client.CoreV1().PersistentVolumes().Create, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: size,
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name, FSType: "ext4"}},
		},
	})
	if err != nil {
		return err
	}
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: modes, Capacity: size}
	if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("binding claim %s: %w", name, err)
	}
	return nil
}

// pod makes a pod with one volume; bound to the node, or to none if that is empty.
func (o objects) pod(ctx context.Context, name, volume, node string) error {
	pod := podOf(name, volume)
	pod.Spec.NodeName = node
	return o.createPod(ctx, pod)
}

// podFor makes a pod that the scheduler can bind to that node alone.
func (o objects) podFor(ctx context.Context, name, volume, node string) error {
	pod := podOf(name, volume)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	// The API server gives it to each new Node, and no controller takes it off here.
	pod.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists}}
	return o.createPod(ctx, pod)
}

func (o objects) createPod(ctx context.Context, pod *corev1.Pod) error {
	maps.Copy(pod.Labels, o.labels)
	_, err := create(ctx, o.client.CoreV1().Pods(namespace).Create, pod)
	return err
}

// instanceLabel has the pod's own name.
const instanceLabel = "app.kubernetes.io/instance"

// podOf is a pod with one volume, as large as usual ones are.
func podOf(name, volume string) *corev1.Pod {
	var env []corev1.EnvVar
	for _, variable := range []string{"DATABASE_URL", "LOG_LEVEL", "REGION", "CACHE_ADDRESS", "FEATURES"} {
		env = append(env, corev1.EnvVar{Name: variable, Value: strings.Repeat(strings.ToLower(variable)+".", 4)})
	}
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench", instanceLabel: name}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/team/application:v1.2.3", Command: []string{"/application", "--config=/etc/application.yaml"},
				Env: env, Resources: corev1.ResourceRequirements{Requests: requests},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: volume},
			}}},
		},
	}
}

// bind does what the scheduler does.
func (o objects) bind(ctx context.Context, pod, node string) error {
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	if err := o.client.CoreV1().Pods(namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding pod %s to %s: %w", pod, node, err)
	}
	return nil
}

// remove deletes a pod at once, as a kubelet does after the last container has ended.
func (o objects) remove(ctx context.Context, pod string) error {
	if err := o.client.CoreV1().Pods(namespace).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		return fmt.Errorf("deleting pod %s: %w", pod, err)
	}
	return nil
}

// use does what kubelet does before it mounts a volume and after it has unmounted it: puts the
// volume into node.status.volumesInUse, or takes it out.
func (o objects) use(ctx context.Context, name, volume string, is bool) error {
	node, err := o.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading node %s: %w", name, err)
	}
	list := slices.DeleteFunc(node.Status.VolumesInUse, func(v corev1.UniqueVolumeName) bool { return string(v) == unique(volume) })
	if is {
		list = append(list, corev1.UniqueVolumeName(unique(volume)))
	}
	return setList(ctx, o.client, name, "volumesInUse", list)
}

// setList replaces a list in the status of a Node.
func setList[T any](ctx context.Context, client kubernetes.Interface, node, field string, list []T) error {
	var value any // null removes the field
	if len(list) > 0 {
		value = list
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{field: value}})
	if err != nil {
		return fmt.Errorf("encoding %s: %w", field, err)
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("writing %s of node %s: %w", field, node, err)
	}
	return nil
}

// attachmentOf is a VolumeAttachment as an attach/detach controller makes it.
func attachmentOf(volume, driver, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: kube.AttachmentName(volume, driver, node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
	}
}

func (o objects) makeAttachment(ctx context.Context, volume, driver, node string) error {
	_, err := create(ctx, o.client.StorageV1().VolumeAttachments().Create, attachmentOf(volume, driver, node))
	return err
}

func (o objects) deleteAttachment(ctx context.Context, volume, driver, node string) error {
	err := o.client.StorageV1().VolumeAttachments().Delete(ctx, kube.AttachmentName(volume, driver, node), metav1.DeleteOptions{})
	if err != nil {
		return fmt.Errorf("deleting the attachment of %s to %s: %w", volume, node, err)
	}
	return nil
}

// attached makes the VolumeAttachment of a volume that was attached long ago, by whichever plane: it has what all of them have.
func (o objects) attached(ctx context.Context, driver, volume, node string) error {
	attachments := o.client.StorageV1().VolumeAttachments()
	va := attachmentOf(volume, driver, node)
	va.Labels = o.labels
	va.Finalizers, va.Annotations = []string{kube.AttacherFinalizer(driver)}, map[string]string{kube.NodeIDAnnotation: node}
	va, err := create(ctx, attachments.Create, va)
	if err != nil {
		return err
	}
	va.Status.Attached = true
	if _, err := attachments.UpdateStatus(ctx, va, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("attaching %s to %s: %w", volume, node, err)
	}
	return nil
}

// pause waits; it ends early with an error when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
