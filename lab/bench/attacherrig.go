package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/lab/cluster"
)

const (
	// laneNodes is over how many nodes the volumes of a lane are spread.
	laneNodes = 50
	// probeNode is where a volume shows that an attacher has begun to work; nothing else touches it.
	probeNode = "hollow-probe"
)

// lane is one driver with its volumes: what one attacher works on.
type lane struct {
	// name of the lane's driver and volumes; label in figures.
	name, label string
	// volumes that are attached, each to one node; of a shared lane it is one volume, at so many nodes.
	volumes int
	shared  bool
	// finalizers that the PersistentVolumes have from the start; none: they are new.
	finalizers []string
	driver     *driver
	socket     string
}

// laneOf makes a lane whose driver takes its time. Lanes of a rig that have one latency and one number of volumes have to be made distinct.
func laneOf(latency time.Duration, volumes int) *lane {
	l := &lane{label: fmt.Sprintf("%d volumes, %s", volumes, driverThat(latency)), volumes: volumes}
	return l.named(fmt.Sprintf("l%d-%d", latency.Milliseconds(), volumes), latency)
}

// named gives a lane its name, and a driver of that name.
func (l *lane) named(name string, latency time.Duration) *lane {
	l.name, l.driver = name, newDriver(name+".bench.belay.dev", latency)
	l.driver.probe = l.probe() // that an attacher has begun to work shows as soon with a slow driver
	return l
}

// distinct gives each of several equal lanes a name of its own.
func distinct(lanes []*lane) {
	for i, l := range lanes {
		l.named(fmt.Sprintf("%s-%d", l.name, i), l.driver.latency)
	}
}

// driverThat says in a figure's name what the driver is like.
func driverThat(takes time.Duration) string {
	if takes == 0 {
		return "driver answers at once"
	}
	return "driver of " + spaced(takes)
}

// spaced writes a latency as the reports do: "200 ms", "2 s".
func spaced(d time.Duration) string {
	if d >= time.Second {
		return fmt.Sprintf("%g s", d.Seconds())
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

func (l *lane) volume(i int) string {
	if l.shared {
		return l.name
	}
	return fmt.Sprintf("%s-%05d", l.name, i)
}

// persistentVolumes is how many PersistentVolumes the lane has beside its probe.
func (l *lane) persistentVolumes() int {
	if l.shared {
		return 1
	}
	return l.volumes
}

// nodes is over how many nodes the lane is spread.
func (l *lane) nodes() int {
	if l.shared {
		return l.volumes
	}
	return laneNodes
}

// probe is one volume more, that shows that an attacher has begun to work.
func (l *lane) probe() string { return l.name + "-probe" }

// nodeOf is where the i-th volume is attached; further turns go to further nodes.
func (l *lane) nodeOf(i, turn int) string { return nodeName((i + turn) % l.nodes()) }

// figure names a figure of the lane.
func (l *lane) figure(name string) string { return l.label + ": " + name }

// addLanes serves the drivers of the lanes and makes their volumes, and some nodes.
func (r *rig) addLanes(ctx context.Context, lanes ...*lane) error {
	if err := r.observe(ctx); err != nil {
		return err
	}
	for _, l := range lanes {
		if err := r.serveLane(l); err != nil {
			return err
		}
	}
	nodes := 0
	for _, l := range lanes {
		nodes = max(nodes, l.nodes())
	}
	if err := each(ctx, nodes, func(ctx context.Context, i int) error { return r.csiNode(ctx, nodeName(i), lanes...) }); err != nil {
		return err
	}
	if err := r.csiNode(ctx, probeNode, lanes...); err != nil {
		return err
	}
	for _, l := range lanes {
		if err := r.persistentVolume(ctx, l.probe(), l.driver.name); err != nil {
			return err
		}
		make := func(ctx context.Context, i int) error {
			return r.persistentVolume(ctx, l.volume(i), l.driver.name, l.finalizers...)
		}
		if err := each(ctx, l.persistentVolumes(), make); err != nil {
			return err
		}
	}
	return nil
}

// serveLane serves a lane's driver.
func (r *rig) serveLane(l *lane) error {
	l.socket = filepath.Join(r.lab.Dir(), l.name+".sock")
	return r.serve(l.driver, l.socket)
}

// sidecar is an attacher at work on a lane.
type sidecar struct {
	*rig

	lane      *lane
	plane     string
	component string
}

// startSidecar starts an attacher and returns once it has attached and detached the probe, with how long the first attach
// took from the start.
func (r *rig) startSidecar(ctx context.Context, plane string, l *lane, flags ...string) (*sidecar, time.Duration, error) {
	s := &sidecar{rig: r, lane: l, plane: plane, component: "attacher-" + l.name}
	began := time.Now()
	if err := r.lab.StartSidecar(plane, cluster.Sidecar{Component: s.component, Socket: l.socket, Args: flags}); err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("%s's attacher does not work %v after its start", plane, readyLimit))
	defer cancel()
	node, volume := probeNode, l.probe()
	r.observer.forget(volumeAttached(node, volume), volumeDetached(node, volume))
	if err := r.makeAttachment(ctx, volume, l.driver.name, node); err != nil {
		return nil, 0, err
	}
	at, err := r.observer.when(ctx, volumeAttached(node, volume))
	if err != nil {
		return nil, 0, s.orEnded(err)
	}
	if err := r.deleteAttachment(ctx, volume, l.driver.name, node); err != nil {
		return nil, 0, err
	}
	if _, err := r.observer.when(ctx, volumeDetached(node, volume)); err != nil {
		return nil, 0, s.orEnded(err)
	}
	return s, at.Sub(began), nil
}

// orEnded is err, or that the attacher has ended if it has.
func (s *sidecar) orEnded(err error) error {
	_, ended := s.pid()
	return errors.Join(err, ended)
}

func (s *sidecar) pid() (int, error) { return s.pidOf(s.component) }

// cpu is what the attacher has used of the processors so far.
func (s *sidecar) cpu() (time.Duration, error) {
	pid, err := s.pid()
	if err != nil {
		return 0, err
	}
	return cpuTime(pid)
}

// end stops the attacher, and takes its finalizers off the volumes: they are as new.
func (s *sidecar) end(ctx context.Context) error {
	if err := s.halt(ctx); err != nil {
		return err
	}
	return each(ctx, s.lane.persistentVolumes(), func(ctx context.Context, i int) error { return s.unprotect(ctx, s.lane.volume(i)) })
}

// halt stops the attacher. Its lease is removed, so that the next does not wait.
func (s *sidecar) halt(ctx context.Context) error {
	if _, err := s.pid(); err != nil {
		return err // what was measured is not what it seemed
	}
	if err := s.lab.Stop(ctx, s.component); err != nil {
		return err
	}
	return s.removeLease(ctx, attacherLease(s.plane, s.lane.driver.name))
}

// attachAll makes the attachments of all volumes and waits until they are attached; it returns how long that took from the
// first one made.
func (s *sidecar) attachAll(ctx context.Context, turn int) (time.Duration, error) {
	attached := s.facts(volumeAttached, turn)
	s.observer.forget(append(attached, s.facts(volumeDetached, turn)...)...)
	began := time.Now()
	if err := s.eachVolume(ctx, turn, s.makeAttachment); err != nil {
		return 0, err
	}
	return s.allSeen(ctx, began, attached)
}

// detachAll detaches everything that attachAll attached.
func (s *sidecar) detachAll(ctx context.Context, turn int) (time.Duration, error) {
	began := time.Now()
	if err := s.eachVolume(ctx, turn, s.deleteAttachment); err != nil {
		return 0, err
	}
	return s.allSeen(ctx, began, s.facts(volumeDetached, turn))
}

func (s *sidecar) facts(of func(node, volume string) fact, turn int) []fact {
	facts := make([]fact, 0, s.lane.volumes)
	for i := range s.lane.volumes {
		facts = append(facts, of(s.lane.nodeOf(i, turn), s.lane.volume(i)))
	}
	return facts
}

func (s *sidecar) eachVolume(ctx context.Context, turn int, do func(ctx context.Context, volume, driver, node string) error) error {
	return each(ctx, s.lane.volumes, func(ctx context.Context, i int) error {
		return do(ctx, s.lane.volume(i), s.lane.driver.name, s.lane.nodeOf(i, turn))
	})
}

// allSeen waits until all facts are seen, and returns how long after began the last was.
func (s *sidecar) allSeen(ctx context.Context, began time.Time, facts []fact) (time.Duration, error) {
	at, err := s.observer.last(ctx, facts)
	if err != nil {
		return 0, s.orEnded(fmt.Errorf("%s's attacher, %s: %w", s.plane, s.lane.label, err))
	}
	return at.Sub(began), nil
}

// sideBySide does something for each lane at once.
func sideBySide(ctx context.Context, lanes []*lane, do func(context.Context, *lane) error) error {
	group, groupCtx := errgroup.WithContext(ctx)
	for _, l := range lanes {
		group.Go(func() error { return do(groupCtx, l) })
	}
	return group.Wait()
}

// csiNode makes the CSINode of a node that the lanes' drivers run on. Attachers look at no Node.
func (o objects) csiNode(ctx context.Context, name string, lanes ...*lane) error {
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, l := range lanes {
		node.Spec.Drivers = append(node.Spec.Drivers, storagev1.CSINodeDriver{
			Name: l.driver.name, NodeID: name, TopologyKeys: []string{corev1.LabelTopologyZone},
			Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(100))},
		})
	}
	_, err := create(ctx, o.client.StorageV1().CSINodes().Create, node)
	return err
}

// persistentVolume makes a PersistentVolume, as large as a provisioner's usually are.
func (o objects) persistentVolume(ctx context.Context, name, driver string, finalizers ...string) error {
	mode := corev1.ReadWriteOnce
	if isShared(name) {
		mode = corev1.ReadWriteMany
	}
	zone := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"zone-1"}}
	_, err := create(ctx, o.client.CoreV1().PersistentVolumes().Create, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers, Annotations: map[string]string{
			"pv.kubernetes.io/provisioned-by":                            driver,
			"volume.kubernetes.io/provisioner-deletion-secret-name":      "",
			"volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
		}},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{mode},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: "data-" + name, UID: types.UID("uid-of-" + name)},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, StorageClassName: "fast",
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{zone}}},
			}},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: name, FSType: "ext4",
				VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1763650000000-8081-" + driver, "type": "fast"},
			}},
		},
	})
	return err
}

// unprotect takes all finalizers off a PersistentVolume.
func (o objects) unprotect(ctx context.Context, volume string) error {
	body := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := o.client.CoreV1().PersistentVolumes().Patch(ctx, volume, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("taking the finalizers off volume %s: %w", volume, err)
	}
	return nil
}
