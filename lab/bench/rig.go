package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"belay.dev/belay/lab/cluster"
)

// Planes that are measured.
const (
	planeUpstream = cluster.PlaneUpstream
	planeBelay    = cluster.PlaneBelay
	planeFloor    = "floor"
)

// planes in the order of the report's columns.
func planes() []string { return []string{planeUpstream, planeBelay, planeFloor} }

// turns are planes in the order of their turns in a round: another one begins each time, as the first pays for what the rounds before
// left behind.
func turns(all []string, round int) []string {
	first := round % len(all)
	return slices.Concat(all[first:], all[:first])
}

const (
	floorComponent    = "floor"
	attacherComponent = "attacher-of-plane"
	// stepLimit bounds one step of one volume, and the start of a plane: upstream abandons an attach
	// after two minutes.
	stepLimit = 2 * time.Minute
	// closeLimit bounds taking the lab down.
	closeLimit = time.Minute
)

// rig is one bare lab with what all planes share: the driver, the attacher, an observer.
type rig struct {
	objects

	lab *cluster.Cluster
	// driver is that of the plane at work.
	driver *driver
	socket string
	// stops end what the rig serves.
	stops    []func() error
	observer *observer
	say      func(format string, args ...any)
	// running are the components of the plane at work; none if no plane is.
	running []string
	plane   string
	// ownAttacher has each plane bring its own attacher, with these flags beside those as shipped; nil for one for all.
	ownAttacher map[string][]string
	// pods counts the pods made, so that each has a name of its own.
	pods int
}

// rigOptions say what a part of the bench needs of its lab.
type rigOptions struct {
	name  string
	audit bool
	// later leaves it to the caller to equip the rig.
	later bool
	// change, if set, changes the lab's options; belay's programs are then not as shipped.
	change func(cluster.Options) cluster.Options
	say    func(format string, args ...any)
}

// openRig starts a lab. If it fails nothing is left behind.
func openRig(ctx context.Context, o rigOptions) (r *rig, err error) {
	options := cluster.Options{Name: o.name, Bare: true, Audit: o.audit, Progress: o.say}
	if o.change != nil {
		options = o.change(options)
	}
	lab, err := cluster.Up(ctx, options)
	if err != nil {
		return nil, err
	}
	r = &rig{lab: lab, say: o.say}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(ctx))
		}
	}()
	// As the planes' clients do: the API server decodes it faster than JSON.
	config := restclient.CopyConfig(lab.RESTConfig())
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
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
func (r *rig) equip(ctx context.Context) error {
	r.socket = filepath.Join(r.lab.Dir(), "csi.sock")
	r.driver = newDriver(driverName, 0)
	if err := r.serve(r.driver, r.socket); err != nil {
		return err
	}
	if r.ownAttacher == nil {
		attacher := cluster.Sidecar{Component: "attacher", Socket: r.socket, Args: []string{"--kube-api-qps=-1"}}
		if err := r.lab.StartSidecar(planeBelay, attacher); err != nil {
			return err
		}
	}
	return r.observe(ctx)
}

func (r *rig) observe(ctx context.Context) (err error) {
	r.observer, err = observe(ctx, r.client)
	return err
}

// close takes all down, also when ctx has ended, and returns the violations that the driver saw.
func (r *rig) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	if r.observer != nil {
		r.observer.close()
	}
	errs := []error{r.lab.Down(ctx)}
	for _, stop := range r.stops {
		errs = append(errs, stop())
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
	r.stops = append(r.stops, d.stop)
	return nil
}

// start starts a plane; no other may be at work.
func (r *rig) start(plane string, environment ...string) error {
	r.running, r.plane = nil, plane
	if r.ownAttacher != nil {
		if err := r.startAttacher(attacherPlane(plane), environment...); err != nil {
			return err
		}
	}
	if plane == planeFloor {
		r.running = append(r.running, floorComponent)
		// The same credential as belay-controller: the API server's fair queues treat both alike.
		return r.lab.StartTool(floorComponent, "bench", "floor", "--kubeconfig", r.lab.ControllerKubeconfig())
	}
	component, err := r.lab.StartController(plane, environment...)
	r.running = append(r.running, component)
	return err
}

// attacherPlane is whose attacher a plane works with: the floor has none of its own.
func attacherPlane(plane string) string {
	if plane == planeFloor {
		return planeBelay
	}
	return plane
}

func (r *rig) startAttacher(plane string, environment ...string) error {
	r.running = append(r.running, attacherComponent)
	return r.lab.StartSidecar(plane, cluster.Sidecar{Component: attacherComponent, Socket: r.socket, Args: r.ownAttacher[plane], Env: environment})
}

// stop ends the plane at work. Leases that it left are removed, so that the next does not wait.
func (r *rig) stop(ctx context.Context) error {
	if _, err := r.pids(); err != nil {
		return err // what was measured is not what it seemed
	}
	for _, component := range r.running {
		if err := r.lab.Stop(ctx, component); err != nil {
			return err
		}
	}
	r.running = nil
	for _, lease := range [][2]string{
		{metav1.NamespaceSystem, "kube-controller-manager"}, {metav1.NamespaceSystem, "belay-controller"},
		attacherLease(r.plane, driverName),
	} {
		if err := r.removeLease(ctx, lease); err != nil {
			return err
		}
	}
	return nil
}

// attacherLease is namespace and name of the lease of a plane's attacher.
func attacherLease(plane, driver string) [2]string {
	return [2]string{cluster.SidecarNamespace(attacherPlane(plane)), "external-attacher-leader-" + driver}
}

func (r *rig) removeLease(ctx context.Context, lease [2]string) error {
	err := r.client.CoordinationV1().Leases(lease[0]).Delete(ctx, lease[1], metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing the lease %s/%s: %w", lease[0], lease[1], err)
	}
	return nil
}

// pids are those of the plane at work. A component that has exited is an error.
func (r *rig) pids() (pids []int, err error) {
	for _, component := range r.running {
		pid, err := r.pidOf(component)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

func (r *rig) pidOf(component string) (int, error) {
	state, err := r.lab.Component(component)
	if err != nil {
		return 0, err
	}
	if state.PID == 0 {
		return 0, fmt.Errorf("%s has exited (%s); its log is %s", component, state.LastError, r.lab.LogOf(component))
	}
	return state.PID, nil
}

// cpu is what the plane at work has used of the processors so far.
func (r *rig) cpu() (sum time.Duration, err error) {
	pids, err := r.pids()
	for _, pid := range pids {
		used, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, err
}

// limited bounds one step.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, stepLimit, fmt.Errorf("it did not happen within %v", stepLimit))
}

// podNames are names that no pod has had.
func (r *rig) podNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		r.pods++
		names[i] = fmt.Sprintf("pod-%06d", r.pods)
	}
	return names
}

// newPod makes a pod that is not bound yet.
func (r *rig) newPod(ctx context.Context, volume string) (string, error) {
	name := r.podNames(1)[0]
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
