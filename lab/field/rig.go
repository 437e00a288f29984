package field

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"belay.dev/belay/lab/cluster"
	"belay.dev/belay/lab/proxy"
)

// Options say where the situations are made.
type Options struct {
	// Name of the lab, as in cluster.Options.
	Name string
	// Progress receives the progress, one line at a time; may be nil.
	Progress func(format string, args ...any)
}

// Rig is a cluster with situations, and what is needed to ask about them.
type Rig struct {
	lab   *cluster.Cluster
	maker *maker
	// kubeconfig leads to the API server over a proxy that says the time.
	kubeconfig string
}

const (
	// later is how long after the situations were made the questions are asked, by the clock that the plugin sees: nothing is young any more,
	// and what a component wrote in that time is younger than the word of an attacher may be (15 minutes in internal/diagnosis).
	later = 11*time.Minute + 30*time.Second
	// bindTimeout is short, so that a scheduler that waits for a provisioner says so.
	bindTimeout = 4 * time.Second
	// controllers are those that write of claims and volumes.
	controllers = "persistentvolume-binder-controller,persistentvolume-expander-controller," +
		"persistentvolumeclaim-protection-controller,persistentvolume-protection-controller,ephemeral-volume-controller"
)

// Open starts a cluster and makes the situations in it. If it fails, nothing is left behind.
func Open(ctx context.Context, o Options, situations []*Situation) (r *Rig, err error) {
	lab, err := cluster.Up(ctx, cluster.Options{Name: o.Name, Bare: true, Plane: cluster.PlaneUpstream, Progress: o.Progress})
	if err != nil {
		return nil, err
	}
	r = &Rig{lab: lab}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close(context.WithoutCancel(ctx)))
		}
	}()
	client, err := dynamic.NewForConfig(jsonConfig(lab.RESTConfig()))
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	began := time.Now().Truncate(time.Second)
	r.maker = &maker{client: client, began: began, now: began.Add(later)}
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	if err := r.makeAll(ctx, situations); err != nil {
		return nil, err
	}
	return r, r.settle(ctx)
}

// connect starts the proxy and writes the kubeconfig of the plugin.
func (r *Rig) connect(ctx context.Context) error {
	p, err := proxy.Start(ctx, r.lab.RESTConfig())
	if err != nil {
		return err
	}
	p.StopClock(r.maker.now)
	config := clientcmdapi.NewConfig()
	config.Clusters["field"] = &clientcmdapi.Cluster{Server: p.URL()}
	config.Contexts["field"] = &clientcmdapi.Context{Cluster: "field"}
	config.CurrentContext = "field"
	r.kubeconfig = filepath.Join(r.lab.Dir(), "field.kubeconfig")
	if err := clientcmd.WriteToFile(*config, r.kubeconfig); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}

// makeAll makes what all share, starts the scheduler and the controllers, and makes the situations side by side.
func (r *Rig) makeAll(ctx context.Context, situations []*Situation) error {
	for _, namespace := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, "kube-node-lease"} {
		if err := r.maker.namespace(ctx, namespace); err != nil {
			return err
		}
	}
	shared, err := load(surroundings)
	if err != nil {
		return err
	}
	if err := r.maker.make(ctx, shared); err != nil {
		return err
	}
	if _, err := r.lab.StartManager(controllers); err != nil {
		return err
	}
	if _, err := r.lab.StartScheduler(bindTimeout); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, s := range situations {
		group.Go(func() error { return r.maker.make(groupCtx, s) })
	}
	return group.Wait()
}

// Close ends the cluster.
func (r *Rig) Close(ctx context.Context) error { return r.lab.Down(ctx) }
