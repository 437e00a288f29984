package field

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	restclient "k8s.io/client-go/rest"
)

const (
	// quiet is longer than the scheduler waits for a volume to be bound, and than it waits then before it tries again (10 s, k/k v1.36.3
	// pkg/scheduler/backend/queue/scheduling_queue.go, DefaultPodMaxBackoffDuration).
	quiet         = bindTimeout + 10*time.Second
	settledWithin = 90 * time.Second
)

// settle waits until scheduler and controllers have nothing to say that they have not said.
func (r *Rig) settle(ctx context.Context) error {
	said, last := map[string]bool{}, time.Now()
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, settledWithin, true, func(ctx context.Context) (bool, error) {
		now, err := r.said(ctx)
		if err != nil {
			return false, err
		}
		if !maps.Equal(said, now) {
			said, last = now, time.Now()
		}
		return time.Since(last) > quiet, nil
	})
	if err != nil {
		return errors.Join(errors.New("scheduler and controllers do not settle"), err)
	}
	return nil
}

// said is what scheduler and controllers have written: events whatever their number, and the state of pods, claims and volumes.
func (r *Rig) said(ctx context.Context) (map[string]bool, error) {
	all := map[string]bool{}
	for kind, of := range map[string]func(object) string{
		"Event": func(o object) string { return text(o, "reason") + " " + text(o, "message") },
		"Pod": func(o object) string {
			conditions, _, _ := unstructured.NestedSlice(o, "status", "conditions")
			for _, c := range conditions {
				c.(object)["lastTransitionTime"] = nil
			}
			return fmt.Sprint(o["spec"].(object)["nodeName"], conditions)
		},
		"PersistentVolumeClaim": phase, "PersistentVolume": phase,
	} {
		list, err := r.maker.resource(kind, "").List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading what they reported: %w", err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			ref := o.GetNamespace() + "/" + o.GetName()
			if kind == "Event" { // another event of the same words is the same
				ref = text(o.Object, "involvedObject", "namespace") + "/" + text(o.Object, "involvedObject", "name")
			}
			all[kind+" "+ref+" "+of(o.Object)] = true
		}
	}
	return all, nil
}

func phase(o object) string {
	return fmt.Sprint(text(o, "status", "phase"), o["metadata"].(object)["annotations"], o["metadata"].(object)["deletionTimestamp"])
}

// jsonConfig is a configuration for a dynamic client, which knows no protobuf.
func jsonConfig(config *restclient.Config) *restclient.Config {
	config.ContentConfig = restclient.ContentConfig{}
	return config
}
