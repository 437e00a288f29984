package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/mount"
	"belay.dev/belay/internal/nodeagent/worker"
	"belay.dev/belay/internal/nodevolume"
)

// The back-off of looking up a pod's claims. It starts low: the Node authorizer sees a new pod a moment later than the node does, and until
// then forbids reading its claims.
const (
	lookUpFirst = 10 * time.Millisecond
	lookUpMax   = 10 * time.Second
)

// volumeToMount is a CSI volume that a pod uses on this node, with the parameters of the CSI calls.
type volumeToMount struct {
	pod    podIdentity
	volume string // the name in pod.spec.volumes
	// inline is set for a CSI volume in the pod spec.
	inline   bool
	specName string // the name of the PersistentVolume, or of the inline volume
	driver   string
	handle   string
	block    bool
	readOnly bool
	solePod  bool

	accessMode   string
	accessModes  []corev1.PersistentVolumeAccessMode
	fsType       string
	mountOptions []string
	// seLinuxLabel is the label to mount it with, if the driver supports that.
	seLinuxLabel string
	attributes   map[string]string
	stageSecret  *corev1.SecretReference
	podSecret    *corev1.SecretReference
	expandSecret *corev1.SecretReference
	affinity     *corev1.VolumeNodeAffinity
	// claim is the pod's claim, size what its object says, and capacity that of the PersistentVolume.
	claim    claimRef
	size     nodevolume.ClaimSize
	capacity nodevolume.Size
	// migrated is set if the volume was translated from an in-tree plugin.
	migrated bool
	// group is a supplemental group for the pod's containers, or nil.
	group *int64
	// since is when the pod's use became known; zero after the mount was measured.
	since time.Time
}

// claimRef identifies a pod's PersistentVolumeClaim.
type claimRef struct {
	name string
	uid  types.UID
}

// podIdentity is the part of a pod that CSI calls, records and events need.
type podIdentity struct {
	UID                             types.UID
	Namespace, Name, ServiceAccount string
	FSGroup                         *int64
	FSGroupChangePolicy             *corev1.PodFSGroupChangePolicy
}

// ref returns the object reference for events.
func (id podIdentity) ref() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", UID: id.UID, Namespace: id.Namespace, Name: id.Name}
}

func (w *volumeToMount) key() nodevolume.PublishKey {
	return nodevolume.PublishKey{PodUID: string(w.pod.UID), SpecName: w.specName}
}

func (w *volumeToMount) name() string {
	if w.inline {
		return kube.InlineVolumeName(string(w.pod.UID), w.specName)
	}
	return kube.UniqueVolumeName(w.driver, w.handle)
}

// resolvedVolumes is what was read of a pod's volumes.
type resolvedVolumes struct {
	toMount []*volumeToMount
	nonCSI  []*nonCSIVolume
	// refused joins why some volumes can never be mounted, or is nil.
	refused error
}

// volumesToMount reads the claims and PersistentVolumes of a pod, except for known volumes. It continues after a problem, so that the pod's
// owner sees all of them at once and the other volumes can be mounted. The returned error is temporary.
func (m *podManager) volumesToMount(ctx context.Context, object *corev1.Pod, known []*volumeToMount) (resolvedVolumes, error) {
	if err := mount.CheckName(string(object.UID)); err != nil {
		return resolvedVolumes{refused: refuse(explain.InvalidName("pod UID", err))}, nil
	}
	asFile, asDevice := usedVolumes(object)
	var toMount []*volumeToMount
	var nonCSI []*nonCSIVolume
	var problems, refusals []error
	for i := range object.Spec.Volumes {
		volume := &object.Spec.Volumes[i]
		if !asFile[volume.Name] && !asDevice[volume.Name] {
			continue
		}
		var w *volumeToMount
		var err error
		old := slices.IndexFunc(known, func(w *volumeToMount) bool { return w.volume == volume.Name })
		if old >= 0 {
			w = known[old]
		} else {
			w, err = m.volumeToMountOf(ctx, object, volume)
		}
		if other, ok := errors.AsType[*nonCSIVolume](err); ok {
			nonCSI = append(nonCSI, other)
			continue
		}
		if err == nil && w != nil {
			err = w.checkMode(asFile[volume.Name], asDevice[volume.Name])
		}
		if err != nil {
			err = fmt.Errorf("volume %q: %w", volume.Name, err)
			if _, refused := errors.AsType[*RefusedError](err); refused {
				refusals = append(refusals, err)
			} else {
				problems = append(problems, err)
			}
			continue
		}
		// Several volumes of a pod may refer to the same claim; it is published once.
		if w != nil && old < 0 {
			toMount = append(toMount, w)
		}
	}
	if err := checkPaths(slices.Concat(known, toMount)); err != nil {
		return resolvedVolumes{refused: errors.Join(append(refusals, err)...)}, errors.Join(problems...)
	}
	return resolvedVolumes{toMount, nonCSI, errors.Join(refusals...)}, errors.Join(problems...)
}

// usedVolumes returns the volumes that containers use as file systems and as devices. Like kubelet, the agent mounts no others.
func usedVolumes(object *corev1.Pod) (asFile, asDevice map[string]bool) {
	asFile, asDevice = map[string]bool{}, map[string]bool{}
	use := func(mounts []corev1.VolumeMount, devices []corev1.VolumeDevice) {
		for _, m := range mounts {
			asFile[m.Name] = true
		}
		for _, d := range devices {
			asDevice[d.Name] = true
		}
	}
	for _, c := range slices.Concat(object.Spec.InitContainers, object.Spec.Containers) {
		use(c.VolumeMounts, c.VolumeDevices)
	}
	for _, c := range object.Spec.EphemeralContainers {
		use(c.VolumeMounts, c.VolumeDevices)
	}
	return asFile, asDevice
}

// sameVolumes reports whether the containers of both versions use the same volumes. Only a new ephemeral container can change that.
func sameVolumes(was, is *corev1.Pod) bool {
	if len(was.Spec.EphemeralContainers) == len(is.Spec.EphemeralContainers) {
		return true
	}
	wasFile, wasDevice := usedVolumes(was)
	isFile, isDevice := usedVolumes(is)
	return maps.Equal(wasFile, isFile) && maps.Equal(wasDevice, isDevice)
}

// volumeToMountOf returns a volume of a pod; nil if the agent does not mount its type.
func (m *podManager) volumeToMountOf(ctx context.Context, object *corev1.Pod, volume *corev1.Volume) (*volumeToMount, error) {
	switch {
	case volume.CSI != nil:
		return inlineVolumeToMount(object, volume.Name, volume.CSI)
	case volume.PersistentVolumeClaim != nil:
		claim := volume.PersistentVolumeClaim
		return m.claimVolumeToMount(ctx, object, volume.Name, claimUse{name: claim.ClaimName, readOnly: claim.ReadOnly})
	case volume.Ephemeral != nil:
		return m.claimVolumeToMount(ctx, object, volume.Name, claimUse{name: object.Name + "-" + volume.Name, ephemeral: true})
	default:
		return m.inTreeVolumeToMount(object, volume)
	}
}

// claimUse is how a pod's volume refers to its claim.
type claimUse struct {
	name     string
	readOnly bool
	// ephemeral is set for a generic ephemeral volume, whose claim must be owned by the pod.
	ephemeral bool
}

func (m *podManager) claimVolumeToMount(ctx context.Context, object *corev1.Pod, volume string, use claimUse) (*volumeToMount, error) {
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	use.name = kube.Name(use.name)
	claim, err := m.client.CoreV1().PersistentVolumeClaims(object.Namespace).Get(ctx, use.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read claim %s/%s: %w", object.Namespace, use.name, err)
	}
	if use.ephemeral && !metav1.IsControlledBy(claim, object) {
		return nil, errors.New(explain.ClaimOfOtherOwner(claim.Namespace, claim.Name, object.Name))
	}
	if err := checkClaim(claim); err != nil {
		return nil, err
	}
	name := kube.Name(claim.Spec.VolumeName)
	pv, err := m.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read volume %s of claim %s/%s: %w", name, claim.Namespace, claim.Name, err)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return nil, errors.New(explain.VolumeNotBound(pv.Name, claim.Namespace, claim.Name))
	}
	migrated, group := pv.Spec.CSI == nil, supplementalGroup(pv)
	if migrated && !translator.IsPVMigratable(pv) {
		return nil, &nonCSIVolume{volume: volume, use: use, pv: pv}
	}
	if pv, err = m.translated(pv); err != nil {
		return nil, err
	}
	if mode(pv.Spec.VolumeMode) != mode(claim.Spec.VolumeMode) {
		return nil, errors.New(explain.ModesDiffer(pv.Name, string(mode(pv.Spec.VolumeMode)), claim.Namespace, claim.Name, string(mode(claim.Spec.VolumeMode))))
	}
	w, err := newVolumeToMount(pv)
	if err != nil {
		return nil, err
	}
	w.pod, w.volume, w.readOnly = identityOf(object), volume, use.readOnly
	w.claim, w.size, w.capacity = claimRef{claim.Name, claim.UID}, claimSize(claim), sizeOf(pv.Spec.Capacity)
	w.migrated, w.group, w.since = migrated, group, time.Now()
	if w.solePod {
		w.seLinuxLabel, err = seLinuxLabel(object, volume, m.config.fileLabel)
	}
	return w, err
}

// checkClaim checks that a claim is bound and not about to be removed.
func checkClaim(claim *corev1.PersistentVolumeClaim) error {
	if claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, "kubernetes.io/pvc-protection") {
		return errors.New(explain.ClaimBeingDeleted(claim.Namespace, claim.Name))
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return errors.New(explain.ClaimWithoutVolume(claim.Namespace, claim.Name))
	}
	return nil
}

func mode(m *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if m == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *m
}

// translated translates a migrated in-tree volume to CSI.
func (m *podManager) translated(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	if pv.Spec.CSI != nil {
		return pv, nil
	}
	out, err := translator.TranslateInTreePVToCSI(m.log, pv)
	if err != nil {
		return nil, fmt.Errorf("translate volume %s to CSI: %w", pv.Name, err)
	}
	return out, nil
}

func newVolumeToMount(pv *corev1.PersistentVolume) (*volumeToMount, error) {
	source := pv.Spec.CSI
	for what, name := range map[string]string{"PersistentVolume": pv.Name, "driver": source.Driver} {
		if err := mount.CheckName(name); err != nil {
			return nil, refuse(explain.InvalidName(what, err))
		}
	}
	if source.VolumeHandle == "" || strings.ContainsFunc(source.VolumeHandle, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return nil, refuse(explain.InvalidHandle(pv.Name, source.VolumeHandle))
	}
	w := &volumeToMount{
		specName: pv.Name, driver: source.Driver, handle: source.VolumeHandle,
		block:        mode(pv.Spec.VolumeMode) == corev1.PersistentVolumeBlock,
		solePod:      len(pv.Spec.AccessModes) == 1 && pv.Spec.AccessModes[0] == corev1.ReadWriteOncePod,
		accessMode:   string(corev1.ReadWriteOnce),
		accessModes:  pv.Spec.AccessModes,
		fsType:       source.FSType,
		mountOptions: pv.Spec.MountOptions,
		attributes:   source.VolumeAttributes,
		stageSecret:  source.NodeStageSecretRef,
		podSecret:    source.NodePublishSecretRef,
		expandSecret: source.NodeExpandSecretRef,
		affinity:     pv.Spec.NodeAffinity,
	}
	if len(pv.Spec.AccessModes) > 0 {
		w.accessMode = string(pv.Spec.AccessModes[0])
	}
	return w, nil
}

// checkMode checks volumeMode against the use by the containers.
func (w *volumeToMount) checkMode(asFile, asDevice bool) error {
	switch {
	case w.block && asFile:
		return refuse(explain.BlockVolumeMounted(w.specName))
	case !w.block && asDevice:
		return refuse(explain.FilesystemVolumeAsDevice(w.specName))
	default:
		return nil
	}
}

func identityOf(object *corev1.Pod) podIdentity {
	id := podIdentity{
		UID: object.UID, Namespace: object.Namespace, Name: object.Name, ServiceAccount: object.Spec.ServiceAccountName,
	}
	if security := object.Spec.SecurityContext; security != nil {
		id.FSGroup, id.FSGroupChangePolicy = security.FSGroup, security.FSGroupChangePolicy
	}
	return id
}

// stagingPath is kubelet's staging path of a volume.
func stagingPath(w *volumeToMount) string {
	if w.block {
		return path.Join(blockDir, "staging", w.specName)
	}
	return path.Join(csiDir, w.driver, hash(w.handle), globalMount)
}

// publishPath is kubelet's target path of a volume for a pod.
func publishPath(w *volumeToMount) string {
	if w.block {
		return path.Join(blockDir, "publish", w.specName, string(w.pod.UID))
	}
	return path.Join(podVolumesDir(string(w.pod.UID)), w.specName, "mount")
}

// nodeExpansionNotRequired is set by external-resizer on claims whose driver needs no NodeExpandVolume.
const nodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

func sizeOf(list corev1.ResourceList) nodevolume.Size {
	size := list[corev1.ResourceStorage]
	return nodevolume.Size{Bytes: size.Value(), Text: size.String()}
}

func claimSize(claim *corev1.PersistentVolumeClaim) nodevolume.ClaimSize {
	s := nodevolume.ClaimSize{
		Capacity: sizeOf(claim.Status.Capacity), Requested: sizeOf(claim.Spec.Resources.Requests), Allocated: sizeOf(claim.Status.AllocatedResources),
		EveryNode: slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) && !metav1.HasAnnotation(claim.ObjectMeta, nodeExpansionNotRequired),
	}
	switch status := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; status {
	case "":
		if claim.Status.AllocatedResources != nil {
			s.Resizing = nodevolume.NotReported
		}
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		s.Resizing = nodevolume.NodeIsNext
	default:
		s.Resizing = nodevolume.OtherIsNext
	}
	return s
}
