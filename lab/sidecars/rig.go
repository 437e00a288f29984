package sidecars

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/informer"
	"belay.dev/belay/lab/labtest"
	"belay.dev/belay/lab/scenario"
)

// Limit bounds every wait for what an attacher has to do.
const Limit = 2 * time.Minute

// component is the attacher's name in the lab.
const component = "attacher"

// Rig is a bare lab with a driver and at most one attacher.
type Rig struct {
	Lab    *cluster.Cluster
	Client kubernetes.Interface
	Driver *Driver

	folder string // of the sockets
	starts int

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each event
	lives   map[types.UID]*Life
	now     map[string]*storagev1.VolumeAttachment // by name
}

// Life is one VolumeAttachment, from its creation to its end, as the watch reported it.
type Life struct {
	Name, Volume, Node string
	// Each is zero until it was seen.
	Attached, Deleted, Ended time.Time
	// Changes counts the versions that were seen.
	Changes int
}

// Open starts a bare lab; all of it ends with the test.
func Open(t *testing.T, name string) *Rig {
	t.Helper()
	labtest.Needs(t)
	lab, err := cluster.Up(t.Context(), cluster.Options{Name: name, Bare: true, Progress: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	r := &Rig{
		Lab: lab, changed: make(chan struct{}), lives: map[types.UID]*Life{}, now: map[string]*storagev1.VolumeAttachment{},
	}
	t.Cleanup(func() { r.close(t) })
	r.folder, err = os.MkdirTemp("", "sidecars") //nolint:usetesting // t.TempDir() is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(r.folder) })
	r.Driver = New()
	config := lab.RESTConfig()
	config.QPS = -1
	if r.Client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if err := r.watch(t); err != nil {
		t.Fatal(err)
	}
	return r
}

// watch follows the VolumeAttachments until the test ends.
func (r *Rig) watch(t *testing.T) error {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	factory := informers.NewSharedInformerFactory(r.Client, 0)
	t.Cleanup(func() { stop(); factory.Shutdown() })
	_, err := informer.OnChange(factory.Storage().V1().VolumeAttachments().Informer(), r.saw)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return err
}

// close takes the lab down; the test's context has ended by then.
func (r *Rig) close(t *testing.T) {
	t.Helper()
	dir := r.Lab.Dir()
	if err := r.Lab.Down(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if r.Driver != nil {
		if err := r.Driver.Stop(); err != nil {
			t.Error(err)
		}
	}
	if left := scenario.LeftOnMachine(dir); len(left) > 0 {
		t.Errorf("the lab left on the machine:\n%s", strings.Join(left, "\n"))
	}
}

// Start starts the attacher of a plane; none may run.
func (r *Rig) Start(plane string, args ...string) error {
	r.starts++
	if err := r.Driver.Open(r.socket()); err != nil {
		return err
	}
	return r.Lab.StartSidecar(plane, cluster.Sidecar{Component: component, Socket: r.socket(), Args: args})
}

// Stop ends the attacher as kubelet does: SIGTERM, and SIGKILL some seconds later.
func (r *Rig) Stop(ctx context.Context) error { return r.Lab.Stop(ctx, component) }

// Kill ends it with SIGKILL; nothing of it runs afterwards.
func (r *Rig) Kill() error {
	err := r.Lab.Kill(component)
	r.Driver.Close(r.socket())
	return err
}

// socket is that of the attacher that was started last.
func (r *Rig) socket() string { return filepath.Join(r.folder, fmt.Sprintf("csi-%d.sock", r.starts)) }

func (r *Rig) saw(before, after *storagev1.VolumeAttachment) {
	va := cmp.Or(after, before)
	r.mu.Lock()
	defer r.mu.Unlock()
	life := r.lives[va.UID]
	if life == nil {
		life = &Life{Name: va.Name, Volume: *va.Spec.Source.PersistentVolumeName, Node: va.Spec.NodeName}
		r.lives[va.UID] = life
	}
	life.Changes++
	at := time.Now()
	if va.Status.Attached && life.Attached.IsZero() {
		life.Attached = at
	}
	if va.DeletionTimestamp != nil && life.Deleted.IsZero() {
		life.Deleted = at
	}
	if after == nil {
		life.Ended = at
		delete(r.now, va.Name)
	} else {
		r.now[va.Name] = va
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// Lives are all VolumeAttachments that have existed.
func (r *Rig) Lives() map[types.UID]Life {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[types.UID]Life{}
	for uid, life := range r.lives {
		all[uid] = *life
	}
	return all
}

// Attachments are those that there are, by name. Do not change them.
func (r *Rig) Attachments() map[string]*storagev1.VolumeAttachment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.now)
}

// Await waits until a VolumeAttachment, nil if it is gone, is as wanted.
func (r *Rig) Await(ctx context.Context, name, what string, is func(*storagev1.VolumeAttachment) bool) error {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	for {
		r.mu.Lock()
		va, changed := r.now[name], r.changed
		r.mu.Unlock()
		if is(va) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("VolumeAttachment %s is not %s: %+v: %w", name, what, va, context.Cause(ctx))
		}
	}
}

// Attached and Gone are what is mostly waited for.
func Attached(va *storagev1.VolumeAttachment) bool { return va != nil && va.Status.Attached }

// Gone reports whether there is no VolumeAttachment.
func Gone(va *storagev1.VolumeAttachment) bool { return va == nil }

// Make makes nodes node-0, node-1, ... and exclusive volumes volume-0, volume-1, ... whose handles are
// their names. A node's ID is its name.
func (r *Rig) Make(ctx context.Context, nodes, volumes int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range nodes {
		group.Go(func() error {
			_, err := r.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
				ObjectMeta: metav1.ObjectMeta{Name: Node(i)},
				Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: DriverName, NodeID: Node(i)}}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	for i := range volumes {
		group.Go(func() error {
			_, err := r.Client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: Volume(i)},
				Spec: corev1.PersistentVolumeSpec{
					Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
					AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: DriverName, VolumeHandle: Volume(i)}},
				},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("making nodes and volumes: %w", err)
	}
	return nil
}

// Node and Volume are the names of what Make made.
func Node(i int) string { return fmt.Sprintf("node-%d", i) }

// Volume is the name of the i-th volume.
func Volume(i int) string { return fmt.Sprintf("volume-%d", i) }

// Name is that of the VolumeAttachment of a volume for a node.
func Name(volume, node string) string { return kube.AttachmentName(volume, DriverName, node) }

// Attach makes a VolumeAttachment and returns its name. One that is being deleted has to end first.
func (r *Rig) Attach(ctx context.Context, volume, node string) (string, error) {
	name := Name(volume, node)
	if err := r.Await(ctx, name, "gone", Gone); err != nil {
		return "", err
	}
	_, err := r.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: DriverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("making the attachment of %s to %s: %w", volume, node, err)
	}
	return name, r.Await(ctx, name, "there", func(va *storagev1.VolumeAttachment) bool { return va != nil })
}

// Detach deletes a VolumeAttachment, bound to what is known of it as belay-controller's deletes are.
// A delete that is not bound, as kube-controller-manager's, may be decided on by the API server before
// the attacher's finalizer is stored, and be carried out after it (k/k#124749): then nothing is left that
// tells the next attacher of what was published.
func (r *Rig) Detach(ctx context.Context, name string) error {
	attachments := r.Client.StorageV1().VolumeAttachments()
	for {
		va, err := attachments.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			err = attachments.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &va.UID, ResourceVersion: &va.ResourceVersion}})
		}
		switch {
		case err == nil || apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("deleting the attachment %s: %w", name, err)
		}
	}
}
