package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/lab/cluster"
)

// Planes that are measured.
const (
	planeUpstream = cluster.PlaneUpstream
	planeBelay    = cluster.PlaneBelay
	planeFloor    = "floor"
)

// planes in the order in which they take turns.
func planes() []string { return []string{planeUpstream, planeBelay, planeFloor} }

const (
	floorComponent = "floor"
	// stepLimit bounds one step of one volume, and the start of a plane: upstream gives up an attach
	// after two minutes.
	stepLimit = 2 * time.Minute
	// closeLimit bounds taking the lab down.
	closeLimit = time.Minute
)

// rig is one bare lab with what all planes share: the driver, the attacher, an observer.
type rig struct {
	objects

	lab *cluster.Cluster
	// driver is that of the plane at work; drivers are all that are served.
	driver   *driver
	drivers  []*driver
	observer *observer
	say      func(format string, args ...any)
	// running is the component of the plane at work; empty if none is.
	running string
	plane   string
	// pods counts the pods made, so that each has a name of its own.
	pods int
}

// rigOptions say what a part of the bench needs of its lab.
type rigOptions struct {
	name  string
	audit bool
	// later leaves it to the caller to equip the rig.
	later bool
	say   func(format string, args ...any)
}

// openRig starts a lab. If it fails nothing is left behind.
func openRig(ctx context.Context, o rigOptions) (r *rig, err error) {
	lab, err := cluster.Up(ctx, cluster.Options{Name: o.name, Bare: true, Audit: o.audit, Progress: o.say})
	if err != nil {
		return nil, err
	}
	r = &rig{lab: lab, say: o.say}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(ctx))
		}
	}()
	client, err := kubernetes.NewForConfig(lab.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	r.objects = objects{client: client}
	if err := r.base(ctx); err != nil {
		return nil, err
	}
	if o.later {
		return r, nil
	}
	return r, r.equip(ctx)
}

// equip starts the driver, the attacher and the observer.
func (r *rig) equip(ctx context.Context) (err error) {
	socket := filepath.Join(r.lab.Dir(), "csi.sock")
	r.driver = newDriver(driverName, 0)
	if err := r.serve(r.driver, socket); err != nil {
		return err
	}
	if _, err = r.lab.StartAttacher(socket); err != nil {
		return err
	}
	r.observer, err = observe(ctx, r.client)
	return err
}

// close takes all down, also when ctx has ended, and tells what the storage would not have liked.
func (r *rig) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	if r.observer != nil {
		r.observer.close()
	}
	errs := []error{r.lab.Down(ctx)}
	for _, d := range r.drivers {
		errs = append(errs, d.stop())
	}
	if r.driver != nil {
		errs = append(errs, r.driver.wrong())
	}
	return errors.Join(errs...)
}

// serve serves a driver until the rig is closed.
func (r *rig) serve(d *driver, socket string) error {
	if err := d.serve(socket); err != nil {
		return err
	}
	r.drivers = append(r.drivers, d)
	return nil
}

// start starts a plane; no other may be at work.
func (r *rig) start(plane string, environment ...string) error {
	r.running, r.plane = floorComponent, plane
	if plane == planeFloor {
		// The same credential as belay-controller: the API server's fair queues treat both alike.
		return r.lab.StartTool(floorComponent, "bench", "floor", "--kubeconfig", r.lab.ControllerKubeconfig())
	}
	var err error
	r.running, err = r.lab.StartController(plane, environment...)
	return err
}

// stop ends the plane at work. A lease that it left is removed, so that the next does not wait.
func (r *rig) stop(ctx context.Context) error {
	if _, err := r.pid(); err != nil {
		return err // what was measured is not what it seemed
	}
	if err := r.lab.Stop(ctx, r.running); err != nil {
		return err
	}
	r.running = ""
	for _, name := range []string{"kube-controller-manager", "belay-controller"} {
		err := r.client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("removing the lease %s: %w", name, err)
		}
	}
	return nil
}

// pid is that of the plane at work. One that has ended by itself is an error.
func (r *rig) pid() (int, error) { return r.pidOf(r.running) }

func (r *rig) pidOf(component string) (int, error) {
	state, err := r.lab.Component(component)
	if err != nil {
		return 0, err
	}
	if state.PID == 0 {
		return 0, fmt.Errorf("%s has ended by itself (%s); its log is %s", component, state.LastError, r.lab.LogOf(component))
	}
	return state.PID, nil
}

// cpu is what the plane at work has used of the processors so far.
func (r *rig) cpu() (time.Duration, error) {
	pid, err := r.pid()
	if err != nil {
		return 0, err
	}
	return cpuTime(pid)
}

// limited bounds one step.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, stepLimit, fmt.Errorf("it did not happen within %v", stepLimit))
}

// newPod makes a pod of an own name, not bound yet.
func (r *rig) newPod(ctx context.Context, volume string) (string, error) {
	r.pods++
	name := fmt.Sprintf("pod-%06d", r.pods)
	return name, r.pod(ctx, name, volume, "")
}

// attach binds a pod and returns how long it took from there until its volume was reported.
func (r *rig) attach(ctx context.Context, pod, volume, node string) (time.Duration, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	r.observer.forget(volumeReported(node, volume), volumeDetached(node, volume))
	if err := r.bind(ctx, pod, node); err != nil {
		return 0, err
	}
	return r.between(ctx, podBound(pod), volumeReported(node, volume))
}

// mount writes what kubelet writes before it mounts, unmount what it writes after it has unmounted.
func (r *rig) mount(ctx context.Context, volume, node string) error {
	return r.turn(ctx, volume, node, true, volumeInUse(node, volume))
}

func (r *rig) unmount(ctx context.Context, volume, node string) error {
	return r.turn(ctx, volume, node, false, volumeFree(node, volume))
}

func (r *rig) turn(ctx context.Context, volume, node string, is bool, becomes fact) error {
	r.observer.forget(becomes)
	if err := r.use(ctx, node, volume, is); err != nil {
		return err
	}
	_, err := r.observer.when(ctx, becomes)
	return err
}

// detach deletes a pod whose volume is unmounted and returns how long it took from its end until
// the attachment was gone.
func (r *rig) detach(ctx context.Context, pod, volume, node string) (time.Duration, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	if err := r.remove(ctx, pod); err != nil {
		return 0, err
	}
	return r.between(ctx, podGone(pod), volumeDetached(node, volume))
}

func (r *rig) between(ctx context.Context, from, to fact) (time.Duration, error) {
	began, err := r.observer.when(ctx, from)
	if err != nil {
		return 0, err
	}
	ended, err := r.observer.when(ctx, to)
	if err != nil {
		return 0, fmt.Errorf("%s's plane: %w", r.plane, err)
	}
	return ended.Sub(began), nil
}
